//go:build linux

package sitetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	distribution "github.com/distribution/distribution/v3/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// ClusterBundle makes a bundle with everything that a cluster needs, each thing tiny, and an addon's chart.
func ClusterBundle(t *testing.T, c *manifest.Cluster, without ...string) *bundle.Reader {
	t.Helper()
	return BundleWith(t, c, func(name string) []byte { return FileContent(t, c, name) }, without...)
}

// BundleWith has files with that content.
func BundleWith(t *testing.T, c *manifest.Cluster, content func(name string) []byte, without ...string) *bundle.Reader {
	t.Helper()
	return BuiltWith(t, c, content, without...).Reader
}

// BuiltWith builds a bundle of all that the cluster needs but these components, with these contents of files.
func BuiltWith(t *testing.T, c *manifest.Cluster, content func(name string) []byte,
	without ...string,
) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for i, need := range plan.Needs(c) {
		if slices.Contains(without, need.Name) {
			continue
		}
		refs, err := catalog.Refs(c, need, "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		for j, ref := range refs {
			switch need.Kind {
			case manifest.ItemFile:
				b.File(ref, need.Name, &ocispec.Platform{OS: "linux", Architecture: "amd64"}, content(need.Name))
			case manifest.ItemImage:
				b.Image(ref, bundletest.RandomImage(t, int64(100*i+j+1), 1, 1000))
			default:
				b.Chart(ref, need.Name, "1.0.0", bundletest.ChartArchive(t, need.Name, "1.0.0"))
			}
		}
	}
	b.Chart("https://charts.example/stable/demo:0.1.0", "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	return b.Bundle()
}

// FileContent is a program, or an archive with the members that tasks want.
func FileContent(t *testing.T, c *manifest.Cluster, component string) []byte {
	t.Helper()
	var members []string
	for _, phase := range plan.Plan(c) {
		for _, task := range phase.Tasks {
			for _, f := range task.Files {
				if f.Component == component && f.Member != "" {
					members = append(members, f.Member)
				}
			}
		}
	}
	if len(members) == 0 {
		return []byte("#!/bin/sh\necho " + component + "\n")
	}
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw := tar.NewWriter(zw)
	for _, name := range members {
		content := "member " + name + "\n"
		if err := tw.WriteHeader(&tar.Header{
			Name: name, Mode: 0o755, Size: int64(len(content)),
			Typeflag: tar.TypeReg,
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// NewRegistrySite has a registry host with an address of this machine's loopback network that no other process has,
// nor another test with its own second number. The registry is the real one, with the configuration, certificate and
// password that the task writes; only systemd's part is played by the test. It is reached through the host's helper.
func NewRegistrySite(t *testing.T, second byte) (*Site, *engine.Run, *Rooted) {
	t.Helper()
	return NewRegistrySiteOf(t, second, runRegistry)
}

// NewRegistrySiteOf has a registry that run starts with a configuration.
func NewRegistrySiteOf(t *testing.T, second byte, run func(ctx context.Context, t *testing.T,
	text string),
) (*Site, *engine.Run, *Rooted) {
	t.Helper()
	s := NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	r := s.Run(t, ClusterBundle(t, s.Options.Cluster))
	r.Hosts[0].IP = netip.AddrFrom4([4]byte{127, second, byte(os.Getpid() >> 8), byte(os.Getpid())})
	own, push := r.Hosts[0].IP.String()+":5001", "127.0.0.1:5001"
	leadPushes(h, push, own)
	h.Answer("systemctl", func(ctx context.Context, cmd host.Cmd) error {
		switch {
		case cmd.Args[1] != "restart":
		case cmd.Args[2] == siteregistry.PushUnit:
			run(ctx, t, registryText(t, h, PushConfigFile, push, own))
		case cmd.Args[2] == siteregistry.Unit:
			run(ctx, t, registryText(t, h, ConfigFile, "", ""))
		}
		return nil
	})
	return s, r, h
}

// Files of the site's registry on its host.
const (
	ConfigFile     = siteregistry.ConfigDir + "/config.yaml"
	PushConfigFile = siteregistry.ConfigDir + "/push.yaml"
)

// leadPushes leads connections from a host to its loopback address, which all hosts of a test share, to another one.
func leadPushes(h *Rooted, push, to string) {
	h.Answer(host.HelperPath, func(ctx context.Context, cmd host.Cmd) error {
		if len(cmd.Args) > 2 && cmd.Args[1] == "dial" && cmd.Args[2] == push {
			cmd.Args = []string{cmd.Args[0], "dial", to}
		}
		return h.Helper(ctx, cmd)
	})
}

// MustAccess returns the access of nodes to the site's registry.
func MustAccess(t *testing.T, r *engine.Run) task.RegistryAccess {
	t.Helper()
	access, err := r.Access()
	if err != nil {
		t.Fatal(err)
	}
	return access
}

// registryText returns a configuration that lies on the host, for this machine's directories and another address.
func registryText(t *testing.T, h *Rooted, file, address, own string) string {
	t.Helper()
	text := h.Content(file)
	if !strings.Contains(text, "addr: "+address) {
		t.Errorf("%s does not listen at %s:\n%s", h.Name, address, text)
	}
	if address != "" {
		text = strings.Replace(text, "addr: "+address+"\n", "addr: "+own+"\n", 1)
	}
	for _, dir := range []string{siteregistry.ConfigDir, siteregistry.DataDir} {
		text = strings.ReplaceAll(text, dir, h.Root+dir)
	}
	return text
}

// runRegistry runs the registry as a library.
func runRegistry(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	config, err := configuration.Parse(strings.NewReader(text))
	if err != nil {
		t.Errorf("the registry refuses its configuration: %v", err)
		return
	}
	config.Log.Level = "panic"
	server, err := distribution.NewRegistry(context.WithoutCancel(ctx), config)
	if err != nil {
		t.Error(err)
		return
	}
	go func() { _ = server.ListenAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown(context.WithoutCancel(ctx)) })
}
