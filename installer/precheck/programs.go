package precheck

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// programChecks check the programs of the operating system.
func programChecks() []Check {
	return []Check{
		{
			ID: "executables", Groups: []string{GroupOS}, Level: Block,
			Title: "the programs are there that kubeadm and the installation use", Rule: hasExecutables,
			Roles:  cluster(),
			Why:    "kubeadm refuses to start without them",
			Fix:    "install util-linux, mount, kmod, procps, coreutils and, for Kubernetes before 1.33 or with Docker, iproute2, iptables and conntrack",
			Source: "kubeadm FileExisting-*, by version; Docker needs iptables",
			Kubeadm: []string{
				"FileExisting-cp", "FileExisting-mount", "FileExisting-losetup", "FileExisting-conntrack",
				"FileExisting-ip", "FileExisting-iptables", "FileExisting-nsenter",
			},
		},
		{
			ID: "executables-optional", Groups: []string{GroupOS}, Level: Warn,
			Title: "the programs are there that some features use", Rule: hasOptionalExecutables, Roles: cluster(),
			Why:    "without iptables, pods that ask for a port of the host (hostPort) get none; without the others, port forwarding, limits of bandwidth or looking into IPVS do not work, and kubeadm before 1.31 refuses to start without crictl",
			Fix:    "install iptables and, if they are named, socat, iproute2 (tc), ethtool, ebtables, ipset, ipvsadm and crictl, which an installation by kkbundle brings",
			Source: "CNI plugins portmap and bandwidth; cri-dockerd; warnings of earlier kubeadm versions",
			Kubeadm: []string{
				"FileExisting-ebtables", "FileExisting-ethtool", "FileExisting-socat", "FileExisting-tc",
				"FileExisting-touch", "FileExisting-crictl",
			},
		},
		{
			ID: "packages", Groups: []string{GroupOS, GroupKKBundle}, Level: Warn,
			Title:  "packages that the roles need are on the host, or in the bundle for its distribution",
			Rule:   hasPackages,
			Why:    "packages that are missing on the host cannot be installed from the bundle",
			Fix:    "build the bundle with this distribution under packages, or install the packages beforehand",
			Source: "packages in the bundle",
		},
		{
			ID: "package-signatures", Groups: []string{GroupOS, GroupKKBundle}, Level: Warn,
			Title: "a signature vouches for the bundle's packages for the host's distribution", Rule: hasSignedPackages,
			Why:    "packages are installed as root; a build with allowUnsigned takes what the repository's server sends",
			Fix:    "build the bundle with keyring for each repository of this distribution, without allowUnsigned",
			Source: "key verified in the lock, carried by the bundle's index",
		},
	}
}

// executables returns all programs that some check looks for.
func executables() []string {
	return []string{
		"cp", "mount", "losetup", "systemctl", "modprobe", "sysctl", "swapoff",
		"conntrack", "ip", "iptables", "nsenter", "crictl", "touch", "tc", "ethtool", "ebtables", "socat", "ipset",
		"ipvsadm",
		nfsMount, labelProgram,
	}
}

// neededExecutables follows kubeadm, which requires fewer with each version, and adds those that the installation
// calls.
func neededExecutables(s *Subject) []string {
	list := []string{"cp", "mount", "losetup"}
	if s.Input.Install {
		list = append(list, "systemctl", "modprobe", "sysctl", "swapoff")
	}
	if s.Cluster.Kubernetes.Distribution == manifest.DistributionK3s {
		return list // it includes the others
	}
	version, docker := s.Cluster.Kubernetes.Version, s.Cluster.CRI.Type == manifest.RuntimeDocker
	if isBefore(version, 1, 33) || docker {
		list = append(list, "ip", "iptables", "nsenter")
	}
	if isBefore(version, 1, 32) {
		list = append(list, "conntrack")
	}
	return list
}

func optionalExecutables(s *Subject) []string {
	list := []string{"iptables"}
	c := s.Cluster
	version := c.Kubernetes.Version
	if isBefore(version, 1, 31) && !s.Input.Install {
		list = append(list, "crictl")
	}
	if isBefore(version, 1, 33) {
		list = append(list, "tc", "ethtool", "touch")
	}
	if isBefore(version, 1, 30) {
		list = append(list, "ebtables")
	}
	if c.CRI.Type == manifest.RuntimeDocker || isBefore(version, 1, 30) {
		list = append(list, "socat")
	}
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		list = append(list, "ipset", "ipvsadm")
	}
	return list
}

