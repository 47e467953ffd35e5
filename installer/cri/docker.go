package cri

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Docker's units, and paths on the host.
const (
	DockerUnit    = "docker.service"
	criDockerUnit = "cri-docker.service"
	DockerConfig  = "/etc/docker/daemon.json"
	DockerData    = "/var/lib/docker"
	// KubeletLogins contains the kubelet's registry logins, in Docker's format.
	KubeletLogins = "/var/lib/kubelet/config.json"
)

// dockerRuntime returns Docker with cri-dockerd.
func dockerRuntime() Runtime {
	return Runtime{
		name: "docker", Socket: "unix:///run/cri-dockerd.sock", Units: []string{DockerUnit, criDockerUnit},
		Config: DockerConfig, Data: DockerData, images: dockerImages{}, Tasks: dockerTasks,
	}
}

// UsesDocker reports whether Docker runs the cluster's pods.
func UsesDocker(c *manifest.Cluster) bool { return RuntimeOf(c).name == dockerRuntime().name }

// dockerTasks installs Docker and cri-dockerd.
func dockerTasks(c *manifest.Cluster) []task.Task {
	roles := []manifest.Role{manifest.RoleCluster}
	cri := task.Settle(task.Task{
		Name:  "cri-dockerd",
		Roles: roles,
		Files: append([]task.Place{{
			Component: "cri-dockerd", Member: "cri-dockerd/cri-dockerd",
			Path: "/usr/local/bin/cri-dockerd", Mode: task.Executable,
		}}, PluginFiles()...),
		Images: []string{"pause"},
		Leaves: task.Leaves{Units: []string{criDockerUnit}, Paths: []string{
			"/var/lib/cri-dockerd",
			"/run/cri-dockerd.sock",
		}},
	}, criDockerSetting)
	if c.ImageRegistry.Type == manifest.RegistryHarbor { // Harbor's tasks install Docker earlier
		return []task.Task{cri}
	}
	return append(DockerEngine(c, roles...), cri)
}

// DockerEngine returns the tasks that install Docker, for pods or for Harbor.
func DockerEngine(c *manifest.Cluster, roles ...manifest.Role) []task.Task {
	docker := Runtime{Units: []string{DockerUnit}}
	return []task.Task{
		{
			Name: "docker-is-ours", Roles: roles, InDryRun: true,
			Do: refuseForeignDocker,
		},
		task.Settle(task.Task{
			Name:     "docker",
			Roles:    roles,
			Files:    DockerFiles(),
			Packages: []string{"iptables"},
			Leaves: task.Leaves{
				Units: []string{DockerUnit},
				Paths: []string{"/etc/docker", DockerData, "/run/docker", "/run/docker.sock", "/run/docker.pid"},
				Undo: func(ctx context.Context, t *task.Host) error {
					if err := docker.Undo("/run/docker/", DockerData+"/", "/run/netns/cni-")(ctx, t); err != nil {
						return err
					}
					return removeDockerNetworks(ctx, t)
				},
			},
		}, dockerSetting),
	}
}

// removeDockerNetworks removes the bridges and packet filter rules that Docker leaves, and restores the settings that
// it changed.
func removeDockerNetworks(ctx context.Context, t *task.Host) error {
	bridges, err := t.Output(ctx, "ip", "-brief", "link", "show", "type", "bridge")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(bridges)) {
		if name := strings.Fields(line); len(name) > 0 && isDockerBridge(name[0]) {
			if err := t.Run(ctx, "ip", "link", "delete", name[0]); err != nil {
				return err
			}
		}
	}
	if err := t.RemoveRules(ctx, isDocker); err != nil {
		return err
	}
	return RestoreForward(ctx, t)
}

// isDocker reports whether a word of a packet filter rule belongs to Docker.
func isDocker(word string) bool { return strings.HasPrefix(word, "DOCKER") || isDockerBridge(word) }

// isDockerBridge reports whether an interface belongs to Docker: docker0, or br- and the first 12 digits of a network's
// ID.
// https://github.com/moby/moby/blob/v28.5.2/libnetwork/drivers/bridge/bridge_linux.go
func isDockerBridge(name string) bool {
	id, other := strings.CutPrefix(name, "br-")
	return name == "docker0" || other && len(id) == 12 && strings.Trim(id, "0123456789abcdef") == ""
}

// DockerFiles returns the programs of Docker.
func DockerFiles() []task.Place {
	var files []task.Place
	for _, name := range []string{
		"docker", "dockerd", "docker-init", "docker-proxy", "containerd",
		"containerd-shim-runc-v2", "ctr", "runc",
	} {
		files = append(files, task.Place{
			Component: "docker", Member: "docker/" + name, Path: "/usr/local/bin/" + name,
			Mode: task.Executable,
		})
	}
	return files
}

// foreignDocker returns the error of a host with a Docker that kkbundle did not install.
func foreignDocker(t *task.Host, found string) error {
	return plain.Advise(fmt.Errorf(
		"%s has a Docker that kkbundle did not install (%s); other containers may depend on it", t.Name, found),
		"use another host, or move these containers elsewhere, remove Docker with the system's packages and move "+
			DockerConfig+" away")
}

