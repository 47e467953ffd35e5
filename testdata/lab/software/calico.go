package software

import (
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// Releases of Calico: two minor releases, one after the other. Their programs, files and charts have to be given.
const (
	Calico331 Extra = "calico-3.31"
	Calico332 Extra = "calico-3.32"
)

//go:embed calico.go
var calicoSource string

// calicoPackages are what calico-node calls on nodes: bird for BGP, runit to keep its parts running, the tools of packet
// filters and BPF.
const calicoPackages = "bird,runit,iptables,nftables,ipset,conntrack,bpftool,kmod,iproute2,procps,bash,dash,coreutils,debianutils,findutils,grep,sed,mawk,util-linux,mount,base-files,netbase"

// A CalicoRelease is a release of Calico, with the operator that its chart names.
type CalicoRelease struct {
	Version, Operator string
	// definitions means that its custom resource definitions are a chart of their own.
	definitions bool
}

// CalicoReleases returns the extras that are releases of Calico.
func CalicoReleases() map[Extra]CalicoRelease {
	return map[Extra]CalicoRelease{
		Calico331: {Version: "v3.31.7", Operator: "v1.40.15"},
		Calico332: {Version: "v3.32.1", Operator: "v1.42.3", definitions: true},
	}
}

// Given are the files of the release that have to be given.
func (r CalicoRelease) Given() []string {
	release := "github.com/projectcalico/calico/releases/download/" + r.Version + "/"
	files := []string{
		r.operator(), release + "calicoctl-linux-" + runtime.GOARCH, release + "SHA256SUMS",
		release + "tigera-operator-" + r.Version + ".tgz",
	}
	if r.definitions {
		files = append(files, release+"crd.projectcalico.org.v1-"+r.Version+".tgz")
	}
	for _, name := range []string{"node", "cni", "typha", "kube-controllers", "apiserver", "pod2daemon-flexvol"} {
		files = append(files, filesOf(r.ref(name)))
	}
	return files
}

func (r CalicoRelease) operator() string { return "quay.io/tigera/operator:" + r.Operator }

func (r CalicoRelease) ref(name string) string { return "quay.io/calico/" + name + ":" + r.Version }

// images are the release's. Those that the operator runs by no values of kkbundle are in the bundle nevertheless: they
// are empty here.
func (r CalicoRelease) images(ctx context.Context, s *imageSet) []imageSpec {
	here := []string{runtime.GOARCH}
	one := func(name, user string, entrypoint, cmd []string, more ...func(arch string) (*layer, error)) imageSpec {
		return imageSpec{
			ref: r.ref(name), arches: here, user: user, entrypoint: entrypoint, cmd: cmd,
			layers: func(arch string) ([]*layer, error) {
				var makers []func() (*layer, error)
				for _, make := range more {
					makers = append(makers, func() (*layer, error) { return make(arch) })
				}
				return s.stack(append(makers, func() (*layer, error) { return s.givenFiles(r.ref(name)) })...)
			},
		}
	}
	tools := func(arch string) (*layer, error) { return s.calicoTools(ctx, arch) }
	plugins := func(arch string) (*layer, error) {
		var plugins []entry
		for _, plugin := range []string{"host-local", "loopback", "portmap", "tuning"} {
			plugins = append(plugins, entry{Name: "opt/cni/bin/" + plugin, From: s.b.command("cni", arch, plugin)})
		}
		return s.layer("calico's plugins"+arch, plugins...)
	}
	images := []imageSpec{
		one("node", "", nil, []string{"start_runit"}, tools),
		one("cni", "", nil, []string{"/opt/cni/bin/install"}, plugins),
		one("typha", "999", nil, []string{"/usr/bin/calico-typha"}),
		one("kube-controllers", "999", []string{"/usr/bin/wrapper", "/usr/bin/kube-controllers"}, nil),
		one("apiserver", "10001:10001", []string{"/code/apiserver"}, nil),
		one("pod2daemon-flexvol", "", []string{"/usr/local/bin/flexvol.sh"}, nil, tools),
		{
			ref: r.operator(), arches: here, user: "10001:10001", entrypoint: []string{"/usr/bin/operator"},
			layers: func(string) ([]*layer, error) {
				return s.stack(func() (*layer, error) { return s.given(r.operator(), "usr/bin/operator") })
			},
		},
	}
	for _, name := range []string{"csi", "node-driver-registrar", "goldmane", "whisker", "whisker-backend"} {
		images = append(images, imageSpec{
			ref: r.ref(name), arches: here, layers: func(string) ([]*layer, error) { return s.stack() },
		})
	}
	return images
}

// calicoTools is the layer of the programs that calico-node calls.
func (s *imageSet) calicoTools(ctx context.Context, arch string) (*layer, error) {
	var links []entry
	for _, c := range []string{
		"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save",
		"ip6tables-restore",
	} {
		links = append(links, entry{Name: "usr/sbin/" + c, Link: "xtables-nft-multi"})
	}
	// start_runit looks for runsvdir with it. In Debian it is an alternative, which a package's scripts make.
	links = append(links, entry{Name: "usr/bin/which", Link: "which.debianutils"})
	return s.debian(ctx, arch, "calico", calicoPackages, links...)
}

// filesOf is where the files of an image lie that cannot be built here, as the image has them.
func filesOf(ref string) string { return ref + ".tar.gz" }

// givenFiles is the layer of an image's files that somebody has put into the given directory.
func (s *imageSet) givenFiles(ref string) (*layer, error) {
	file, there, err := Given(filesOf(ref))
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, fmt.Errorf("%s is not there: it cannot be built here, and has to be given", file)
	}
	return s.once("given "+ref, false, func(w io.Writer) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		unzipped, err := gzip.NewReader(f)
		if err != nil {
			return fmt.Errorf("given file %s: %w", file, err)
		}
		// A directory would take the place of a link that Debian's packages have there.
		keep := func(name string) bool { return !strings.HasSuffix(name, "/") }
		return errors.Join(normalTar(w, unzipped, keep, nil), unzipped.Close())
	})
}
