package cri

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

const (
	containerdUnit       = "containerd.service"
	ContainerdConfigFile = "/etc/containerd/config.toml"
	CertsDir             = "/etc/containerd/certs.d"
	RegistryCAPath       = task.ConfigDir + "/registry-ca.crt"
)

// containerdRuntime is the runtime containerd.
func containerdRuntime() Runtime {
	return Runtime{
		name: "containerd", Socket: Socket, Units: []string{containerdUnit},
		Config: ContainerdConfigFile, Data: "/var/lib/containerd", images: ContainerdImages{Ctr: []string{"ctr"}},
		Tasks: func(*manifest.Cluster) []task.Task { return []task.Task{RuntimeTask()} },
	}
}

// RuntimeTask installs containerd, runc and the CNI plugins, and points every upstream name at the registry.
func RuntimeTask() task.Task {
	return task.Settle(task.Task{
		Name:        "containerd",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Files:       runtimeFiles(),
		Images:      []string{"pause"},
		Leaves: task.Leaves{
			Units: []string{containerdUnit},
			Paths: []string{"/etc/containerd", "/var/lib/containerd", "/run/containerd"},
			Undo:  containerdRuntime().Undo("/run/containerd/", "/var/lib/containerd/", "/run/netns/cni-"),
		},
	}, runtimeSetting)
}

func runtimeFiles() []task.Place {
	var files []task.Place
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files = append(files, task.Place{Component: "containerd", Member: "bin/" + name, Path: "/usr/local/bin/" + name, Mode: task.Executable})
	}
	files = append(files, task.Place{Component: "runc", Member: "", Path: "/usr/local/sbin/runc", Mode: task.Executable})
	return append(files, PluginFiles()...)
}

// PluginFiles are the CNI plugins that pod networks build on.
func PluginFiles() []task.Place {
	var files []task.Place
	for _, name := range []string{
		"bandwidth", "bridge", "firewall", "host-device", "host-local", "loopback", "portmap", "ptp", "static", "tuning",
	} {
		files = append(files, task.Place{Component: "cni-plugins", Member: name, Path: "/opt/cni/bin/" + name, Mode: task.Executable})
	}
	return files
}

func runtimeSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	config, err := containerdConfig(t.Site.Cluster)
	if err != nil {
		return task.Setting{}, err
	}
	files := []task.File{
		{Path: ContainerdConfigFile, Mode: 0o644, Data: config},
		{Path: "/etc/systemd/system/" + containerdUnit, Mode: 0o644, Data: []byte(containerdUnitText)},
	}
	s := task.Setting{
		Files: files, Units: []string{containerdUnit},
		Holds: func(ctx context.Context, t *task.Host) (bool, error) { return ServesCRI(ctx, t) },
		Ready: func(ctx context.Context, t *task.Host) error { return AwaitCRI(ctx, t) },
	}
	if t.Site.Cluster.ImageRegistry.Type == manifest.RegistryNone {
		return s, nil
	}
	access, err := t.Site.Access()
	if err != nil {
		return task.Setting{}, err
	}
	if len(access.CA) > 0 {
		files = append(files, task.File{Path: RegistryCAPath, Mode: 0o644, Data: access.CA})
	}
	s.Files = append(files, HostsFiles(access, t.Site.Upstreams())...)
	return s, nil
}

// ServesCRI tells whether containerd has the service that kubeadm and the kubelet ask. It starts without one if the plugin
// does not load, and systemd takes it for one that works.
func ServesCRI(ctx context.Context, t *task.Host) (bool, error) {
	out, err := t.Output(task.WithoutOutput(ctx), "ctr", "plugins", "ls")
	_, err = task.Succeeded(err)
	return regexp.MustCompile(`(?m)^io\.containerd\.grpc\.v1 +cri +.* ok *$`).Match(out), err
}

//go:embed scripts/explain-cri.sh
var explainCRIScript string

// AwaitCRI waits for it, and says why it is not there.
func AwaitCRI(ctx context.Context, t *task.Host) error {
	return task.Eventually(ctx, criWait, func(ctx context.Context) error {
		ok, err := ServesCRI(ctx, t)
		if err != nil || ok {
			return err
		}
		why, err := t.Output(context.WithoutCancel(ctx), host.Script("explain-cri.sh", explainCRIScript, containerdUnit)...)
		if err != nil {
			return err
		}
		return fmt.Errorf("containerd runs and does not serve the CRI: its plugin cri has not loaded\n%s", t.Site.Mask.Mask(strings.TrimSpace(string(why))))
	})
}

// criWait is for containerd to say that its socket is there: it has loaded its plugins before.
const criWait = 10 * time.Second

// containerdConfig writes version 3 of the configuration for containerd 2, version 2 for 1.x. It names what differs from
// the defaults and nothing else.
func containerdConfig(c *manifest.Cluster) ([]byte, error) {
	version, err := catalog.Version(c, "containerd")
	if err != nil {
		return nil, err
	}
	v, err := semver.NewVersion(version)
	if err != nil {
		return nil, fmt.Errorf("containerd version %q: %w", version, err)
	}
	pause, err := catalog.ImageRef(c, "pause")
	if err != nil {
		return nil, err
	}
	format := containerdVersion3
	if v.Major() < 2 {
		format = containerdVersion2
	}
	return fmt.Appendf(nil, format, pause), nil
}

const containerdVersion3 = hostfile.Mark + `
version = 3

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "%s"

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/etc/containerd/certs.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "/usr/local/sbin/runc"
  SystemdCgroup = true
`

const containerdVersion2 = hostfile.Mark + `
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s"

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "/usr/local/sbin/runc"
  SystemdCgroup = true
`

const containerdUnitText = hostfile.Mark + `
[Unit]
Description=containerd container runtime
Documentation=https://containerd.io
After=network.target local-fs.target

[Service]
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/containerd
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
` + ContainerdService

// ContainerdService is how any containerd is run, the nodes' and Docker's own.
const ContainerdService = `Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// HostsFiles make containerd take every upstream's images from the registry. With a login they have the password in them.
func HostsFiles(r task.RegistryAccess, upstreams []string) []task.File {
	ca := ""
	if len(r.CA) > 0 {
		ca = RegistryCAPath
	}
	to := mirror.Registry{Host: r.Address, Prefix: r.Prefix, Username: r.Username, Password: r.Password}
	var files []task.File
	for _, h := range mirror.Hosts(to, upstreams, ca) {
		files = append(files, task.File{Path: path.Join(CertsDir, h.Name, "hosts.toml"), Mode: 0o600, Data: h.TOML})
	}
	slices.SortFunc(files, func(a, b task.File) int { return strings.Compare(a.Path, b.Path) })
	return files
}
