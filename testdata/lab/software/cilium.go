package software

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Releases of Cilium: two minor releases, one after the other.
const (
	Cilium     Extra = "cilium"
	CiliumNext Extra = "cilium-next"
)

// Versions of Cilium and CiliumNext.
const (
	CiliumVersion     = "v1.19.6"
	CiliumNextVersion = "v1.20.2"
)

//go:embed cilium.go
var ciliumSource string

// ciliumPackages are what the agent's image has besides its own programs. The agent compiles its BPF programs on the
// node, with the compiler of the same version as upstream's.
const ciliumPackages = "clang-19,bpftool,iptables,ipset,kmod,iproute2,bash,dash,coreutils,findutils,grep,sed,util-linux,mount,base-files,netbase"

// A ciliumRelease is a release of Cilium.
type ciliumRelease struct{ version string }

// ciliumReleases returns the extras that are releases of Cilium.
func ciliumReleases() map[Extra]ciliumRelease {
	return map[Extra]ciliumRelease{Cilium: {CiliumVersion}, CiliumNext: {CiliumNextVersion}}
}

// recipe builds all programs at once: they share most packages. The tag leaves the clouds out of the operator, as
// upstream's generic one does. The Go proxy lacks two modules at the versions that CiliumNext asks for: BGP is of the
// release after it, the controllers of imported services are those of Cilium's release before.
func (r ciliumRelease) recipe() recipe {
	packages := map[string]string{}
	for name, dir := range map[string]string{
		"daemon": "daemon", "operator": "operator", "cilium-dbg": "cilium-dbg", "cilium-health": "cilium-health",
		"responder": "cilium-health/responder",
		"bugtool":   "bugtool", "cilium-cni": "plugins/cilium-cni", "mount": "tools/mount",
		"sysctlfix": "tools/sysctlfix", "hubble-relay": "hubble-relay",
	} {
		packages[name] = "./" + dir
	}
	made := recipe{
		Name: "cilium-" + majorMinor(r.version), Module: "github.com/cilium/cilium@" + r.version, Mod: "readonly",
		Tags:     "osusergo,ipam_provider_operator",
		LDFlags:  "-X github.com/cilium/cilium/pkg/version.ciliumVersion=" + strings.TrimPrefix(r.version, "v"),
		Packages: packages,
	}
	if r.version == CiliumNextVersion {
		made.Copy, made.Mod = []string{"."}, "mod"
		made.ModEdit = []string{
			"-require=github.com/osrg/gobgp/v4@v4.7.0",
			"-replace=sigs.k8s.io/mcs-api/controllers=sigs.k8s.io/mcs-api/controllers@v0.0.0-20260403094305-4b9911b73f14",
		}
	}
	return made
}

func (r ciliumRelease) recipes() []recipe { return []recipe{r.recipe(), cni()} }

// publish publishes the chart.
func (r ciliumRelease) publish(ctx context.Context, f fileSet) error {
	chart, err := f.b.moduleChart(ctx, r.recipe(), "install/kubernetes/cilium")
	if err != nil {
		return err
	}
	to, err := f.place("helm.cilium.io/cilium-" + strings.TrimPrefix(r.version, "v") + ".tgz")
	if err != nil {
		return err
	}
	return archive(to, chart)
}

// images returns the agent's image, the operator's and Hubble's relay.
func (r ciliumRelease) images(ctx context.Context, s *imageSet) []imageSpec {
	here := []string{runtime.GOARCH}
	one := func(name, program string) imageSpec {
		return imageSpec{
			ref: "quay.io/cilium/" + name + ":" + r.version, arches: here, attested: true,
			entrypoint: []string{"/usr/bin/" + program},
			layers: func(arch string) ([]*layer, error) {
				return s.stack(func() (*layer, error) {
					return r.programs(s, arch, map[string]string{"usr/bin/" + program: goName(program)})
				})
			},
		}
	}
	relay := one("hubble-relay", "hubble-relay")
	relay.user = "65532:65532"
	return []imageSpec{r.agent(ctx, s, here), one("operator-generic", "cilium-operator-generic"), relay}
}

// goName returns the name that Go gives to a program of Cilium.
func goName(program string) string {
	if program == "cilium-operator-generic" {
		return "operator"
	}
	return program
}

