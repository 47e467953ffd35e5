package precheck

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// runtimeChecks check container runtimes.
func runtimeChecks() []Check {
	return []Check{
		{
			ID: "runtime", Groups: []string{GroupCRI}, Level: Block, Title: "no other container runtime is in use",
			Rule: hasNoForeignRuntime, Roles: cluster(),
			LevelOf: foreignRuntimeLevel,
			Varies:  "warns with k3s, without a bundle to install from, and with cri.takeOver unless the host's containerd is newer than the cluster's",
			Why:     "the installation replaces the configuration of the runtime and restarts it; other containers may depend on both",
			Fix:     "use another host, or move the containers elsewhere and remove the runtime; with cri.type containerd, cri.takeOver: true in the cluster file keeps a copy of containerd's configuration for reset and lets its other containers run on",
			Source:  "kkbundle",
		},
		{
			ID: "cri", Groups: []string{GroupCRI}, Level: Warn, Title: "the cluster's container runtime runs",
			Rule: hasRuntime, Roles: cluster(),
			Why:     "kubeadm refuses to start without one; kkbundle's installation brings it",
			Fix:     "install and start it, or install with a bundle of kkbundle",
			Source:  "kubeadm CRI",
			Kubeadm: []string{"CRI"},
		},
		{
			ID: "runtime-storage", Groups: []string{GroupCRI, GroupHost}, Level: Block,
			Title: "images and containers are stored with overlayfs", Rule: hasOverlay, Roles: cluster(),
			Why:     "on a file system without overlayfs containerd does not offer CRI, and Docker copies each layer for each container",
			Fix:     "put the directory on ext4, or on xfs made with ftype=1 (mkfs.xfs -n ftype=1); for a Docker of yours, set storage-driver to overlay2",
			Source:  "kubeadm SystemVerification (Docker's graph driver); containerd's overlayfs snapshotter; Docker's OverlayFS storage driver",
			Kubeadm: []string{"SystemVerification"},
		},
		{
			ID: "container-manager", Groups: []string{GroupCRI}, Level: Block,
			Title: "the container runtime is one that Kubernetes works with", Rule: isKnownRuntime, OfCluster: true,
			Why:    "the kubelet needs a runtime that speaks CRI",
			Fix:    "write containerd, docker or crio into cri.type of the cluster file",
			Source: "KubeKey v4 cri_precheck; Kubespray",
		},
		{
			ID: "containerd-version", Groups: []string{GroupCRI}, Level: Block,
			Title: "the cluster's containerd is new enough", Rule: isNewContainerd, OfCluster: true,
			Why:    "the kubelet speaks version 1 of CRI, which containerd has since 1.6; Kubernetes 1.36 needs containerd 2.0",
			Fix:    "choose a newer cri.version in the cluster file, or leave it out",
			Source: "KubeKey v4 cri_precheck (1.6.0); Kubernetes 1.35 is the last with containerd 1.7",
		},
		{
			ID: "containerd-installed", Groups: []string{GroupCRI}, Level: Block,
			Title: "the installed containerd is new enough", Rule: hasNewContainerd, Roles: cluster(),
			Why:    "the kubelet speaks version 1 of CRI, which containerd has since 1.6; Kubernetes 1.36 needs containerd 2.0",
			Fix:    "update containerd on the host",
			Source: "KubeKey v4 cri_precheck (1.6.0); Kubernetes 1.35 is the last with containerd 1.7",
		},
		{
			ID: "docker-version", Groups: []string{GroupCRI, GroupRegistry}, Level: Warn,
			Title: "Docker is there, and new enough, where it is needed", Rule: hasDocker,
			Why:    "Harbor, or pods with cri.type docker, run with it",
			Fix:    "install Docker 20.10.10 or newer; an installation by kkbundle does so",
			Source: "KubeKey v4 image_registry_precheck; Harbor's prerequisites (20.10.10)",
		},
		{
			ID: "compose-version", Groups: []string{GroupRegistry}, Level: Warn,
			Title: "Docker Compose is there, and new enough, where Harbor will be", Rule: hasCompose,
			Roles:  []manifest.Role{manifest.RoleRegistry},
			Why:    "Harbor's parts are started by it",
			Fix:    "install Docker Compose 1.18.0 or newer; an installation by kkbundle does so",
			Source: "KubeKey v4 image_registry_precheck; Harbor's prerequisites (1.18.0)",
		},
	}
}

