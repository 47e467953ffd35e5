package installer

import (
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

const (
	crioUnit       = "crio.service"
	crioConfigFile = "/etc/crio/crio.conf.d/10-kkbundle.conf"
	crioLibexec    = "/usr/local/lib/kkbundle/crio/"
	crioPolicy     = "/etc/crio/policy.json"
)

// crioRuntime is the runtime CRI-O.
func crioRuntime() podRuntime {
	return podRuntime{
		name: "crio", socket: "unix:///var/run/crio/crio.sock", units: []string{crioUnit}, config: crioConfigFile, data: "/var/lib/containers",
		parents: []string{"/etc/containers/registries.conf.d", "/etc/containers"},
		tasks:   func(*manifest.Cluster) []Task { return []Task{crioTask()} },
	}
}

// crioTask installs CRI-O, whose archive has the runtimes that it is tested with. It points upstream names at the registry.
func crioTask() Task {
	return settle(Task{
		Name:   "crio",
		Apart:  true,
		Roles:  []manifest.Role{manifest.RoleCluster},
		Files:  crioFiles(),
		Images: []string{"pause"},
		Leaves: Leaves{
			Units: []string{crioUnit},
			Paths: []string{
				"/etc/crio", "/etc/containers/registries.conf.d/50-kkbundle.conf", "/etc/containers/certs.d",
				"/var/lib/containers", "/var/lib/crio", "/run/containers", "/run/crio", crioLibexec,
			},
			Undo: crioRuntime().undo("/run/containers/", "/var/lib/containers/", "/run/crio/"),
		},
	}, crioSetting)
}

// crioFiles are what the archive's own install script places. What CRI-O alone runs goes into a directory of ours, and not into
// /usr/local/libexec, which some distributions have and reset could not know to leave.
func crioFiles() []Place {
	files := []Place{
		{"crio", "cri-o/bin/crio", "/usr/local/bin/crio", executable},
		{"crio", "cri-o/bin/pinns", "/usr/local/bin/pinns", executable},
	}
	for _, name := range []string{"conmon", "conmonrs", "crun", "runc"} {
		files = append(files, Place{"crio", "cri-o/bin/" + name, crioLibexec + name, executable})
	}
	return append(files, pluginFiles()...)
}

func crioSetting(_ context.Context, t *Target) (setting, error) {
	pause, err := catalog.ImageRef(t.run.cluster, "pause")
	if err != nil {
		return setting{}, err
	}
	access, err := t.run.access()
	if err != nil {
		return setting{}, err
	}
	files := []textFile{
		{crioConfigFile, 0o644, fmt.Appendf(nil, crioConfig, pause)},
		{crioPolicy, 0o644, []byte(`{"default": [{"type": "insecureAcceptAnything"}]}` + "\n")},
		{"/etc/systemd/system/" + crioUnit, 0o644, []byte(crioUnitText)},
	}
	mirrors, err := mirrorFiles(mirror.RuntimeCRIO, access, t.run.upstreams())
	if err != nil {
		return setting{}, err
	}
	return setting{files: append(files, mirrors...), units: []string{crioUnit}}, nil
}

// mirrorFiles are what a runtime is told of the registry.
func mirrorFiles(runtime mirror.Runtime, access registryAccess, upstreams []string) ([]textFile, error) {
	to := mirror.Registry{Host: access.address, Prefix: access.prefix, CA: access.ca, Username: access.username, Password: access.password}
	config, err := mirror.Configure(runtime, to, upstreams)
	if err != nil {
		return nil, err
	}
	var files []textFile
	for _, f := range config.Files {
		files = append(files, textFile{f.Path, f.Mode, f.Data})
	}
	return files, nil
}

// crioConfig is what CRI-O's own 10-crio.conf says, with the kubelet's control group driver and kubeadm's pause image. What
// is trusted is decided where the bundle is checked: CRI-O accepts what the registry has.
// https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md
const crioConfig = hostfile.Mark + `
[crio.image]
pause_image = %q
signature_policy = "` + crioPolicy + `"

[crio.network]
network_dir = "/etc/cni/net.d/"
plugin_dirs = ["/opt/cni/bin/"]

[crio.runtime]
cgroup_manager = "systemd"
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "` + crioLibexec + `crun"
runtime_root = "/run/crun"
monitor_path = "` + crioLibexec + `conmon"
monitor_cgroup = "pod"
allowed_annotations = ["io.containers.trace-syscall"]

[crio.runtime.runtimes.runc]
runtime_path = "` + crioLibexec + `runc"
runtime_root = "/run/runc"
monitor_path = "` + crioLibexec + `conmon"
monitor_cgroup = "pod"
`

// As the archive's crio.service.
const crioUnitText = hostfile.Mark + `
[Unit]
Description=Container Runtime Interface for OCI (CRI-O)
Documentation=https://github.com/cri-o/cri-o
Wants=network-online.target
Before=kubelet.service
After=network-online.target

[Service]
Type=notify
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/crio
ExecReload=/bin/kill -s HUP $MAINPID
Environment=GOTRACEBACK=crash
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
TasksMax=infinity
LimitNOFILE=1048576
LimitNPROC=1048576
LimitCORE=infinity
OOMScoreAdjust=-999
TimeoutStartSec=0
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
`
