package software

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Releases of Kubernetes besides the lab's own. A test that asks for one waits until its seven programs are compiled.
const (
	Kubernetes133  Extra = "kubernetes-1.33"
	Kubernetes134  Extra = "kubernetes-1.34"
	Kubernetes1344 Extra = "kubernetes-1.34.4" // the next patch release of Kubernetes134
	Kubernetes135  Extra = "kubernetes-1.35"
	Kubernetes137  Extra = "kubernetes-1.37"
)

// A KubernetesRelease is a release of Kubernetes, compiled from its own modules, with the releases that its kubeadm
// asks for.
type KubernetesRelease struct {
	Version string
	// Etcd is a release, EtcdImage the tag of its image.
	Etcd, EtcdImage string
	CoreDNS, Pause  string
	// EtcdTools is the release of etcdctl and etcdutl if the Go proxy has none of Etcd's.
	EtcdTools string
	// Through is the release of etcd that comes between two minor releases of Kubernetes, of which this is one.
	Through string
	// suffix ends the names of its recipes.
	suffix string
}

//go:embed kubernetes.go
var kubernetesSource string

// OwnRelease returns the release that every build of the lab has.
func OwnRelease() KubernetesRelease {
	return KubernetesRelease{
		Version: KubernetesVersion, Etcd: EtcdVersion, EtcdImage: EtcdImageTag,
		CoreDNS: CoreDNSVersion, Pause: PauseVersion,
	}
}

// KubernetesReleases returns the genuine releases that extras add.
func KubernetesReleases() map[Extra]KubernetesRelease {
	releases := map[Extra]KubernetesRelease{
		Kubernetes133: {
			Version: "v1.33.13", Etcd: "v3.5.24", EtcdImage: "3.5.24-0", CoreDNS: "v1.12.0", Pause: "3.10",
			EtcdTools: "v3.5.33", Through: "v3.5.32",
		},
		Kubernetes134:  {Version: "v1.34.3", Etcd: "v3.6.5", EtcdImage: "3.6.5-0", CoreDNS: "v1.12.1", Pause: "3.10.1"},
		Kubernetes1344: {Version: "v1.34.4", Etcd: "v3.6.5", EtcdImage: "3.6.5-0", CoreDNS: "v1.12.1", Pause: "3.10.1"},
		Kubernetes135:  {Version: "v1.35.4", Etcd: "v3.6.6", EtcdImage: "3.6.6-0", CoreDNS: "v1.13.1", Pause: "3.10.1"},
		Kubernetes137: {
			Version: "v1.37.2", Etcd: "v3.7.0", EtcdImage: "3.7.0-0", CoreDNS: "v1.14.6", Pause: "3.10.2",
			Through: "v3.6.13",
		},
	}
	for extra, r := range releases {
		r.suffix = strings.TrimPrefix(string(extra), "kubernetes")
		releases[extra] = r
	}
	return releases
}

// recipes of the release. Those of the lab's own release keep their names, and so the programs made before.
func (r KubernetesRelease) recipes() []recipe {
	tools := cmp.Or(r.EtcdTools, r.Etcd)
	list := []recipe{
		kubernetes(r.Version), etcd("etcd", "server", r.Etcd), etcd("etcdctl", "etcdctl", tools), etcdutl(tools),
		coredns(r.CoreDNS),
	}
	if r.Through != "" {
		through := etcd("etcd", "server", r.Through)
		through.Name = etcdThrough
		list = append(list, through)
	}
	for i := range list {
		list[i].Name = r.recipe(list[i].Name)
	}
	return list
}

// etcdThrough is the recipe of KubernetesRelease.Through.
const etcdThrough = "etcd-through"

// recipe returns the name of the release's recipe for what the lab's own release calls name.
func (r KubernetesRelease) recipe(name string) string { return name + r.suffix }

// majorMinor returns 1.35 of v1.35.4.
func majorMinor(version string) string {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// matches compares the release with the constants of the kubeadm that is compiled.
func (r KubernetesRelease) matches(ctx context.Context, b *builder) error {
	dir, err := b.module(ctx, "k8s.io/kubernetes@"+r.Version)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "cmd/kubeadm/app/constants/constants.go"))
	if err != nil {
		return fmt.Errorf("constants of kubeadm %s: %w", r.Version, err)
	}
	return r.compare(string(text))
}

func (r KubernetesRelease) compare(constants string) error {
	var errs []error
	for name, want := range map[string]string{
		"DefaultEtcdVersion": r.EtcdImage, "CoreDNSVersion": r.CoreDNS,
		"PauseVersion": r.Pause,
	} {
		found := regexp.MustCompile(`(?m)^\s*` + name + `\s*=\s*"([^"]*)"`).FindStringSubmatch(constants)
		if found == nil || found[1] != want {
			errs = append(errs, fmt.Errorf("kubeadm %s has %s %q, and the lab's recipe says %q", r.Version, name, found,
				want))
		}
	}
	return errors.Join(errs...)
}

// publish publishes the release's programs for nodes and etcd's archive.
func (r KubernetesRelease) publish(f fileSet, arches []string) error {
	err := f.etcd(arches, r.Etcd, r.recipe("etcd"), r)
	if r.Through != "" {
		err = errors.Join(err, f.etcd(arches, r.Through, r.recipe(etcdThrough), r))
	}
	for _, arch := range arches {
		err = errors.Join(err, f.kubernetes(arch, r))
	}
	return err
}

// kubernetesImages returns the images of a release.
func (s *imageSet) kubernetesImages(ctx context.Context, r KubernetesRelease) []imageSpec {
	on := s.b.arches
	images := append(s.controlPlane(ctx, r), s.etcdImage(on, r.EtcdImage, r.recipe("etcd"), r), s.coreDNSImage(on, r),
		s.pauseImage(r.Pause))
	if r.Through != "" {
		images = append(images, s.etcdImage(on, strings.TrimPrefix(r.Through, "v")+"-0", r.recipe(etcdThrough), r))
	}
	return images
}
