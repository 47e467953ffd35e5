package software

import (
	"context"
	"io"
	"slices"
)

// cluster are the images of the lab's cluster. Most are for the machine's architecture only, unless BothArches was
// asked for.
func (s *imageSet) cluster(ctx context.Context) []imageSpec {
	return slices.Concat(s.kubernetesImages(ctx, OwnRelease()), ownFlannel().images(ctx, s),
		[]imageSpec{s.labappImage(), s.haproxyImage(ctx, s.b.arches)})
}

// controlPlane are Kubernetes' own images of a version.
func (s *imageSet) controlPlane(ctx context.Context, r KubernetesRelease) []imageSpec {
	here, recipe, version := s.b.arches, r.recipe("kubernetes"), r.Version
	k8s := func(command string) func(arch string) ([]*layer, error) {
		return func(arch string) ([]*layer, error) {
			return s.stack(func() (*layer, error) { return s.command(recipe, arch, "/usr/local/bin", command) })
		}
	}
	return []imageSpec{
		{
			ref: "registry.k8s.io/kube-apiserver:" + version, attested: true, arches: here,
			layers: k8s("kube-apiserver"), entrypoint: []string{"/usr/local/bin/kube-apiserver"},
		},
		{
			ref: "registry.k8s.io/kube-controller-manager:" + version, docker: true, arches: here,
			layers: k8s("kube-controller-manager"), entrypoint: []string{"/usr/local/bin/kube-controller-manager"},
		},
		{
			ref: "registry.k8s.io/kube-scheduler:" + version, docker: true, single: len(here) == 1, arches: here,
			layers: k8s("kube-scheduler"), entrypoint: []string{"/usr/local/bin/kube-scheduler"},
		},
		{
			ref: "registry.k8s.io/kube-proxy:" + version, docker: true, arches: here,
			entrypoint: []string{"/usr/local/bin/kube-proxy"},
			layers: func(arch string) ([]*layer, error) {
				return s.stack(
					func() (*layer, error) { return s.userland(ctx, arch) },
					func() (*layer, error) { return s.command(recipe, arch, "/usr/local/bin", "kube-proxy") },
				)
			},
		},
	}
}

// demo are the images of the small build, for two architectures: with Docker's media types, with a zstd layer, and with
// attestations as BuildKit makes them. They share layers.
func (s *imageSet) demo() []imageSpec {
	probe := imageSpec{
		ref: "ghcr.io/lab/probe:" + LabappVersion, attested: true, arches: arches(),
		entrypoint: []string{"/bin/labapp"}, cmd: []string{"sleep"},
		layers: func(arch string) ([]*layer, error) {
			return s.stack(func() (*layer, error) { return s.command("labapp", arch, "/bin", "labapp") })
		},
	}
	return []imageSpec{probe, s.pauseImage(PauseVersion), s.labappImage()}
}

// etcdImage has the server of a recipe and the release's etcdctl.
func (s *imageSet) etcdImage(on []string, tag, server string, release KubernetesRelease) imageSpec {
	return imageSpec{
		ref: "registry.k8s.io/etcd:" + tag, docker: true, arches: on,
		entrypoint: []string{"etcd"},
		layers: func(arch string) ([]*layer, error) {
			return s.stack(
				func() (*layer, error) { return s.command(server, arch, "/usr/local/bin", "etcd") },
				func() (*layer, error) {
					return s.command(release.recipe("etcdctl"), arch, "/usr/local/bin",
						"etcdctl")
				},
			)
		},
	}
}

func (s *imageSet) coreDNSImage(on []string, r KubernetesRelease) imageSpec {
	return imageSpec{
		ref: "registry.k8s.io/coredns/coredns:" + r.CoreDNS, docker: true, arches: on, entrypoint: []string{"/coredns"},
		user: "nonroot:nonroot",
		layers: func(arch string) ([]*layer, error) {
			return s.stack(func() (*layer, error) {
				// As published: it is nobody special, and runtimes differ in whether anybody may listen on port 53.
				return s.layer(r.recipe("coredns")+arch, entry{
					Name: "coredns",
					From: s.b.command(r.recipe("coredns"), arch, "coredns"), Binds: true,
				})
			})
		},
	}
}

func (s *imageSet) pauseImage(version string) imageSpec {
	return imageSpec{
		ref: "registry.k8s.io/pause:" + version, docker: true, arches: arches(), entrypoint: []string{"/pause"},
		user: "65535:65535",
		layers: func(arch string) ([]*layer, error) {
			l, err := s.command("pause", arch, "", "pause")
			return []*layer{l}, err
		},
	}
}

// labappImage has a zstd layer, as some publishers make them now.
func (s *imageSet) labappImage() imageSpec {
	return imageSpec{
		ref: "docker.io/lab/labapp:1", arches: arches(), entrypoint: []string{"/labapp"}, cmd: []string{"serve"},
		user: "65532:65532",
		layers: func(arch string) ([]*layer, error) {
			return s.stack(func() (*layer, error) {
				return s.once("labapp-"+arch, true, func(w io.Writer) error {
					return writeTar(w, []entry{{Name: "labapp", From: s.b.command("labapp", arch, "labapp")}})
				})
			})
		},
	}
}

// haproxyImage is Debian's haproxy under the name that the catalog has for Docker's image.
func (s *imageSet) haproxyImage(ctx context.Context, on []string) imageSpec {
	return imageSpec{
		ref: "docker.io/library/haproxy:" + HAProxyImageTag, attested: true, arches: on,
		entrypoint: []string{"haproxy"}, user: "99:99",
		layers: func(arch string) ([]*layer, error) {
			return s.stack(func() (*layer, error) {
				return s.debian(ctx, arch, "haproxy",
					"haproxy,base-files,netbase")
			})
		},
	}
}