// runtimeUnits are the services of a runtime: Docker runs its own containerd.
func runtimeUnits(cri manifest.RuntimeType) []string {
	switch cri {
	case manifest.RuntimeDocker:
		return []string{"docker", "containerd"}
	case manifest.RuntimeCRIO:
		return []string{"crio"}
	default:
		return []string{"containerd"}
	}
}

// Directories of container runtimes.
const (
	// taskDir has a directory for each namespace of containerd that has had running containers.
	taskDir = "/run/containerd/io.containerd.runtime.v2.task"
	// storageDir has the images and containers of podman and of CRI-O.
	storageDir = "/var/lib/containers/storage"
	// crioDir has CRI-O's configuration.
	crioDir = "/etc/crio"
)

// hasNoForeignRuntime also counts an existing copy of the cluster's own runtime if kkbundle will install another one.
func hasNoForeignRuntime(s *Subject) Finding {
	if s.Ours() {
		return pass("kkbundle has installed here before")
	}
	var found []string
	for _, name := range []string{"containerd", "docker", "crio"} {
		wanted := !s.Input.Install && slices.Contains(runtimeUnits(s.Cluster.CRI.Type), name)
		if s.Facts.Unit(name+".service").Active == "active" && !wanted {
			found = append(found, withVersion(s.Facts, name)+" is running")
		}
	}
	if spaces := s.Facts.Path(taskDir).Entries; len(spaces) > 0 && len(found) > 0 {
		found = append(found, "containers in "+some(spaces))
	}
	for _, dir := range []string{storageDir, crioDir} {
		if s.Input.Install && s.Cluster.CRI.Type == manifest.RuntimeCRIO && len(s.Facts.Path(dir).Entries) > 0 {
			found = append(found, dir+" is in use, which CRI-O needs and reset removes")
		}
	}
	return none(found, "none")
}

// foreignRuntimeLevel blocks unless the installation leaves the other runtime's containers alone. An older containerd
// may not read the data of a newer one.
func foreignRuntimeLevel(s *Subject) Level {
	if !s.Input.Install || s.Cluster.Kubernetes.Distribution == manifest.DistributionK3s {
		return Warn
	}
	if !s.Cluster.CRI.TakeOver || s.Cluster.CRI.Type != manifest.RuntimeContainerd {
		return Block
	}
	if s.Facts.Unit("containerd.service").Active != "active" {
		return Warn // Docker has one of its own
	}
	ours, err := catalog.Version(s.Cluster, "containerd")
	theirs := versionOf(s.Facts, "containerd")
	const line = 2
	if have, want := numbers(theirs), numbers(ours); err != nil || len(have) < line || len(want) < line ||
		slices.Compare(have[:line], want[:line]) > 0 {
		return Block
	}
	return Warn
}

func hasRuntime(s *Subject) Finding {
	if s.Input.Install {
		return skip()
	}
	name := runtimeUnits(s.Cluster.CRI.Type)[0]
	if state := s.Facts.Unit(name + ".service").Active; state != "active" {
		return fail(name + " does not run")
	}
	return pass(withVersion(s.Facts, name))
}

// isKnownRuntime cannot fail for kkbundle's own files, whose parser refuses other names.
func isKnownRuntime(s *Subject) Finding {
	switch name := s.Cluster.CRI.Type; name {
	case manifest.RuntimeContainerd, manifest.RuntimeDocker, manifest.RuntimeCRIO:
		return pass(string(name))
	default:
		return fail(string(name))
	}
}

func containerdFloor(kubernetes string) string {
	if kubernetes != "" && !isBefore(kubernetes, 1, 36) {
		return "2.0.0"
	}
	return "1.6.0"
}

func isNewContainerd(s *Subject) Finding {
	if s.Cluster.CRI.Type != manifest.RuntimeContainerd {
		return skip()
	}
	version := s.Cluster.CRI.Version
	if version == "" && s.Cluster.Kubernetes.Version == "" {
		return skip() // neither is known
	}
	if version == "" {
		var err error
		if version, err = catalog.Version(s.Cluster, "containerd"); err != nil {
			return unknown(err.Error())
		}
	}
	return isNewer(version, containerdFloor(s.Cluster.Kubernetes.Version))
}

