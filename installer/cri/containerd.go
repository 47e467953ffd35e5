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

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/peers"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

// containerd's unit, and paths on the host.
const (
	containerdUnit       = "containerd.service"
	ContainerdConfigFile = "/etc/containerd/config.toml"
	CertsDir             = "/etc/containerd/certs.d"
	containerdDropIns    = "/etc/containerd/conf.d"
	RegistryCAPath       = task.ConfigDir + "/registry-ca.crt"
)

func containerdRuntime() Runtime {
	return Runtime{
		name: "containerd", Socket: ContainerdSocket, Units: []string{containerdUnit},
		Config: ContainerdConfigFile, Data: containerdData, images: ContainerdImages{Ctr: []string{"ctr"}},
		Tasks: func(*manifest.Cluster) []task.Task { return []task.Task{ContainerdTask()} },
	}
}

// ContainerdTask installs containerd, runc and the CNI plugins, and makes the site's registry the mirror of all
// upstreams.
func ContainerdTask() task.Task {
	return task.Settle(task.Task{
		Name:        "containerd",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Before:      keepContainerd,
		Files:       containerdFiles(),
		Images:      []string{"pause"},
		Leaves: task.Leaves{
			Units:  []string{containerdUnit},
			Paths:  []string{containerdEtc, containerdData, containerdRun},
			Spares: sparedByContainerd,
			Undo:   undoContainerd,
		},
	}, containerdSetting)
}

func containerdFiles() []task.Place {
	var files []task.Place
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files = append(files, task.Place{
			Component: "containerd", Member: "bin/" + name, Path: "/usr/local/bin/" + name,
			Mode: task.Executable,
		})
	}
	files = append(files, task.Place{
		Component: "runc", Member: "", Path: "/usr/local/sbin/runc",
		Mode: task.Executable,
	})
	return append(files, PluginFiles()...)
}

// PluginFiles returns the CNI plugins that pod networks build on, and those of further networks of pods: the bundle
// carries them, and nobody else brings them to a closed site. dummy and tap are left out, because releases before 1.3
// do not have them.
func PluginFiles() []task.Place {
	var files []task.Place
	for _, name := range []string{
		"bandwidth", "bridge", "dhcp", "firewall", "host-device", "host-local", "ipvlan", "loopback", "macvlan",
		"portmap", "ptp", "sbr", "static", "tuning",
		"vlan", "vrf",
	} {
		files = append(files, task.Place{
			Component: "cni-plugins", Member: name, Path: "/opt/cni/bin/" + name,
			Mode: task.Executable,
		})
	}
	return files
}

func containerdSetting(_ context.Context, t *task.Host) (task.Setting, error) {
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
		Apply: func(ctx context.Context, t *task.Host) error { return t.Run(ctx, "mkdir", "-p", containerdDropIns) },
		Holds: ServesCRI,
		Ready: AwaitCRI,
	}
	if t.Site.Cluster.ImageRegistry.Type == manifest.RegistryNone {
		return s, nil
	}
	access, err := t.Site.Access()
	if err != nil {
		return task.Setting{}, err
	}
	if len(access.CA) > 0 {
		files = append(files, task.File{Path: RegistryCAPath, Mode: 0o644, Data: access.CA, LiveNew: true})
	}
	asked, err := peers.Mirrors(t)
	if err != nil {
		return task.Setting{}, err
	}
	first := Asked{Peers: asked}
	if t.Site.Cluster.ImageDistribution.Registries == manifest.RegistriesSpread {
		first.Replicas = access.Replicas(t.Name, t.Site.RegistryHosts())
	}
	s.Files = append(files, HostsFiles(access, t.Site.Upstreams(), first)...)
	return s, nil
}

// ServesCRI reports whether containerd's CRI plugin works. Without it containerd still starts, and systemd considers
// the unit active.
func ServesCRI(ctx context.Context, t *task.Host) (bool, error) {
	out, err := t.Output(task.WithoutOutput(ctx), "ctr", "plugins", "ls")
	_, err = task.Succeeded(err)
	return regexp.MustCompile(`(?m)^io\.containerd\.grpc\.v1 +cri +.* ok *$`).Match(out), err
}

//go:embed scripts/explain-cri.sh
var explainCRIScript string

// AwaitCRI waits for the CRI plugin. Its error includes the plugin's log.
func AwaitCRI(ctx context.Context, t *task.Host) error {
	return task.Eventually(ctx, criWait, func(ctx context.Context) error {
		ok, err := ServesCRI(ctx, t)
		if err != nil || ok {
			return err
		}
		why, err := t.Output(context.WithoutCancel(ctx), host.Script("explain-cri.sh", explainCRIScript,
			containerdUnit)...)
		if err != nil {
			return err
		}
		return fmt.Errorf("containerd runs without the CRI: its plugin cri has not loaded\n%s",
			t.Site.Mask.Mask(strings.TrimSpace(string(why))))
	})
}

// criWait is short: containerd loads its plugins before it notifies systemd.
const criWait = 10 * time.Second

// containerdConfig returns a configuration of version 3 for containerd 2, and version 2 for 1.x. It contains only
// settings that differ from the defaults.
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
	format, plugin := containerdVersion3, "io.containerd.cri.v1.runtime"
	if v.Major() < 2 {
		format, plugin = containerdVersion2, "io.containerd.grpc.v1.cri"
	}
	text := fmt.Sprintf(hostfile.Mark+"\n"+format, pause)
	return []byte(text + runtimeTables(plugin, c.CRI.RuntimeClasses)), nil
}

//go:embed configs/containerd-3.toml
var containerdVersion3 string

//go:embed configs/containerd-2.toml
var containerdVersion2 string

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

// ContainerdService is the unit's text that all containerds share: the nodes', and Docker's own. LimitNOFILE is
// systemd's default since version 240, which upstream relies on (containerd#8924): with infinity, programs that close
// all possible descriptors loop a billion times, and before 240 the default is too low.
const ContainerdService = `Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNOFILE=1024:524288
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// Asked is what containerd asks before the registry's address: peers, then the registry's hosts.
type Asked struct {
	Peers    []mirror.Peer
	Replicas []string
}

// HostsFiles makes containerd pull all upstreams' images from the registry, and from what is asked first. The files
// include the passwords of the registry and of peers, if any.
func HostsFiles(r task.RegistryAccess, upstreams []string, first Asked) []task.File {
	ca := ""
	if len(r.CA) > 0 {
		ca = RegistryCAPath
	}
	to := mirror.Registry{
		Host: r.Address, Prefix: r.Prefix, Username: r.Username, Password: r.Password,
		Replicas: first.Replicas, Peers: first.Peers,
	}
	var files []task.File
	for _, h := range mirror.Hosts(to, upstreams, ca) {
		files = append(files, task.File{
			Path: path.Join(CertsDir, h.Name, "hosts.toml"), Mode: 0o600, Data: h.TOML,
			LiveNew: true,
		})
	}
	slices.SortFunc(files, func(a, b task.File) int { return strings.Compare(a.Path, b.Path) })
	return files
}
