package software

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FlannelNext is the newest release of flannel that the Go proxy has. It has none of a later minor release.
const FlannelNext Extra = "flannel-next"

// Versions of FlannelNext.
const (
	FlannelNextVersion     = "v0.28.10"
	flannelNextCNIImageTag = "v1.9.1-flannel3" // what its chart asks for
)

//go:embed flannel.go
var flannelSource string

// A flannelRelease is a release of flannel, and how its images are made.
type flannelRelease struct {
	version, pluginTag string
	daemon, plugin     recipe
	// programs are the daemon's commands by their places in its image.
	programs map[string]string
}

// ownFlannel returns the release that every build of the lab has.
func ownFlannel() flannelRelease {
	return flannelRelease{
		version: FlannelVersion, pluginTag: FlannelCNIImageTag, daemon: flanneld("flanneld", FlannelVersion),
		plugin:   flannelPlugin(),
		programs: map[string]string{"opt/bin/flanneld": "flanneld"},
	}
}

// nextFlannel returns FlannelNext. Its chart's init container runs a program of its own, and its configuration is of
// CNI 1.0.0: the plugin is built with a library that knows that.
func nextFlannel() flannelRelease {
	r := flannelRelease{
		version: FlannelNextVersion, pluginTag: flannelNextCNIImageTag,
		daemon: flanneld("flanneld-next", FlannelNextVersion), plugin: flannelPlugin(),
		programs: map[string]string{"opt/bin/flanneld": "flannel", "opt/bin/install-conf": "install_conf"},
	}
	r.daemon.Packages = map[string]string{"flannel": ".", "install_conf": "./cmd/install_conf"} // as Go names them
	r.plugin.Name, r.plugin.ModEdit = "flannel-cni-next", []string{"-require=github.com/containernetworking/cni@v1.3.0"}
	return r
}

func (r flannelRelease) recipes() []recipe { return []recipe{r.daemon, r.plugin} }

// images returns flannel's two images.
func (r flannelRelease) images(ctx context.Context, s *imageSet) []imageSpec {
	on := s.b.arches
	return []imageSpec{
		{
			ref: "ghcr.io/flannel-io/flannel:" + r.version, arches: on, attested: true,
			entrypoint: []string{"/opt/bin/flanneld"},
			layers: func(arch string) ([]*layer, error) {
				var programs []entry
				for at, command := range r.programs {
					programs = append(programs, entry{Name: at, From: s.b.command(r.daemon.Name, arch, command)})
				}
				return s.stack(
					func() (*layer, error) { return s.userland(ctx, arch) }, s.busybox(ctx, arch),
					func() (*layer, error) { return s.layer(r.daemon.Name+arch, programs...) },
				)
			},
		},
		{
			ref: "ghcr.io/flannel-io/flannel-cni-plugin:" + r.pluginTag, arches: on, attested: true,
			layers: func(arch string) ([]*layer, error) {
				return s.stack(s.busybox(ctx, arch),
					func() (*layer, error) { return s.command(r.plugin.Name, arch, "", "flannel") })
			},
		},
	}
}

// chart returns the chart in the release's module, without its tests.
func (r flannelRelease) chart(ctx context.Context, b *builder) ([]entry, error) {
	dir, err := b.module(ctx, r.daemon.Module)
	if err != nil {
		return nil, err
	}
	chart, err := folder(os.DirFS(filepath.Join(dir, "chart", "kube-flannel")), ".", "flannel")
	if err != nil {
		return nil, fmt.Errorf("chart flannel: %w", err)
	}
	return slices.DeleteFunc(chart, func(e entry) bool { return strings.HasPrefix(e.Name, "flannel/tests/") }), nil
}

// chartFile returns the place of the release's chart on its upstream host.
func (r flannelRelease) chartFile() string {
	return githubRelease("flannel-io/flannel", r.version, "flannel.tgz")
}

// publish publishes the chart.
func (r flannelRelease) publish(ctx context.Context, f fileSet) error {
	chart, err := r.chart(ctx, f.b)
	if err != nil {
		return err
	}
	to, err := f.place(r.chartFile())
	if err != nil {
		return err
	}
	return archive(to, chart)
}
