//go:build linux

package begin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// compiled returns a C program, as gcc makes it here.
func compiled(t *testing.T, flags ...string) []byte {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	if err := os.WriteFile(source, []byte("#include <stdio.h>\nint main(void) { return puts(\"a\") < 0; }\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), gcc, append(flags, "-o", program, source)...).CombinedOutput(); err != nil { //nolint:gosec // a test's own file
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// forArch returns a program whose header names another machine (EM_AARCH64 is 183).
func forArch(program []byte, machine uint16) []byte {
	other := slices.Clone(program)
	binary.LittleEndian.PutUint16(other[18:], machine)
	return other
}

// The programs are gcc's. The host of the facts is this machine, whose glibc gcc links against.
func TestReadLinkage(t *testing.T) {
	t.Parallel()
	dynamic, static := compiled(t), compiled(t, "-static")
	facts, err := node.Collect(t.Context(), node.Probe{})
	if err != nil || facts.Libc.Name != node.GLIBC || facts.Libc.Version == "" {
		t.Fatalf("the C library of this machine: %+v, %v", facts.Libc, err)
	}
	l, err := readLinkage(bytes.NewReader(dynamic))
	if err != nil || l.Arch != facts.Arch || !slices.Contains(facts.Libc.Loaders, l.Loader) ||
		!strings.HasPrefix(l.GLIBC, "2.") {
		t.Errorf("a dynamic program: %+v, %v; the machine has %+v", l, err, facts.Libc)
	}
	for name, want := range map[string]struct {
		program []byte
		linkage precheck.Linkage
	}{
		"static":     {static, precheck.Linkage{Arch: facts.Arch}},
		"static PIE": {compiled(t, "-static-pie"), precheck.Linkage{Arch: facts.Arch}},
		"arm64":      {forArch(static, 183), precheck.Linkage{Arch: "arm64"}},
		"script":     {[]byte("#!/bin/sh\nexit\n"), precheck.Linkage{}},
		"empty":      {nil, precheck.Linkage{}},
	} {
		if got, err := readLinkage(bytes.NewReader(want.program)); err != nil || got != want.linkage {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want.linkage)
		}
	}
	for _, length := range []int{30, 70, 500, len(dynamic) / 2} {
		if got, err := readLinkage(bytes.NewReader(dynamic[:length])); err != nil || got.Problem == "" {
			t.Errorf("%d bytes of a program: %+v, %v", length, got, err)
		}
	}
	broken := io.MultiReader(bytes.NewReader(dynamic[:500]), iotest.ErrReader(io.ErrNoProgress))
	if got, err := readLinkage(broken); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a stream that fails: %+v, %v", got, err)
	}
}

// programBundle is a bundle for a cluster whose containerd and kubelet are these programs.
func programBundle(t *testing.T, c *manifest.Cluster, containerd, kubelet []byte) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	platform := &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	for _, need := range plan.Needs(c) {
		refs, err := catalog.Refs(c, need, "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		content := sitetest.FileContent(t, c, need.Name)
		switch {
		case need.Kind != manifest.ItemFile:
			continue
		case need.Name == "containerd":
			content = tarOf(t, map[string][]byte{
				"bin/containerd": containerd, "bin/ctr": kubelet,
				"bin/containerd-shim-runc-v2": kubelet,
			})
		case need.Name == "kubelet":
			content = kubelet
		}
		b.File(refs[0], need.Name, platform, content)
	}
	return b.Bundle().Reader
}

func tarOf(t *testing.T, members map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw := tar.NewWriter(zw)
	for name, content := range members {
		if err := tw.WriteHeader(&tar.Header{
			Name: name, Mode: 0o755, Size: int64(len(content)),
			Typeflag: tar.TypeReg,
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestProgramsThatCannotStart is a precheck of hosts with other C libraries than the bundle's programs need.
func TestProgramsThatCannotStart(t *testing.T) {
	t.Parallel()
	dynamic, static := compiled(t), compiled(t, "-static")
	need, err := readLinkage(bytes.NewReader(dynamic))
	if err != nil {
		t.Fatal(err)
	}
	s := sitetest.NewSite(t, "cp1")
	for name, c := range map[string]struct {
		containerd, kubelet []byte
		libc                node.Libc
		found               string // "" for a host on which all can start
	}{
		"EL 8 and dynamic programs": {dynamic, static, node.Libc{
			Name: "glibc", Version: "2.28",
			Loaders: []string{need.Loader},
		}, "/usr/local/bin/containerd needs glibc " + need.GLIBC +
			", the host has glibc 2.28"},
		"EL 8 and static programs": {static, static, node.Libc{
			Name: "glibc", Version: "2.28",
			Loaders: []string{need.Loader},
		}, ""},
		"a newer glibc": {dynamic, dynamic, node.Libc{
			Name: "glibc", Version: "2.99",
			Loaders: []string{need.Loader},
		}, ""},
		"Alpine": {dynamic, static, node.Libc{
			Name: "musl", Version: "1.2.5",
			Loaders: []string{"/lib/ld-musl-x86_64.so.1"},
		}, "needs " + need.Loader +
			", the host has musl 1.2.5 without it"},
		"a kubelet for arm64": {
			static, forArch(static, 183),
			node.Libc{Name: "glibc", Version: "2.31"},
			"/usr/local/bin/kubelet is for arm64, the host is amd64",
		},
		"Debian 11, a dynamic shim": {static, dynamic, node.Libc{
			Name: "glibc", Version: "2.31",
			Loaders: []string{need.Loader},
		}, "/usr/local/bin/kubelet needs glibc " + need.GLIBC +
			", the host has glibc 2.31"},
		"facts of an earlier helper": {dynamic, static, node.Libc{}, "the host did not say which libc it has"},
	} {
		r := s.Run(t, programBundle(t, s.Options.Cluster, c.containerd, c.kubelet))
		programs, err := bundledPrograms(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		report := precheck.Evaluate(precheck.Input{
			Cluster: s.Options.Cluster, Install: true, Programs: programs,
			Hosts: []precheck.Host{{Host: r.Hosts[0].Host, Facts: &node.Facts{
				Version: 1, Arch: "amd64",
				Libc: c.libc,
			}}},
		})
		i := slices.IndexFunc(report.Results, func(one precheck.Result) bool { return one.ID == "bundle-programs" })
		if i < 0 {
			t.Errorf("%s: no result", name)
			continue
		}
		if one := report.Results[i]; one.OK != (c.found == "") || !strings.Contains(one.Found, c.found) ||
			!one.OK && !one.Unknown && one.Level != precheck.Block {
			t.Errorf("%s: got %+v, want %q", name, one, c.found)
		}
	}
}

// FuzzReadLinkage reads programs of a hostile bundle: nothing panics, and a loader is of an ELF file only.
func FuzzReadLinkage(f *testing.F) {
	program, err := os.ReadFile("/bin/ls")
	if err != nil {
		f.Skip(err)
	}
	f.Add(program[:min(len(program), 1<<16)])
	f.Add(program)
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, program []byte) {
		l, err := readLinkage(bytes.NewReader(program))
		if err == nil && l.Loader != "" && !bytes.HasPrefix(program, []byte("\x7fELF")) {
			t.Errorf("%+v", l)
		}
	})
}
