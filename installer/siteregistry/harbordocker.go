package siteregistry

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// DockerDir contains the programs of a Docker for Harbor alone: its containerd and runc differ from the nodes'.
	DockerDir = task.ProgramDir + "/docker/bin"
	// dockerContainerdUnit is that Docker's containerd. Otherwise Docker would use the node's if it runs.
	dockerContainerdUnit   = "docker-containerd.service"
	dockerContainerdConfig = "/etc/docker/containerd.toml"
	dockerContainerdSocket = "/run/docker/containerd/containerd.sock"
	// ComposePlugin is docker's path for the command compose.
	ComposePlugin = "/usr/local/lib/docker/cli-plugins/docker-compose"
)

// harborDocker returns the tasks that install Docker for Harbor. With cri.type docker they share the nodes' Docker.
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
	leaves.Paths = append(leaves.Paths, DockerDir)
	undo := leaves.Undo
	runtime := cri.Runtime{Units: []string{dockerContainerdUnit, cri.DockerUnit}}
	leaves.Undo = func(ctx context.Context, t *task.Host) error {
		there, err := t.AnyExists(ctx, "/etc/systemd/system/"+dockerContainerdUnit, "/etc/systemd/system/"+
			cri.DockerUnit)
		if err != nil || !there {
			return err
		}
		if err := runtime.Undo()(ctx, t); err != nil {
			return err
		}
		return undo(ctx, t)
	}
	*engine = task.Settle(task.Task{
		Name: engine.Name, Roles: engine.Roles, Where: engine.Where, Files: separateDockerFiles(),
		Packages: engine.Packages, Leaves: leaves,
	}, separateDockerSetting)
	return tasks
}

func separateDockerFiles() []task.Place {
	files := cri.DockerFiles()
	for i := range files {
		if files[i].Member != "docker/docker" {
			files[i].Path = path.Join(DockerDir, path.Base(files[i].Path))
		}
	}
	return files
}

func separateDockerSetting(_ context.Context, _ *task.Host) (task.Setting, error) {
	daemon, err := cri.DockerDaemon()
	return task.Setting{
		Files: []task.File{
			{Path: cri.DockerConfig, Mode: 0o644, Data: daemon},
			{Path: dockerContainerdConfig, Mode: 0o644, Data: []byte(dockerContainerdText)},
			{Path: "/etc/systemd/system/" + dockerContainerdUnit, Mode: 0o644, Data: []byte(dockerContainerdUnitText)},
			{Path: "/etc/systemd/system/" + cri.DockerUnit, Mode: 0o644, Data: []byte(separateDockerUnit())},
		},
		Apply: func(ctx context.Context, t *task.Host) error {
			return errors.Join(cri.RememberForward(ctx, t), t.RemoveEarlier(ctx, "docker"))
		},
		Units: []string{dockerContainerdUnit, cri.DockerUnit},
	}, err
}

// separateDockerUnit returns Docker's unit with the programs of DockerDir and its own containerd.
func separateDockerUnit() string {
	return strings.NewReplacer(
		"firewalld.service\n", "firewalld.service "+dockerContainerdUnit+"\nRequires="+dockerContainerdUnit+"\n",
		"ExecStart=/usr/local/bin/dockerd", "ExecStart="+DockerDir+"/dockerd --containerd="+dockerContainerdSocket,
		"PATH=", "PATH="+DockerDir+":",
	).Replace(cri.DockerUnitText())
}

// The directories are those of a containerd that Docker starts
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
ExecStart=` + DockerDir + `/containerd --config=` + dockerContainerdConfig + `
Environment=PATH=` + DockerDir + `:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
` + cri.ContainerdService
