package software

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// ManagementCluster are Cluster API's controllers and clusterctl, kkbundle's provider out of Options.Checkout, and
// cert-manager, which has to be given.
const ManagementCluster Extra = "cluster-api"

// Versions of a management cluster.
const (
	// ClusterAPIVersion is the release that provider/ is for, CertManagerVersion what its clusterctl installs with it.
	ClusterAPIVersion  = "v1.14.2"
	CertManagerVersion = "v1.21.1"
	// providerVersion is the catalog's: the checkout is published as that release.
	providerVersion = "v0.1.0"
)

//go:embed clusterapi.go
var clusterAPISource string

// CertManager are the files of cert-manager's release that have to be given: the programs of its images, and its
// objects.
func CertManager() []string {
	return append(certManagerPrograms(),
		"github.com/cert-manager/cert-manager/releases/download/"+CertManagerVersion+"/cert-manager.yaml")
}

func certManagerPrograms() []string {
	const image = "quay.io/jetstack/cert-manager-"
	return []string{
		image + "controller:" + CertManagerVersion, image + "webhook:" + CertManagerVersion,
		image + "cainjector:" + CertManagerVersion,
	}
}

// ClusterAPI is where BuildClusterAPI put Cluster API's controllers and their sources.
type ClusterAPI struct {
	Core, Bootstrap, ControlPlane string // programs
	// Module has the directories core, bootstrap/kubeadm and controlplane/kubeadm, with config/default of each for
	// kustomize.
	Module string
}

const clusterAPIModule = "sigs.k8s.io/cluster-api@" + ClusterAPIVersion

// A controller is one of Cluster API's three: its recipe, its directory in the module, its image, and the file of its
// components.
type controller struct{ name, dir, image, components string }

func controllers() []controller {
	return []controller{
		{"capi-core", "core", "cluster-api-controller", "core-components.yaml"},
		{"capi-bootstrap", "bootstrap/kubeadm", "kubeadm-bootstrap-controller", "bootstrap-components.yaml"},
		{"capi-control-plane", "controlplane/kubeadm", "kubeadm-control-plane-controller", "control-plane-components.yaml"},
	}
}

// clusterAPI is the recipe of a program. The module's go.mod takes its API from a directory that the module does not
// have; the API is a module of the same version.
func clusterAPI(name, pkg string) recipe {
	const api = "sigs.k8s.io/cluster-api/api"
	return recipe{
		Name: name, Module: clusterAPIModule, Copy: []string{"."},
		ModEdit:  []string{"-dropreplace=" + api, "-require=" + api + "@" + ClusterAPIVersion},
		Mod:      "mod",
		Packages: map[string]string{name: pkg},
	}
}

// clusterAPIs are the recipes of the controllers and of clusterctl.
func clusterAPIs() []recipe {
	const version = "-X sigs.k8s.io/cluster-api/version."
	cli := clusterAPI("clusterctl", "./cmd/clusterctl")
	cli.LDFlags = version + "gitVersion=" + ClusterAPIVersion + " " + version + "gitMajor=1 " + version + "gitMinor=14"
	list := []recipe{cli}
	for _, c := range controllers() {
		list = append(list, clusterAPI(c.name, "./"+c.dir))
	}
	return list
}

// clusterAPI publishes a release of Cluster API, with the components that its makers have kustomize write, and one of
// kkbundle with the provider's files.
func (f fileSet) clusterAPI(ctx context.Context, arch string) error {
	module, err := f.b.module(ctx, clusterAPIModule)
	if err != nil {
		return err
	}
	release := func(name string) string { return githubRelease("kubernetes-sigs/cluster-api", ClusterAPIVersion, name) }
	for _, c := range controllers() {
		cmd := exec.CommandContext(ctx, f.b.command(OwnRelease().recipe("kubernetes"), arch, "kubectl"), "kustomize",
			filepath.Join(module, c.dir, "config", "default"))
		cmd.Stderr = f.b.log
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("components of %s: %w", c.name, err)
		}
		if err := f.text(release(c.components), released(string(out))); err != nil {
			return err
		}
	}
	metadata, err := os.ReadFile(filepath.Join(module, "metadata.yaml"))
	if err != nil {
		return err
	}
	if err := f.text(release("metadata.yaml"), string(metadata)); err != nil {
		return err
	}
	if _, err = f.link(release("clusterctl-linux-"+arch), f.b.command("clusterctl", arch, "clusterctl")); err != nil {
		return err
	}
	return f.provider()
}

var stagedImage = regexp.MustCompile(`gcr\.io/k8s-staging-cluster-api/([a-z-]+):\S+`)

// released makes components those of a release, as the target manifest-modification of their Makefile does.
func released(components string) string {
	components = stagedImage.ReplaceAllString(components, "registry.k8s.io/cluster-api/$1:"+ClusterAPIVersion)
	return strings.ReplaceAll(components, "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")
}

