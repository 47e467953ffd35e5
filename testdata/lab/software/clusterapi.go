package software

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"runtime"
)

// ClusterAPIVersion is the release that provider/ is for.
const ClusterAPIVersion = "v1.14.2"

// ClusterAPI is where BuildClusterAPI put Cluster API's controllers and their sources.
type ClusterAPI struct {
	Core, Bootstrap, ControlPlane string // programs
	// Module has the directories core, bootstrap/kubeadm and controlplane/kubeadm, with config/default of each for
	// kustomize.
	Module string
}

// clusterAPI is the recipe of one of the three controllers. The module's go.mod takes its API from a directory that the
// module does not have; the API is a module of the same version.
func clusterAPI(name, pkg string) recipe {
	const api = "sigs.k8s.io/cluster-api/api"
	return recipe{
		Name: name, Module: "sigs.k8s.io/cluster-api@" + ClusterAPIVersion, Copy: []string{"."},
		ModEdit:  []string{"-dropreplace=" + api, "-require=" + api + "@" + ClusterAPIVersion},
		Mod:      "mod",
		Packages: map[string]string{name: pkg},
	}
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
	for _, one := range []struct {
		name, pkg string
		to        *string
	}{
		{"capi-core", "./core", &c.Core},
		{"capi-bootstrap", "./bootstrap/kubeadm", &c.Bootstrap},
		{"capi-control-plane", "./controlplane/kubeadm", &c.ControlPlane},
	} {
		bin, err := b.compile(ctx, clusterAPI(one.name, one.pkg), runtime.GOARCH)
		if err != nil {
			return nil, err
		}
		*one.to = filepath.Join(bin, one.name)
	}
	c.Module, err = b.module(ctx, "sigs.k8s.io/cluster-api@"+ClusterAPIVersion)
	return c, err
}