func hasExecutables(s *Subject) Finding { return s.hasAll(neededExecutables(s)) }

// hasOptionalExecutables excludes the required ones.
func hasOptionalExecutables(s *Subject) Finding {
	needed := neededExecutables(s)
	list := slices.DeleteFunc(optionalExecutables(s), func(name string) bool { return slices.Contains(needed, name) })
	if len(list) == 0 {
		return skip()
	}
	return s.hasAll(list)
}

func (s *Subject) hasAll(programs []string) Finding {
	if len(s.Facts.Executables) == 0 {
		return unknown("the host did not say which programs it has")
	}
	var missing []string
	for _, name := range programs {
		if !s.Facts.Executable(name) && !s.isComing(name) {
			missing = append(missing, name)
		}
	}
	return noneMissing(missing, "all of them")
}

// hasPackages applies to bundles with packages. Packages already installed need not be in the bundle.
func hasPackages(s *Subject) Finding {
	has := s.Input.Packages
	if len(has) == 0 {
		return skip()
	}
	if distribution, ok := Distribution(s.Facts.OS, has); ok {
		return pass(distribution)
	}
	name := strings.ToLower(s.Facts.OS.ID) + "/" + s.Facts.OS.VersionID
	missing, known := s.missingPackages(name)
	if known && len(missing) == 0 {
		return pass("all that are needed are installed")
	}
	text := name + ", the bundle has " + some(has)
	if known {
		text += "; not installed: " + some(missing)
	}
	return fail(text)
}

// hasSignedPackages applies to bundles with packages for the host's distribution.
func hasSignedPackages(s *Subject) Finding {
	distribution, ok := Distribution(s.Facts.OS, s.Input.Packages)
	if !ok || s.Cluster.OSPackages != manifest.PackagesOfBundle {
		return skip()
	}
	if slices.Contains(s.Input.Unsigned, distribution) {
		return fail("unsigned packages of " + distribution)
	}
	return pass(distribution)
}

// Distribution returns the host's distribution among those of a bundle's packages: by its version, or the major one, so
// that rocky/9 matches 9.4.
func Distribution(os node.OSRelease, has []string) (string, bool) {
	id := strings.ToLower(os.ID) + "/"
	major, _, _ := strings.Cut(os.VersionID, ".")
	for _, name := range []string{id + os.VersionID, id + major} {
		if slices.Contains(has, name) {
			return name, true
		}
	}
	return "", false
}

// programPackages returns the distributions' names of the packages with the programs.
func programPackages() map[string][]string {
	return map[string][]string{
		"conntrack": {"conntrack", "conntrack-tools"}, "ebtables": {"ebtables"}, "ethtool": {"ethtool"},
		"socat": {"socat"}, "ipset": {"ipset"},
		"ipvsadm": {"ipvsadm"}, "iptables": {"iptables", "iptables-nft"}, "ip": {"iproute2", "iproute"},
		"tc":     {"iproute2", "iproute-tc"},
		nfsMount: {"nfs-common", "nfs-utils"},
	}
}

// isComing reports whether the installation adds a missing program, with the bundle's packages.
func (s *Subject) isComing(program string) bool {
	return slices.ContainsFunc(programPackages()[program], s.brings)
}

// brings reports whether the installation adds a package, which the bundle has.
func (s *Subject) brings(pkg string) bool {
	distribution, ok := Distribution(s.Facts.OS, s.Input.Packages)
	if !ok || !s.Input.Install || s.Input.PackagesOf == nil || s.Cluster.OSPackages != manifest.PackagesOfBundle {
		return false
	}
	names, err := s.Input.PackagesOf(s.Host.Roles, distribution)
	return err == nil && slices.Contains(names, pkg)
}

// missingPackages returns the packages that the host's roles need and it lacks; false if unknown.
func (s *Subject) missingPackages(distribution string) ([]string, bool) {
	if s.Input.PackagesOf == nil || s.Facts.Packages == nil {
		return nil, false
	}
	names, err := s.Input.PackagesOf(s.Host.Roles, distribution)
	if err != nil {
		return nil, false // the distribution's names are unknown
	}
	names = Unneeded(s.Facts, s.Cluster, names)
	return slices.DeleteFunc(names, func(name string) bool { return s.Facts.Packages[name] != "" }), true
}
