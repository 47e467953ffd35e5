package siteregistry

import (
	"context"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// DockerApart is where Docker's programs are on a host whose pods run with something else: its containerd and runc are others than
	// those of the nodes.
	DockerApart = "/usr/local/lib/kkbundle/docker"
	// dockerContainerdUnit is Docker's containerd. Docker would use the node's, if that happens to be there when Docker starts.
	dockerContainerdUnit   = "docker-containerd.service"
	dockerContainerdConfig = "/etc/docker/containerd.toml"
	dockerContainerdSocket = "/run/docker/containerd/containerd.sock"
	// ComposePlugin is where Docker's command looks for the command compose.
	ComposePlugin = "/usr/local/lib/docker/cli-plugins/docker-compose"
)

// harborDocker are the tasks that install the Docker that Harbor's containers run with. With cri.type docker it is the nodes'.
func harborDocker(c *manifest.Cluster) []task.Task {
	if cri.UsesDocker(c) {
		return cri.DockerEngine(c, manifest.RoleRegistry, manifest.RoleCluster)
	}
	tasks := cri.DockerEngine(c, manifest.RoleRegistry)
	for i := range tasks {
		tasks[i].Where = task.Reached
	}
	engine := &tasks[len(tasks)-1]
	leaves := engine.Leaves
	leaves.Units = []string{cri.DockerUnit, dockerContainerdUnit}
	leaves.Paths = append(leaves.Paths, DockerApart)
	undo := leaves.Undo
	runtime := cri.Runtime{Units: []string{dockerContainerdUnit, cri.DockerUnit}}
	leaves.Undo = func(ctx context.Context, t *task.Host) error {
		there, err := t.AnyExists(ctx, "/etc/systemd/system/"+dockerContainerdUnit, "/etc/systemd/system/"+cri.DockerUnit)
		if err != nil || !there {
			return err
		}
		if err := runtime.Undo()(ctx, t); err != nil {
			return err
		}
		return undo(ctx, t)
	}
	*engine = task.Settle(task.Task{
		Name: engine.Name, Roles: engine.Roles, Where: engine.Where, Files: dockerFilesApart(), Packages: engine.Packages, Leaves: leaves,
	}, dockerApartSetting)
	return tasks
}

func dockerFilesApart() []task.Place {
	files := cri.DockerFiles()
	for i := range files {
		if files[i].Member != "docker/docker" {
			files[i].Path = path.Join(DockerApart, path.Base(files[i].Path))
		}
	}
	return files
}

func dockerApartSetting(_ context.Context, _ *task.Host) (task.Setting, error) {
	daemon, err := cri.DockerDaemon()
	return task.Setting{
		Files: []task.File{
			{Path: cri.DockerConfig, Mode: 0o644, Data: daemon},
			{Path: dockerContainerdConfig, Mode: 0o644, Data: []byte(dockerContainerdText)},
			{Path: "/etc/systemd/system/" + dockerContainerdUnit, Mode: 0o644, Data: []byte(dockerContainerdUnitText)},
			{Path: "/etc/systemd/system/" + cri.DockerUnit, Mode: 0o644, Data: []byte(dockerUnitApart())},
		},
		Apply: cri.RememberForward,
		Units: []string{dockerContainerdUnit, cri.DockerUnit},
	}, err
}

// dockerUnitApart is Docker's unit with programs and a containerd of its own.
func dockerUnitApart() string {
	return strings.NewReplacer(
		"firewalld.service\n", "firewalld.service "+dockerContainerdUnit+"\nRequires="+dockerContainerdUnit+"\n",
		"ExecStart=/usr/local/bin/dockerd", "ExecStart="+DockerApart+"/dockerd --containerd="+dockerContainerdSocket,
		"PATH=", "PATH="+DockerApart+":",
	).Replace(cri.DockerUnitText)
}

// The directories are those that Docker gives a containerd that it starts itself
// (https://github.com/moby/moby/blob/v28.5.2/libcontainerd/supervisor/remote_daemon.go).
const dockerContainerdText = hostfile.Mark + `
version = 2
root = "` + cri.DockerData + `/containerd/daemon"
state = "/run/docker/containerd/daemon"
disabled_plugins = ["io.containerd.grpc.v1.cri"]

[grpc]
  address = "` + dockerContainerdSocket + `"
`

const dockerContainerdUnitText = hostfile.Mark + `
[Unit]
Description=containerd for Docker
Documentation=https://containerd.io
After=network.target local-fs.target

[Service]
ExecStartPre=-/sbin/modprobe overlay
ExecStart=` + DockerApart + `/containerd --config=` + dockerContainerdConfig + `
Environment=PATH=` + DockerApart + `:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
` + cri.ContainerdService
