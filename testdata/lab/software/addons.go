package software

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Versions of the addons: the newest that the Go proxy has with what the modules have of charts. Multus' is the
// catalog's.
const (
	MetricsServerVersion      = "v0.9.0"
	MetricsServerChartVersion = "3.13.1" // in the module of that version
	MultusVersion             = "v4.2.4"
	LocalPathVersion          = "v0.0.30"
	LocalPVVersion            = "4.0.0" // of what has to be given
	LocalPVToolsVersion       = "4.0.0" // of the image for the pods that make directories
	SpegelVersion             = "v0.7.4"
	SpegelChartVersion        = "0.7.4"
)

// What has to be given as programs: no module has them. They lie below the given directory under their images' names.
const (
	LocalPVProgram = "docker.io/openebs/provisioner-localpv:" + LocalPVVersion
	LocalPVChart   = "openebs.github.io/dynamic-localpv-provisioner/localpv-provisioner-" + LocalPVVersion + ".tgz"
	KubeVIPProgram = "ghcr.io/kube-vip/kube-vip:" + KubeVIPVersion
	SpegelProgram  = "ghcr.io/spegel-org/spegel:" + SpegelVersion
	SpegelChart    = "charts.lab.example/spegel/spegel-" + SpegelChartVersion + ".tgz"
)

//go:embed addons.go
var addonsSource string

func metricsServer() recipe {
	return recipe{
		Name: "metrics-server", Module: "sigs.k8s.io/metrics-server@" + MetricsServerVersion, Mod: "readonly",
		LDFlags:  "-X k8s.io/client-go/pkg/version.gitVersion=" + MetricsServerVersion,
		Packages: map[string]string{"metrics-server": "./cmd/metrics-server"},
	}
}

func multusPlugin() recipe {
	packages := map[string]string{}
	for _, c := range []string{"multus", "install_multus", "thin_entrypoint", "passthru-cni"} {
		packages[c] = "./cmd/" + c
	}
	return recipe{
		Name: "multus", Module: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4@" + MultusVersion, Mod: "readonly",
		LDFlags:  "-X gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/multus.version=" + MultusVersion,
		Packages: packages,
	}
}

func localPath() recipe {
	return recipe{
		Name: "local-path-provisioner", Module: "github.com/rancher/local-path-provisioner@" + LocalPathVersion,
		Mod:      "readonly",
		LDFlags:  "-X main.VERSION=" + LocalPathVersion,
		Packages: map[string]string{"local-path-provisioner": "."},
	}
}

// addons publishes charts that modules have.
func (f fileSet) addons(ctx context.Context) error {
	metrics, err := f.b.moduleChart(ctx, metricsServer(), "charts/metrics-server")
	if err != nil {
		return err
	}
	to, err := f.place(githubRelease("kubernetes-sigs/metrics-server", "metrics-server-helm-chart-"+
		MetricsServerChartVersion, "metrics-server-"+MetricsServerChartVersion+".tgz"))
	if err != nil {
		return err
	}
	if err := archive(to, metrics); err != nil {
		return fmt.Errorf("chart of metrics-server: %w", err)
	}
	volumes, err := f.b.moduleChart(ctx, localPath(), "deploy/chart/local-path-provisioner")
	if err != nil {
		return err
	}
	// Its makers have it in their repository alone: here it is in one of charts.
	file := "local-path-provisioner-" + strings.TrimPrefix(LocalPathVersion, "v") + ".tgz"
	return f.chart("charts.lab.example/local-path", file, "charts.lab.example/local-path/"+file, volumes)
}

// moduleChart returns a chart that a recipe's module has.
func (b *builder) moduleChart(ctx context.Context, r recipe, dir string) ([]entry, error) {
	module, err := b.module(ctx, r.Module)
	if err != nil {
		return nil, err
	}
	entries, err := folder(os.DirFS(filepath.Join(module, filepath.FromSlash(dir))), ".", path.Base(dir))
	if err != nil {
		return nil, fmt.Errorf("chart of %s: %w", r.Name, err)
	}
	return entries, nil
}

// extra are an extra's images.
func (s *imageSet) extra(ctx context.Context, e Extra) []imageSpec {
	here := []string{runtime.GOARCH}
	one := func(ref, recipe, dir, user string) imageSpec {
		return imageSpec{
			ref: ref, arches: here, attested: true, entrypoint: []string{dir + "/" + recipe}, user: user,
			layers: func(arch string) ([]*layer, error) {
				return s.stack(s.busybox(ctx, arch),
					func() (*layer, error) { return s.command(recipe, arch, dir, recipe) })
			},
		}
	}
	if r, ok := KubernetesReleases()[e]; ok {
		return s.kubernetesImages(ctx, r)
	}
	if r, ok := ciliumReleases()[e]; ok {
		return r.images(ctx, s)
	}
	if r, ok := CalicoReleases()[e]; ok {
		return r.images(ctx, s)
	}
	switch e {
	case FlannelNext:
		return nextFlannel().images(ctx, s)
	case Hybridnet:
		return []imageSpec{s.hybridnet(ctx)}
	case Addons:
		volumes := one("docker.io/rancher/local-path-provisioner:"+LocalPathVersion, "local-path-provisioner",
			"/usr/bin", "")
		volumes.entrypoint, volumes.cmd = nil, []string{"local-path-provisioner"}
		return []imageSpec{
			one("registry.k8s.io/metrics-server/metrics-server:"+MetricsServerVersion, "metrics-server", "", "65534"),
			s.multusImage(here), volumes, s.toolsImage(ctx, "docker.io/library/busybox:1.37.0", here),
		}
	case LocalPV:
		return []imageSpec{s.localPVImage(ctx, here), s.toolsImage(ctx, "docker.io/openebs/linux-utils:"+
			LocalPVToolsVersion, here)}
	case ManagementCluster:
		return s.clusterAPI(here)
	case KubeVIP:
		return []imageSpec{s.programImage(KubeVIPProgram, "kube-vip", here)}
	case Spegel:
		return []imageSpec{s.programImage(SpegelProgram, "spegel", here, entry{
			// Spegel runs in an image of its own base alone, which it knows by this.
			Name: "etc/os-release", Text: "PRETTY_NAME=\"Distroless\"\nNAME=\"Debian GNU/Linux\"\nID=\"debian\"\n",
		})}
	}
	return nil
}