func hasNewContainerd(s *Subject) Finding {
	if s.Input.Install || s.Ours() || s.Cluster.CRI.Type != manifest.RuntimeContainerd ||
		s.Facts.Unit("containerd.service").Active != "active" {
		return skip()
	}
	version := versionOf(s.Facts, "containerd")
	if version == "" {
		return unknown("it does not say its version")
	}
	return isNewer(version, containerdFloor(s.Cluster.Kubernetes.Version))
}

// needsDocker reports whether the host needs a Docker that kkbundle does not install.
func (s *Subject) needsDocker() bool {
	harbor := s.Cluster.ImageRegistry.Type == manifest.RegistryHarbor && s.Host.Is(manifest.RoleRegistry)
	pods := s.Cluster.CRI.Type == manifest.RuntimeDocker && s.Host.Is(manifest.RoleCluster)
	return !s.Input.Install && (harbor || pods)
}

func hasDocker(s *Subject) Finding {
	if !s.needsDocker() {
		return skip()
	}
	return hasProgram(s.Facts, "20.10.10", "docker")
}

func hasCompose(s *Subject) Finding {
	if s.Input.Install || s.Cluster.ImageRegistry.Type != manifest.RegistryHarbor {
		return skip()
	}
	return hasProgram(s.Facts, "1.18.0", "docker compose", "docker-compose")
}

// hasProgram looks for a program under its possible names.
func hasProgram(f *node.Facts, least string, names ...string) Finding {
	silent := false
	for _, p := range f.Programs {
		switch {
		case !slices.Contains(names, p.Name):
		case p.Version == "":
			silent = true
		default:
			return isNewer(p.Version, least)
		}
	}
	if silent {
		return unknown(names[0] + " does not say its version")
	}
	return fail(names[0] + " is not installed")
}

// versionOf returns a program's own version, "" if it is not installed or does not tell.
func versionOf(f *node.Facts, name string) string {
	for _, p := range f.Programs {
		if p.Name == name && p.Version != "" {
			return p.Version
		}
	}
	return ""
}

func withVersion(f *node.Facts, name string) string {
	if v := versionOf(f, name); v != "" {
		return name + " " + v
	}
	return name
}

// runtimeData returns the directory of the runtime's images.
func runtimeData(c *manifest.Cluster) string {
	switch {
	case c.Kubernetes.Distribution == manifest.DistributionK3s:
		return "/var/lib/rancher/k3s"
	case c.CRI.Type == manifest.RuntimeDocker:
		return "/var/lib/docker"
	case c.CRI.Type == manifest.RuntimeCRIO:
		return "/var/lib/containers"
	default:
		return "/var/lib/containerd"
	}
}

// hasOverlay looks at the driver of a running Docker, or else at the file system.
func hasOverlay(s *Subject) Finding {
	if driver := s.Facts.DockerDriver; driver != "" && s.Cluster.CRI.Type == manifest.RuntimeDocker {
		if !slices.Contains(dockerDrivers(), driver) {
			return fail("Docker stores with " + driver)
		}
		return pass("Docker stores with " + driver)
	}
	dir := runtimeData(s.Cluster)
	d, ok := s.Facts.Dir(dir)
	switch {
	case !ok:
		return skip()
	case d.NoFileTypes:
		return failf("%s is on %s without file types in directories (ftype=0)", dir, d.Type)
	case slices.Contains(withoutOverlay(), d.Type) || strings.HasPrefix(d.Type, "fuse"):
		return failf("%s is on %s", dir, d.Type)
	default:
		return pass(d.Type)
	}
}

// dockerDrivers are those of kubeadm's list that Docker still has, and the one of its containerd image store.
func dockerDrivers() []string { return []string{"overlay2", "overlayfs", "btrfs", "zfs"} }

// withoutOverlay are file systems on which the kernel mounts no writable overlay.
func withoutOverlay() []string {
	return []string{"9p", "cifs", "ecryptfs", "exfat", "nfs", "nfs4", "overlay", "smb3", "vfat", "virtiofs"}
}
