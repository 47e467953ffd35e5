package installer

import (
	"context"
	"path"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// dockerApart is where Docker's programs are on a host whose pods run with something else: its containerd and runc are others than
	// those of the nodes.
	dockerApart = "/usr/local/lib/kkbundle/docker"
	// dockerContainerdUnit is Docker's containerd. Docker would use the node's, if that happens to be there when Docker starts.
	dockerContainerdUnit   = "docker-containerd.service"
	dockerContainerdConfig = "/etc/docker/containerd.toml"
	dockerContainerdSocket = "/run/docker/containerd/containerd.sock"
	// composePlugin is where Docker's command looks for the command compose.
	composePlugin = "/usr/local/lib/docker/cli-plugins/docker-compose"
)

// harborDocker are the tasks that install the Docker that Harbor's containers run with. With cri.type docker it is the nodes'.
func harborDocker(c *manifest.Cluster) []Task {
	if usesDocker(c) {
		return dockerEngine(c, manifest.RoleRegistry, manifest.RoleCluster)
	}
	tasks := dockerEngine(c, manifest.RoleRegistry)
	for i := range tasks {
		tasks[i].Where = Reached
	}
	engine := &tasks[len(tasks)-1]
	leaves := engine.Leaves
	leaves.Units = []string{dockerUnit, dockerContainerdUnit}
	leaves.Paths = append(leaves.Paths, dockerApart)
	undo := leaves.Undo
	runtime := podRuntime{units: []string{dockerContainerdUnit, dockerUnit}}
	leaves.Undo = func(ctx context.Context, t *Target) error {
		there, err := t.anyOf(ctx, "/etc/systemd/system/"+dockerContainerdUnit, "/etc/systemd/system/"+dockerUnit)
		if err != nil || !there {
			return err
		}
		if err := runtime.undo()(ctx, t); err != nil {
			return err
		}
		return undo(ctx, t)
	}
	*engine = settle(Task{
		Name: engine.Name, Roles: engine.Roles, Where: engine.Where, Files: dockerFilesApart(), Packages: engine.Packages, Leaves: leaves,
	}, dockerApartSetting)
	return tasks
}

func dockerFilesApart() []Place {
	files := dockerFiles()
	for i := range files {
		if files[i].Member != "docker/docker" {
			files[i].Path = path.Join(dockerApart, path.Base(files[i].Path))
		}
	}
	return files
}

func dockerApartSetting(_ context.Context, _ *Target) (setting, error) {
	daemon, err := dockerDaemon()
	return setting{
		files: []textFile{
			{dockerConfig, 0o644, daemon},
			{dockerContainerdConfig, 0o644, []byte(dockerContainerdText)},
			{"/etc/systemd/system/" + dockerContainerdUnit, 0o644, []byte(dockerContainerdUnitText)},
			{"/etc/systemd/system/" + dockerUnit, 0o644, []byte(dockerUnitApart())},
		},
		apply: rememberForward,
		units: []string{dockerContainerdUnit, dockerUnit},
	}, err
}

// dockerUnitApart is Docker's unit with programs and a containerd of its own.
func dockerUnitApart() string {
	return strings.NewReplacer(
		"firewalld.service\n", "firewalld.service "+dockerContainerdUnit+"\nRequires="+dockerContainerdUnit+"\n",
		"ExecStart=/usr/local/bin/dockerd", "ExecStart="+dockerApart+"/dockerd --containerd="+dockerContainerdSocket,
		"PATH=", "PATH="+dockerApart+":",
	).Replace(dockerUnitText)
}

// The directories are those that Docker gives a containerd that it starts itself
// (https://github.com/moby/moby/blob/v28.5.2/libcontainerd/supervisor/remote_daemon.go).
const dockerContainerdText = hostfile.Mark + `
version = 2
root = "` + dockerData + `/containerd/daemon"
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
ExecStart=` + dockerApart + `/containerd --config=` + dockerContainerdConfig + `
Environment=PATH=` + dockerApart + `:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
` + containerdService