// providerFiles are the provider's in the checkout, as the target dist of the Makefile publishes them.
func (b *builder) providerFiles() ([]string, error) {
	list := []string{"provider/config/infrastructure-components.yaml", "provider/config/metadata.yaml"}
	templates, err := fs.Glob(os.DirFS(b.checkout), "provider/templates/cluster*.yaml")
	return append(list, templates...), err
}

// providerPrograms are those of the provider's image, in a checkout.
func providerPrograms() []string { return []string{"bin/kkbundle-provider", "bin/kkbundle"} }

const providerImage = "ghcr.io/kkbundle/provider:"

// provider publishes the provider's files as `make dist` writes them.
func (f fileSet) provider() error {
	files, err := f.b.providerFiles()
	if err != nil {
		return err
	}
	sums := ""
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(f.b.checkout, name))
		if err != nil {
			return err
		}
		to := kkbundleRelease(path.Base(name))
		text := strings.Replace(string(data), providerImage+"dev\n", providerImage+providerVersion+"\n", 1)
		if err := f.text(to, text); err != nil {
			return err
		}
		sum, err := sumOf(filepath.Join(f.dir, filepath.FromSlash(to)))
		if err != nil {
			return err
		}
		sums += sum + "  " + path.Base(name) + "\n"
	}
	return f.text(kkbundleRelease("SHA256SUMS"), sums)
}

func kkbundleRelease(name string) string {
	return githubRelease("kkbundle/kkbundle", providerVersion, name)
}

// checkoutState changes with the files of the checkout that the extra has.
func (b *builder) checkoutState() ([]string, error) {
	if b.checkout == "" {
		return nil, errors.New("the extra " + string(ManagementCluster) + " needs Options.Checkout")
	}
	files, err := b.providerFiles()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, name := range append(files, providerPrograms()...) {
		info, err := os.Stat(filepath.Join(b.checkout, name))
		if err != nil {
			return nil, fmt.Errorf("%w: run make e2e-capi", err)
		}
		list = append(list, fmt.Sprint(name, info.Size(), info.ModTime().UnixNano()))
	}
	return list, nil
}

// clusterAPI are the images of Cluster API's controllers, of the provider, and of cert-manager.
func (s *imageSet) clusterAPI(on []string) []imageSpec {
	list := []imageSpec{{
		ref: providerImage + providerVersion, arches: on, entrypoint: []string{"/usr/bin/manager"}, user: "65532:65532",
		layers: func(string) ([]*layer, error) {
			return s.stack(func() (*layer, error) {
				from := func(name string) string { return filepath.Join(s.b.checkout, "bin", name) }
				return s.layer("provider",
					entry{Name: "usr/bin/manager", From: from("kkbundle-provider"), Mode: 0o755},
					entry{Name: "usr/local/bin/kkbundle", From: from("kkbundle"), Mode: 0o755})
			})
		},
	}}
	for _, c := range controllers() {
		list = append(list, imageSpec{
			ref: "registry.k8s.io/cluster-api/" + c.image + ":" + ClusterAPIVersion, arches: on, attested: true,
			entrypoint: []string{"/manager"}, user: "65532",
			layers: func(arch string) ([]*layer, error) {
				return s.stack(func() (*layer, error) {
					return s.layer(c.name+arch, entry{Name: "manager", From: s.b.command(c.name, arch, c.name)})
				})
			},
		})
	}
	for _, program := range certManagerPrograms() {
		name, _, _ := strings.Cut(strings.TrimPrefix(path.Base(program), "cert-manager-"), ":")
		at := "app/cmd/" + name + "/" + name
		list = append(list, imageSpec{
			ref: program, arches: on, entrypoint: []string{"/" + at}, user: "1000",
			layers: func(string) ([]*layer, error) {
				return s.stack(func() (*layer, error) { return s.given(program, at) })
			},
		})
	}
	return list
}

// BuildClusterAPI makes the controllers that are not there yet. Concurrent calls, and those of Build, wait for each
// other.
func BuildClusterAPI(ctx context.Context, log io.Writer) (c *ClusterAPI, err error) {
	dir, err := DefaultDir()
	if err != nil {
		return nil, err
	}
	b := &builder{log: log, dir: dir, bin: map[string]string{}}
	unlock, err := lock(ctx, dir, b.say)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := b.sweep(); err != nil {
		return nil, err
	}
	c = &ClusterAPI{}
	to := []*string{&c.Core, &c.Bootstrap, &c.ControlPlane}
	for i, one := range controllers() {
		bin, err := b.compile(ctx, clusterAPI(one.name, "./"+one.dir), runtime.GOARCH)
		if err != nil {
			return nil, err
		}
		*to[i] = filepath.Join(bin, one.name)
	}
	c.Module, err = b.module(ctx, clusterAPIModule)
	return c, err
}
