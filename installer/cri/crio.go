package cri

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

// CRI-O's unit, and paths on the host.
const (
	crioUnit       = "crio.service"
	CRIOConfigFile = "/etc/crio/crio.conf.d/10-kkbundle.conf"
	crioPrograms   = task.ProgramDir + "/crio/bin/"
	CRIOPolicy     = "/etc/crio/policy.json"
)

func crioRuntime() Runtime {
	return Runtime{
		name: "crio", Socket: "unix:///var/run/crio/crio.sock", Units: []string{crioUnit}, Config: CRIOConfigFile,
		Data:    "/var/lib/containers",
		Parents: []string{"/etc/containers/registries.conf.d", "/etc/containers"},
		Tasks:   func(*manifest.Cluster) []task.Task { return []task.Task{crioTask()} },
	}
}

// crioTask installs CRI-O with the OCI runtimes of its archive, and makes the site's registry the mirror of all
// upstreams.
func crioTask() task.Task {
	return task.Settle(task.Task{
		Name:        "crio",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Files:       crioFiles(),
		Images:      []string{"pause"},
		Leaves: task.Leaves{
			Units: []string{crioUnit},
			Paths: []string{
				"/etc/crio", "/etc/containers/registries.conf.d/50-kkbundle.conf", "/etc/containers/certs.d",
				"/var/lib/containers", "/var/lib/crio", "/run/containers", "/run/crio", crioPrograms,
			},
			Undo: crioRuntime().Undo("/run/containers/", "/var/lib/containers/", "/run/crio/"),
		},
	}, crioSetting)
}

// crioFiles follows the archive's own install script. Programs for CRI-O alone go into our own directory, because reset
// could not tell them from others in /usr/local/libexec.
func crioFiles() []task.Place {
	files := []task.Place{
		{Component: "crio", Member: "cri-o/bin/crio", Path: "/usr/local/bin/crio", Mode: task.Executable},
		{Component: "crio", Member: "cri-o/bin/pinns", Path: "/usr/local/bin/pinns", Mode: task.Executable},
	}
	for _, name := range []string{"conmon", "conmonrs", "crun", "runc"} {
		files = append(files, task.Place{
			Component: "crio", Member: "cri-o/bin/" + name, Path: crioPrograms + name,
			Mode: task.Executable,
		})
	}
	return append(files, PluginFiles()...)
}

func crioSetting(_ context.Context, t *task.Host) (task.Setting, error) {
	pause, err := catalog.ImageRef(t.Site.Cluster, "pause")
	if err != nil {
		return task.Setting{}, err
	}
	access, err := t.Site.Access()
	if err != nil {
		return task.Setting{}, err
	}
	files := []task.File{
		{Path: CRIOConfigFile, Mode: 0o644, Data: fmt.Appendf(nil, crioConfig, pause)},
		{Path: CRIOPolicy, Mode: 0o644, Data: []byte(`{"default": [{"type": "insecureAcceptAnything"}]}` + "\n")},
		{Path: "/etc/systemd/system/" + crioUnit, Mode: 0o644, Data: []byte(hostfile.Mark + "\n" + crioUnitText)},
	}
	mirrors, err := MirrorFiles(mirror.RuntimeCRIO, access, t.Site.Upstreams())
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		Files: append(files, mirrors...), Units: []string{crioUnit},
		Apply: func(ctx context.Context, t *task.Host) error { return t.RemoveEarlier(ctx, "crio") },
	}, nil
}

// MirrorFiles returns the runtime's configuration files for the registry. Those with its login are live.
func MirrorFiles(runtime mirror.Runtime, access task.RegistryAccess, upstreams []string) ([]task.File, error) {
	to := mirror.Registry{
		Host: access.Address, Prefix: access.Prefix, CA: access.CA, Username: access.Username,
		Password: access.Password,
	}
	config, err := mirror.Configure(runtime, to, upstreams)
	if err != nil {
		return nil, err
	}
	var files []task.File
	for _, f := range config.Files {
		files = append(files, task.File{
			Path: f.Path, Mode: f.Mode, Data: f.Data,
			LiveNew: f.Secrecy != hostfile.Public,
		})
	}
	return files, nil
}

// crioConfig is CRI-O's own 10-crio.conf with the kubelet's cgroup driver and kubeadm's pause image. The signature
// policy accepts all images: signatures are checked on the bundle.
// https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.5.md
const crioConfig = hostfile.Mark + `
[crio.image]
pause_image = %q
signature_policy = "` + CRIOPolicy + `"

[crio.network]
network_dir = "/etc/cni/net.d/"
plugin_dirs = ["/opt/cni/bin/"]

[crio.runtime]
cgroup_manager = "systemd"
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "` + crioPrograms + `crun"
runtime_root = "/run/crun"
monitor_path = "` + crioPrograms + `conmon"
monitor_cgroup = "pod"
allowed_annotations = ["io.containers.trace-syscall"]

[crio.runtime.runtimes.runc]
runtime_path = "` + crioPrograms + `runc"
runtime_root = "/run/runc"
monitor_path = "` + crioPrograms + `conmon"
monitor_cgroup = "pod"
`

// From the archive's crio.service.
//
//go:embed units/crio.service
var crioUnitText string