// refuseForeignDocker protects the programs and configuration of another Docker. It runs before the first file is
// installed.
func refuseForeignDocker(ctx context.Context, t *task.Host) error {
	ours, err := t.AnyExists(ctx, string(marks.Setting("docker")), "/etc/systemd/system/"+DockerUnit)
	if err != nil {
		return err
	}
	if ours {
		unit, err := t.Read(ctx, "/etc/systemd/system/"+DockerUnit)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && bytes.HasPrefix(unit, []byte(hostfile.Mark)) {
			return err
		}
		return foreignDocker(t, "/etc/systemd/system/"+DockerUnit)
	}
	for _, file := range []string{
		"/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/snap/bin/docker",
		"/lib/systemd/system/" + DockerUnit, "/usr/lib/systemd/system/" + DockerUnit,
	} {
		there, err := t.Test(ctx, "test", "-e", file)
		if err != nil {
			return err
		}
		if there {
			return foreignDocker(t, file)
		}
	}
	return refuseForeignConfig(ctx, t)
}

// refuseForeignConfig compares only daemon.json: an interrupted run of kkbundle may have written it.
func refuseForeignConfig(ctx context.Context, t *task.Host) error {
	have, err := t.Read(ctx, DockerConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	want, err := DockerDaemon()
	if err != nil || bytes.Equal(have, want) {
		return err
	}
	return foreignDocker(t, DockerConfig)
}

func dockerSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	daemon, err := DockerDaemon()
	if err != nil {
		return task.Setting{}, err
	}
	files := []task.File{
		{Path: DockerConfig, Mode: 0o644, Data: daemon},
		{Path: "/etc/systemd/system/" + DockerUnit, Mode: 0o644, Data: []byte(DockerUnitText())},
	}
	units := []string{DockerUnit}
	if t.Site.Cluster.ImageRegistry.Type == manifest.RegistryNone {
		return task.Setting{Files: files, Apply: RememberForward, Units: units}, nil
	}
	access, err := t.Site.Access()
	if err != nil {
		return task.Setting{}, err
	}
	if len(access.CA) > 0 {
		files = append(files, task.File{
			Path: path.Join("/etc/docker/certs.d", access.Address, "ca.crt"), Mode: 0o644,
			Data: access.CA, LiveNew: true,
		})
	}
	return task.Setting{Files: files, Apply: RememberForward, Units: units}, nil
}

// DockerDaemon returns daemon.json: systemd's cgroups, as for the kubelet; rotated logs; containers survive restarts of
// Docker.
// https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file
func DockerDaemon() ([]byte, error) {
	data, err := json.MarshalIndent(kube.Document{
		"data-root":    DockerData,
		"exec-opts":    []string{"native.cgroupdriver=systemd"},
		"live-restore": true,
		"log-driver":   "json-file",
		"log-opts":     kube.Document{"max-file": "3", "max-size": "10m"},
	}, "", "  ")
	return append(data, '\n'), err
}

//go:embed units/docker.service
var dockerUnitText string

// DockerUnitText returns upstream's contrib/init/systemd/docker.service without socket activation. Docker starts its
// own containerd.
func DockerUnitText() string { return hostfile.Mark + "\n" + dockerUnitText }

func criDockerSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	c := t.Site.Cluster
	pause, err := catalog.ImageRef(c, "pause")
	if err != nil {
		return task.Setting{}, err
	}
	files := []task.File{
		{
			Path: "/etc/systemd/system/" + criDockerUnit, Mode: 0o644,
			Data: fmt.Appendf(nil, hostfile.Mark+"\n"+criDockerUnitText, RuntimeOf(c).Socket, pause),
		},
	}
	login, err := kubeletLogin(t.Site)
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		Files: slices.Concat(files, login), Units: []string{criDockerUnit},
		// The kubelet reads its logins again only after minutes (pkg/credentialprovider, CachingDockerConfigProvider).
		Reload: func(ctx context.Context, t *task.Host) error { return t.Systemctl(ctx, "try-restart", "kubelet") },
	}, nil
}

// kubeletLogin returns the kubelet's login at the site's registry: Docker stores logins only for users.
func kubeletLogin(s *task.Site) ([]task.File, error) {
	if s.Cluster.ImageRegistry.Type == manifest.RegistryNone {
		return nil, nil
	}
	access, err := s.Access()
	if err != nil || access.Username == "" {
		return nil, err
	}
	login := strings.TrimPrefix(access.Authorization(), "Basic ")
	data, err := json.Marshal(kube.Document{"auths": kube.Document{access.Address: kube.Document{"auth": login}}})
	return []task.File{{Path: KubeletLogins, Mode: 0o600, Data: append(data, '\n'), LiveNew: true}}, err
}

// From upstream's packaging/systemd/cri-docker.service, without socket activation.
//
//go:embed units/cri-docker.service
var criDockerUnitText string
