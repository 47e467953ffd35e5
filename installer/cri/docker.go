package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	dockerUnit    = "docker.service"
	criDockerUnit = "cri-docker.service"
	dockerConfig  = "/etc/docker/daemon.json"
	dockerData    = "/var/lib/docker"
	// kubeletLogins is where the kubelet looks for logins at registries, in Docker's format.
	kubeletLogins = "/var/lib/kubelet/config.json"
)

// dockerRuntime is the runtime Docker, behind cri-dockerd.
func dockerRuntime() podRuntime {
	return podRuntime{
		name: "docker", socket: "unix:///run/cri-dockerd.sock", units: []string{dockerUnit, criDockerUnit},
		config: dockerConfig, data: dockerData, images: dockerImages{}, tasks: dockerTasks,
	}
}

// usesDocker reports whether Docker runs the cluster's pods.
func usesDocker(c *manifest.Cluster) bool { return runtimeOf(c).name == dockerRuntime().name }

// dockerTasks install Docker, and what the kubelet talks to it through.
func dockerTasks(c *manifest.Cluster) []Task {
	roles := []manifest.Role{manifest.RoleCluster}
	cri := settle(Task{
		Name:   "cri-dockerd",
		Roles:  roles,
		Files:  append([]Place{{"cri-dockerd", "cri-dockerd/cri-dockerd", "/usr/local/bin/cri-dockerd", executable}}, pluginFiles()...),
		Images: []string{"pause"},
		Leaves: Leaves{Units: []string{criDockerUnit}, Paths: []string{"/var/lib/cri-dockerd", "/run/cri-dockerd.sock"}},
	}, criDockerSetting)
	if c.ImageRegistry.Type == manifest.RegistryHarbor { // it is there before Harbor is
		return []Task{cri}
	}
	return append(dockerEngine(c, roles...), cri)
}

// dockerEngine are the tasks that install Docker on hosts, for whatever it is used for there.
func dockerEngine(c *manifest.Cluster, roles ...manifest.Role) []Task {
	docker := podRuntime{units: []string{dockerUnit}}
	return []Task{
		{
			Name: "docker-is-ours", Roles: roles, Look: true,
			Do: func(ctx context.Context, t *Target) error { return t.refuseForeignDocker(ctx) },
		},
		settle(Task{
			Name:     "docker",
			Roles:    roles,
			Files:    dockerFiles(),
			Packages: []string{"iptables"},
			Leaves: Leaves{
				Units: []string{dockerUnit},
				Paths: []string{"/etc/docker", dockerData, "/run/docker", "/run/docker.sock", "/run/docker.pid"},
				Undo: func(ctx context.Context, t *Target) error {
					if err := docker.undo("/run/docker/", dockerData+"/", "/run/netns/cni-")(ctx, t); err != nil {
						return err
					}
					return t.removeDockerNetworks(ctx)
				},
			},
		}, dockerSetting),
	}
}

// removeDockerNetworks removes the bridges of Docker's networks and its part of the packet filter, which Docker leaves when it
// ends, and what it had changed there.
func (t *Target) removeDockerNetworks(ctx context.Context) error {
	bridges, err := t.output(ctx, "ip", "-brief", "link", "show", "type", "bridge")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(bridges)) {
		if name := strings.Fields(line); len(name) > 0 && dockerBridge(name[0]) {
			if err := t.command(ctx, "ip", "link", "delete", name[0]); err != nil {
				return err
			}
		}
	}
	if err := t.removeRules(ctx, isDocker); err != nil {
		return err
	}
	return t.restoreForward(ctx)
}

// isDocker tells whether a word of a packet filter's rule is of Docker.
func isDocker(word string) bool { return strings.HasPrefix(word, "DOCKER") || dockerBridge(word) }

// dockerBridge tells whether an interface is of Docker's: of its default network, or of another whose ID it has the first 12 digits
// of. https://github.com/moby/moby/blob/v28.5.2/libnetwork/drivers/bridge/bridge_linux.go
func dockerBridge(name string) bool {
	id, other := strings.CutPrefix(name, "br-")
	return name == "docker0" || other && len(id) == 12 && strings.Trim(id, "0123456789abcdef") == ""
}

func dockerFiles() []Place {
	var files []Place
	for _, name := range []string{"docker", "dockerd", "docker-init", "docker-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		files = append(files, Place{"docker", "docker/" + name, "/usr/local/bin/" + name, executable})
	}
	return files
}

// A ForeignDockerError says that a host has a Docker of its own.
type ForeignDockerError struct {
	Host, Found string
}

// Error names the host and what was found there.
func (e *ForeignDockerError) Error() string {
	return fmt.Sprintf("%s has a Docker that kkbundle has not installed (%s), and containers of others may run with it", e.Host, e.Found)
}

// Hint says what to do about it.
func (e *ForeignDockerError) Hint() string {
	return "take another host, or move these containers elsewhere, remove Docker with the system's packages and move " + dockerConfig + " away"
}

