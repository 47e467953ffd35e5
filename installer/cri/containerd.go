package installer

import (
	"context"
	_ "embed" // scripts
	"encoding/base64"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

const (
	containerdUnit       = "containerd.service"
	containerdConfigFile = "/etc/containerd/config.toml"
	certsDir             = "/etc/containerd/certs.d"
	registryCAPath       = configDir + "/registry-ca.crt"
)

// containerdRuntime is the runtime containerd.
func containerdRuntime() podRuntime {
	return podRuntime{
		name: "containerd", socket: criSocket, units: []string{containerdUnit},
		config: containerdConfigFile, data: "/var/lib/containerd", images: containerdImages{ctr: []string{"ctr"}},
		tasks: func(*manifest.Cluster) []Task { return []Task{runtimeTask()} },
	}
}

// runtimeTask installs containerd, runc and the CNI plugins, and points every upstream name at the registry.
func runtimeTask() Task {
	return settle(Task{
		Name:   "containerd",
		Apart:  true,
		Roles:  []manifest.Role{manifest.RoleCluster},
		Files:  runtimeFiles(),
		Images: []string{"pause"},
		Leaves: Leaves{
			Units: []string{containerdUnit},
			Paths: []string{"/etc/containerd", "/var/lib/containerd", "/run/containerd"},
			Undo:  containerdRuntime().undo("/run/containerd/", "/var/lib/containerd/", "/run/netns/cni-"),
		},
	}, runtimeSetting)
}

func runtimeFiles() []Place {
	var files []Place
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files = append(files, Place{"containerd", "bin/" + name, "/usr/local/bin/" + name, executable})
	}
	files = append(files, Place{"runc", "", "/usr/local/sbin/runc", executable})
	return append(files, pluginFiles()...)
}

// pluginFiles are the CNI plugins that pod networks build on.
func pluginFiles() []Place {
	var files []Place
	for _, name := range []string{
		"bandwidth", "bridge", "firewall", "host-device", "host-local", "loopback", "portmap", "ptp", "static", "tuning",
	} {
		files = append(files, Place{"cni-plugins", name, "/opt/cni/bin/" + name, executable})
	}
	return files
}

func runtimeSetting(_ context.Context, t *Target) (setting, error) {
	config, err := containerdConfig(t.run.cluster)
	if err != nil {
		return setting{}, err
	}
	files := []textFile{
		{containerdConfigFile, 0o644, config},
		{"/etc/systemd/system/" + containerdUnit, 0o644, []byte(containerdUnitText)},
	}
	s := setting{
		files: files, units: []string{containerdUnit},
		holds: func(ctx context.Context, t *Target) (bool, error) { return t.servesCRI(ctx) },
		ready: func(ctx context.Context, t *Target) error { return t.awaitCRI(ctx) },
	}
	if t.run.cluster.ImageRegistry.Type == manifest.RegistryNone {
		return s, nil
	}
	access, err := t.run.access()
	if err != nil {
		return setting{}, err
	}
	if len(access.ca) > 0 {
		files = append(files, textFile{registryCAPath, 0o644, access.ca})
	}
	s.files = append(files, hostsFiles(access, t.run.upstreams())...)
	return s, nil
}

// servesCRI tells whether containerd has the service that kubeadm and the kubelet ask. It starts without one if the plugin
// does not load, and systemd takes it for one that works.
func (t *Target) servesCRI(ctx context.Context) (bool, error) {
	out, err := t.output(withoutOutput(ctx), "ctr", "plugins", "ls")
	_, err = succeeded(err)
	return regexp.MustCompile(`(?m)^io\.containerd\.grpc\.v1 +cri +.* ok *$`).Match(out), err
}

//go:embed scripts/explain-cri.sh
var explainCRIScript string

// awaitCRI waits for it, and says why it is not there.
func (t *Target) awaitCRI(ctx context.Context) error {
	return eventually(ctx, criWait, func(ctx context.Context) error {
		ok, err := t.servesCRI(ctx)
		if err != nil || ok {
			return err
		}
		why, err := t.output(context.WithoutCancel(ctx), host.Script("explain-cri.sh", explainCRIScript, containerdUnit)...)
		if err != nil {
			return err
		}
		return fmt.Errorf("containerd runs and does not serve the CRI: its plugin cri has not loaded\n%s", t.run.mask.mask(strings.TrimSpace(string(why))))
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
` + containerdService

// containerdService is how any containerd is run, the nodes' and Docker's own.
const containerdService = `Type=notify
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

// A registryAccess is how hosts reach the registry.
type registryAccess struct {
	address string // host[:port]
	prefix  string // of the repositories' names; "" if there is none
	ca      []byte // PEM; none if the system's authorities are trusted
	registryLogin
}

func (r registryAccess) authorization() string {
	if r.username == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.username+":"+r.password))
}

// hostsFiles make containerd take every upstream's images from the registry. With a login they have the password in them.
func hostsFiles(r registryAccess, upstreams []string) []textFile {
	ca := ""
	if len(r.ca) > 0 {
		ca = registryCAPath
	}
	to := mirror.Registry{Host: r.address, Prefix: r.prefix, Username: r.username, Password: r.password}
	var files []textFile
	for _, h := range mirror.Hosts(to, upstreams, ca) {
		files = append(files, textFile{path.Join(certsDir, h.Name, "hosts.toml"), 0o600, h.TOML})
	}
	slices.SortFunc(files, func(a, b textFile) int { return strings.Compare(a.path, b.path) })
	return files
}