// multusImage has its programs where the published image has them, for install_multus looks there.
func (s *imageSet) multusImage(on []string) imageSpec {
	return imageSpec{
		ref: "ghcr.io/k8snetworkplumbingwg/multus-cni:" + MultusVersion, arches: on, attested: true,
		entrypoint: []string{"/thin_entrypoint"},
		layers: func(arch string) ([]*layer, error) {
			const bin = "usr/src/multus-cni/bin/"
			from := func(command string) string { return s.b.command("multus", arch, command) }
			return s.stack(func() (*layer, error) {
				return s.layer("multus"+arch,
					entry{Name: bin + "multus", From: from("multus")},
					entry{Name: bin + "passthru", From: from("passthru-cni")},
					entry{Name: "install_multus", From: from("install_multus")},
					entry{Name: "thin_entrypoint", From: from("thin_entrypoint")})
			})
		},
	}
}

// toolsImage is a shell and its tools, under a name that somebody has for such an image.
func (s *imageSet) toolsImage(ctx context.Context, ref string, on []string) imageSpec {
	return imageSpec{
		ref: ref, arches: on, entrypoint: nil, cmd: []string{"sh"},
		layers: func(arch string) ([]*layer, error) { return s.stack(s.busybox(ctx, arch)) },
	}
}

// localPVImage has pgrep, which the chart's probe wants.
func (s *imageSet) localPVImage(ctx context.Context, on []string) imageSpec {
	return imageSpec{
		ref: LocalPVProgram, arches: on, entrypoint: []string{"/usr/local/bin/provisioner-localpv"},
		layers: func(arch string) ([]*layer, error) {
			return s.stack(
				func() (*layer, error) { return s.debian(ctx, arch, "procps", "procps,base-files,netbase") },
				s.busybox(ctx, arch),
				func() (*layer, error) { return s.given(LocalPVProgram, "usr/local/bin/provisioner-localpv") },
			)
		},
	}
}

// programImage has a program that somebody has put into the given directory, and few other files.
func (s *imageSet) programImage(program, at string, on []string, files ...entry) imageSpec {
	return imageSpec{
		ref: program, arches: on, entrypoint: []string{"/" + at},
		layers: func(string) ([]*layer, error) {
			return s.stack(func() (*layer, error) { return s.given(program, at, files...) })
		},
	}
}

// given is the layer of a program that somebody has put into the given directory, and of files beside it.
func (s *imageSet) given(program, at string, files ...entry) (*layer, error) {
	file, there, err := Given(program)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, fmt.Errorf("%s is not there: it cannot be built here, and has to be given", file)
	}
	return s.layer("given "+program, append(files, entry{Name: at, From: file, Mode: 0o755})...)
}

// withImages returns content that has the extras' images besides base's; base if they have none.
func (b *builder) withImages(ctx context.Context, base string, with []Extra) (string, error) {
	with = slices.DeleteFunc(slices.Clone(with),
		func(e Extra) bool { return len((&imageSet{b: b}).extra(ctx, e)) == 0 })
	if len(with) == 0 {
		return base, nil
	}
	inputs := []any{
		filepath.Base(base), with, b.bin, addonsSource, kubernetesSource, flannelSource, ciliumSource, calicoSource,
		hybridnetSource,
	}
	if slices.Contains(with, ManagementCluster) {
		state, err := b.checkoutState()
		if err != nil {
			return "", err
		}
		inputs = append(inputs, clusterAPISource, state)
	}
	given := append(certManagerPrograms(), LocalPVProgram, KubeVIPProgram, SpegelProgram)
	given = append(given, HybridnetGiven()...)
	for _, r := range CalicoReleases() {
		given = append(given, r.Given()...)
	}
	slices.Sort(given)
	for _, program := range given {
		state, err := givenState(program)
		if err != nil {
			return "", err
		}
		inputs = append(inputs, state)
	}
	key, err := keyOf(inputs...)
	if err != nil {
		return "", err
	}
	return b.output("upstream-with", key, func(tmp string) error {
		for _, same := range []string{"files", "images.json"} {
			if err := os.Symlink(filepath.Join(base, same), filepath.Join(tmp, same)); err != nil {
				return err
			}
		}
		registry := filepath.Join(tmp, "registry")
		if err := linkTree(filepath.Join(base, "registry"), registry); err != nil {
			return err
		}
		return b.intoRegistry(ctx, registry, func(ctx context.Context, s *imageSet) error {
			for _, e := range with {
				for _, spec := range s.extra(ctx, e) {
					if _, err := s.publish(ctx, spec); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// givenState changes with the file, for the key of what is made of it.
func givenState(program string) (string, error) {
	file, there, err := Given(program)
	if err != nil || !there {
		return "", err
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(info.Size(), info.ModTime().Format(time.RFC3339Nano)), nil
}

// linkTree makes a copy of a directory whose files are links: the registry's storage never writes into a file that is
// there.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o755)
		}
		return os.Link(name, filepath.Join(to, rel))
	})
}
