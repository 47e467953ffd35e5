package installer

import (
	"context"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const crictlConfig = "/etc/crictl.yaml"

// toolTasks give operators the programs that the cluster file names (cri.tools), made ready for the nodes' runtime.
func toolTasks(c *manifest.Cluster) []Task {
	if len(c.CRI.Tools) == 0 {
		return nil
	}
	var files []Place
	var texts []textFile
	if slices.Contains(c.CRI.Tools, "crictl") {
		files = append(files, Place{"crictl", "crictl", "/usr/local/bin/crictl", executable})
		socket := runtimeOf(c).socket
		// https://github.com/kubernetes-sigs/cri-tools/blob/master/docs/crictl.md
		texts = append(texts, textFile{crictlConfig, 0o644, fmt.Appendf(nil, "%s\nruntime-endpoint: %s\nimage-endpoint: %s\ntimeout: 5\n", hostfile.Mark, socket, socket)})
	}
	if slices.Contains(c.CRI.Tools, "nerdctl") {
		files = append(files, Place{"nerdctl", "nerdctl", "/usr/local/bin/nerdctl", executable})
		// https://github.com/containerd/nerdctl/blob/main/docs/config.md
		texts = append(texts, textFile{"/etc/nerdctl/nerdctl.toml", 0o644, []byte(hostfile.Mark + "\nnamespace = \"k8s.io\"\ncni_path = \"/opt/cni/bin\"\n")})
	}
	return []Task{settle(Task{
		Name:   "runtime-tools",
		Apart:  true,
		Roles:  []manifest.Role{manifest.RoleCluster},
		Files:  files,
		Leaves: Leaves{Paths: []string{crictlConfig, "/etc/nerdctl"}},
	}, func(context.Context, *Target) (setting, error) { return setting{files: texts}, nil })}
}
