package software

import (
	"context"
	_ "embed"
	"runtime"
)

// Hybridnet is the pod network of this name. Its files and its chart have to be given.
const Hybridnet Extra = "hybridnet"

// HybridnetVersion is the chart's, which the cluster file names; the image has its own.
const HybridnetVersion = "v0.6.8"

const hybridnetImage = "docker.io/hybridnetdev/hybridnet:v0.8.8"

//go:embed hybridnet.go
var hybridnetSource string

// HybridnetGiven are the files that have to be given.
func HybridnetGiven() []string {
	return []string{
		filesOf(hybridnetImage),
		"github.com/alibaba/hybridnet/releases/download/helm-chart-0.6.8/hybridnet-0.6.8.tgz",
	}
}

// hybridnet is the image of all its pods. Its daemon calls ip, tc, iptables and ipset.
func (s *imageSet) hybridnet(ctx context.Context) imageSpec {
	plugins := func(arch string) (*layer, error) {
		var plugins []entry
		for _, plugin := range []string{"loopback", "bandwidth"} {
			plugins = append(plugins, entry{Name: "cni-plugins/" + plugin, From: s.b.command("cni", arch, plugin)})
		}
		return s.layer("hybridnet's plugins"+arch, plugins...)
	}
	return imageSpec{
		ref: hybridnetImage, arches: []string{runtime.GOARCH}, cmd: []string{"/bin/sh"},
		layers: func(arch string) ([]*layer, error) {
			return s.stack(
				func() (*layer, error) { return s.calicoTools(ctx, arch) },
				func() (*layer, error) { return plugins(arch) },
				func() (*layer, error) { return s.givenFiles(hybridnetImage) },
			)
		},
	}
}
