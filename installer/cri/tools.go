package cri

import (
	"context"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// CrictlConfig is crictl's configuration file.
const CrictlConfig = "/etc/crictl.yaml"

// nerdctlConfig keeps the networks of nerdctl out of /etc/cni/net.d: containerd gives pods any network that lies there.
const nerdctlConfig = hostfile.Mark + `
namespace = "%s"
cni_path = "/opt/cni/bin"
cni_netconfpath = "/etc/nerdctl/cni"
`

// nerdctlNamespace is where nerdctl runs containers, beside those of pods.
const nerdctlNamespace = "k8s.io"

// ToolTasks installs the programs of cri.tools, configured for the nodes' runtime.
func ToolTasks(c *manifest.Cluster) []task.Task {
	if len(c.CRI.Tools) == 0 {
		return nil
	}
	var files []task.Place
	var texts []task.File
	leaves := task.Leaves{Paths: []string{CrictlConfig, "/etc/nerdctl"}}
	if slices.Contains(c.CRI.Tools, "crictl") {
		files = append(files, task.Place{
			Component: "crictl", Member: "crictl", Path: "/usr/local/bin/crictl",
			Mode: task.Executable,
		})
		socket := RuntimeOf(c).Socket
		// https://github.com/kubernetes-sigs/cri-tools/blob/master/docs/crictl.md
		texts = append(texts, task.File{
			Path: CrictlConfig, Mode: 0o644,
			Data: fmt.Appendf(nil, "%s\nruntime-endpoint: %s\nimage-endpoint: %s\ntimeout: 5\n", hostfile.Mark, socket,
				socket),
		})
	}
	if slices.Contains(c.CRI.Tools, "nerdctl") {
		files = append(files, task.Place{
			Component: "nerdctl", Member: "nerdctl", Path: "/usr/local/bin/nerdctl",
			Mode: task.Executable,
		})
		// https://github.com/containerd/nerdctl/blob/main/docs/config.md
		texts = append(texts, task.File{
			Path: "/etc/nerdctl/nerdctl.toml", Mode: 0o644,
			Data: fmt.Appendf(nil, nerdctlConfig, nerdctlNamespace),
		})
		leaves.Paths = append(leaves.Paths, "/run/nerdctl")
		leaves.Data = []string{"/var/lib/nerdctl"} // with volumes
		leaves.Links = []string{"nerdctl0"}
		// A container that ends later would write to these directories again.
		leaves.Undo = func(ctx context.Context, t *task.Host) error { return endContainers(ctx, t, nerdctlNamespace) }
	}
	return []task.Task{task.Settle(task.Task{
		Name:        "runtime-tools",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Files:       files,
		Leaves:      leaves,
	}, func(context.Context, *task.Host) (task.Setting, error) { return task.Setting{Files: texts}, nil })}
}