// programs is a layer of commands by their places in the image.
func (r ciliumRelease) programs(s *imageSet, arch string, commands map[string]string, more ...entry) (*layer, error) {
	name := r.recipe().Name
	for at, command := range commands {
		name += " " + at
		more = append(more, entry{Name: at, From: s.b.command(r.recipe().Name, arch, command)})
	}
	return s.layer(name+arch, more...)
}

// agent is the image of the agent and of the init containers.
func (r ciliumRelease) agent(ctx context.Context, s *imageSet, on []string) imageSpec {
	return imageSpec{
		ref: "quay.io/cilium/cilium:" + r.version, arches: on, attested: true, cmd: []string{"/usr/bin/cilium-dbg"},
		layers: func(arch string) ([]*layer, error) {
			return s.stack(
				func() (*layer, error) { return s.ciliumUserland(ctx, arch) },
				func() (*layer, error) { return r.sources(ctx, s) },
				func() (*layer, error) {
					return r.programs(s, arch, map[string]string{
						"usr/bin/cilium-agent": "daemon", "usr/bin/cilium-dbg": "cilium-dbg",
						"usr/bin/cilium-health":           "cilium-health",
						"usr/bin/cilium-health-responder": "responder", "usr/bin/cilium-bugtool": "bugtool",
						"usr/bin/cilium-mount": "mount", "usr/bin/cilium-sysctlfix": "sysctlfix",
						"opt/cni/bin/cilium-cni": "cilium-cni",
					}, entry{Name: "usr/bin/cilium", Link: "cilium-dbg"},
						entry{Name: "cni/loopback", From: s.b.command("cni", arch, "loopback")})
				},
			)
		},
	}
}

// sources is the layer of the BPF programs' sources, and of the scripts that the chart runs.
func (r ciliumRelease) sources(ctx context.Context, s *imageSet) (*layer, error) {
	dir, err := s.b.module(ctx, r.recipe().Module)
	if err != nil {
		return nil, err
	}
	entries, err := folder(os.DirFS(filepath.Join(dir, "bpf")), ".", "var/lib/cilium/bpf")
	if err != nil {
		return nil, fmt.Errorf("sources of Cilium's BPF programs: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool {
		return strings.HasPrefix(e.Name, "var/lib/cilium/bpf/tests/") ||
			strings.HasPrefix(e.Name, "var/lib/cilium/bpf/complexity-tests/")
	})
	for _, script := range []string{
		"images/cilium/init-container.sh", "plugins/cilium-cni/install-plugin.sh",
		"plugins/cilium-cni/cni-uninstall.sh",
	} {
		entries = append(entries, entry{
			Name: filepath.Base(script),
			From: filepath.Join(dir, filepath.FromSlash(script)),
		})
	}
	return s.layer(r.recipe().Name+" sources", entries...)
}

// compilesForTheNode matches files of compiler and linker that programs for BPF do not need.
var compilesForTheNode = regexp.MustCompile(
	`^usr/include/|^usr/lib/gcc/|\.a$|/lib(clang-19|asan|tsan|lsan|ubsan)\.so|^usr/lib/llvm-19/lib/(clang/|LLVMPolly)|^usr/bin/x86_64-linux-gnu-|/gprofng`)

// ciliumUserland is the layer of the compiler, iptables and other tools.
func (s *imageSet) ciliumUserland(ctx context.Context, arch string) (*layer, error) {
	const name = "cilium-userland"
	if l := s.made[name+arch]; l != nil {
		return l, nil
	}
	file, err := s.b.debianFiles(ctx, arch, name, ciliumPackages)
	if err != nil {
		return nil, err
	}
	links := []entry{{Name: "usr/bin/clang", Link: "../lib/llvm-19/bin/clang"}}
	for _, c := range []string{
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save",
		"ip6tables-restore",
	} {
		links = append(links, entry{Name: "usr/sbin/" + c, Link: "xtables-nft-multi"})
	}
	keep := func(name string) bool { return wanted(name) && !compilesForTheNode.MatchString(name) }
	return s.once(name+arch, false, func(w io.Writer) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		return errors.Join(normalTar(w, f, keep, links), f.Close())
	})
}