// refuseForeignDocker looks for a Docker that is there before the first file of ours is placed: neither its programs nor
// its configuration are overwritten.
func (t *Target) refuseForeignDocker(ctx context.Context) error {
	ours, err := t.anyOf(ctx, path.Join(stampDir, "docker"), "/etc/systemd/system/"+dockerUnit)
	if err != nil {
		return err
	}
	if ours {
		unit, err := t.read(ctx, "/etc/systemd/system/"+dockerUnit)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && bytes.HasPrefix(unit, []byte(hostfile.Mark)) {
			return err
		}
		return &ForeignDockerError{t.Name, "/etc/systemd/system/" + dockerUnit}
	}
	for _, file := range []string{
		"/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd", "/snap/bin/docker",
		"/lib/systemd/system/" + dockerUnit, "/usr/lib/systemd/system/" + dockerUnit,
	} {
		there, err := t.test(ctx, "test", "-e", file)
		if err != nil {
			return err
		}
		if there {
			return &ForeignDockerError{t.Name, file}
		}
	}
	return t.refuseForeignConfig(ctx)
}

// refuseForeignConfig looks at daemon.json alone: an interrupted run of ours may have written it.
func (t *Target) refuseForeignConfig(ctx context.Context) error {
	have, err := t.read(ctx, dockerConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	want, err := dockerDaemon()
	if err != nil || bytes.Equal(have, want) {
		return err
	}
	return &ForeignDockerError{t.Name, dockerConfig}
}

func dockerSetting(_ context.Context, t *Target) (setting, error) {
	daemon, err := dockerDaemon()
	if err != nil {
		return setting{}, err
	}
	files := []textFile{
		{dockerConfig, 0o644, daemon},
		{"/etc/systemd/system/" + dockerUnit, 0o644, []byte(dockerUnitText)},
	}
	units := []string{dockerUnit}
	if t.run.cluster.ImageRegistry.Type == manifest.RegistryNone {
		return setting{files: files, apply: rememberForward, units: units}, nil
	}
	access, err := t.run.access()
	if err != nil {
		return setting{}, err
	}
	if len(access.ca) > 0 {
		files = append(files, textFile{path.Join("/etc/docker/certs.d", access.address, "ca.crt"), 0o644, access.ca})
	}
	return setting{files: files, apply: rememberForward, units: units}, nil
}

// dockerDaemon is daemon.json: control groups are systemd's, as the kubelet's are; logs end; containers live on while
// Docker is restarted. https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file
func dockerDaemon() ([]byte, error) {
	data, err := json.MarshalIndent(document{
		"data-root":    dockerData,
		"exec-opts":    []string{"native.cgroupdriver=systemd"},
		"live-restore": true,
		"log-driver":   "json-file",
		"log-opts":     document{"max-file": "3", "max-size": "10m"},
	}, "", "  ")
	return append(data, '\n'), err
}

// Docker starts a containerd of its own. As upstream's contrib/init/systemd/docker.service, without socket activation.
const dockerUnitText = hostfile.Mark + `
[Unit]
Description=Docker Application Container Engine
Documentation=https://docs.docker.com
Wants=network-online.target
After=network-online.target firewalld.service

[Service]
Type=notify
ExecStart=/usr/local/bin/dockerd
ExecReload=/bin/kill -s HUP $MAINPID
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
TimeoutSec=0
RestartSec=2
Restart=always
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
Delegate=yes
KillMode=process
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
`

func criDockerSetting(_ context.Context, t *Target) (setting, error) {
	c := t.run.cluster
	pause, err := catalog.ImageRef(c, "pause")
	if err != nil {
		return setting{}, err
	}
	files := []textFile{
		{"/etc/systemd/system/" + criDockerUnit, 0o644, fmt.Appendf(nil, criDockerUnitText, runtimeOf(c).socket, pause)},
	}
	login, err := t.run.kubeletLogin()
	if err != nil {
		return setting{}, err
	}
	return setting{files: slices.Concat(files, login), units: []string{criDockerUnit}}, nil
}

// kubeletLogin lets pods pull from the registry by its own name: Docker itself keeps logins for users only.
func (r *Site) kubeletLogin() ([]textFile, error) {
	if r.cluster.ImageRegistry.Type == manifest.RegistryNone {
		return nil, nil
	}
	access, err := r.access()
	if err != nil || access.username == "" {
		return nil, err
	}
	login := strings.TrimPrefix(access.authorization(), "Basic ")
	data, err := json.Marshal(document{"auths": document{access.address: document{"auth": login}}})
	return []textFile{{kubeletLogins, 0o600, append(data, '\n')}}, err
}

// As upstream's packaging/systemd/cri-docker.service, without socket activation.
const criDockerUnitText = hostfile.Mark + `
[Unit]
Description=CRI Interface for Docker Application Container Engine
Documentation=https://docs.mirantis.com
Wants=network-online.target
After=network-online.target firewalld.service docker.service
Requires=docker.service

[Service]
Type=notify
ExecStart=/usr/local/bin/cri-dockerd --container-runtime-endpoint=%s --pod-infra-container-image=%s --network-plugin=cni --cni-bin-dir=/opt/cni/bin --cni-conf-dir=/etc/cni/net.d
ExecReload=/bin/kill -s HUP $MAINPID
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
TimeoutSec=0
RestartSec=2
Restart=always
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
Delegate=yes
KillMode=process

[Install]
WantedBy=multi-user.target
`
