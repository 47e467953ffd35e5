package precheck

import (
	"slices"

	"github.com/kkbundle/kkbundle/manifest"
)

// Checks lists all checks. Their order is that of a report.
func Checks() []Check {
	return slices.Concat(machineChecks(), kernelChecks(), networkChecks(), foreignChecks(), settingChecks())
}

func cluster() []manifest.Role { return []manifest.Role{manifest.RoleCluster} }

// machineChecks are about what a host is.
func machineChecks() []Check {
	return []Check{
		{
			ID: "privileges", Groups: []string{GroupOS}, Level: Block, Title: "commands run as root", OK: isRoot,
			Why:    "an installation writes to /etc and /usr/local and controls systemd",
			Fix:    "log in as root, or as a user who may run every command with sudo",
			Source: "kubeadm IsPrivilegedUser",
		},
		{
			ID: "systemd", Groups: []string{GroupOS}, Level: Block, Title: "systemd is the init system", OK: isSystemd,
			Why:    "the registry, containerd and the kubelet run as systemd units",
			Fix:    "use a distribution with systemd",
			Source: "Kubespray: service manager must be systemd",
		},
		{
			ID: "os", Groups: []string{GroupOS}, Level: Block, Title: "the distribution is supported", OK: isSupportedOS,
			Why:    "on others, nobody has tried whether the installation works",
			Fix:    "use one of " + supportedText() + ", or set precheck.allowUnsupportedDistributions in the cluster file",
			Source: "KubeKey v4 os_precheck, widened by the rebuilds of the same distributions",
		},
		{
			ID: "architecture", Groups: []string{GroupOS}, Level: Block, Title: "the architecture is supported, and the bundle has it", OK: hasArchitecture,
			Why:    "programs and images of another architecture do not run",
			Fix:    "build the bundle with this platform in platforms, or use an amd64 or arm64 machine",
			Source: "KubeKey v4 os_precheck",
		},
		{
			ID: "hostname", Groups: []string{GroupOS}, Level: Block, Title: "the host's name can be a node's name", OK: hasNodeName,
			Why:    "Kubernetes refuses nodes whose name is not a DNS name in lower case",
			Fix:    "rename the host in the inventory: lower case letters, digits, hyphens and dots",
			Source: "RFC 1123; kubeadm Hostname",
		},
		{
			ID: "cpu", Groups: []string{GroupOS}, Level: Block, Title: "a control plane has 2 CPUs or more", OK: hasCPUs, Roles: []manifest.Role{manifest.RoleControlPlane},
			Why:    "with one CPU the control plane's own requests do not fit, and kubeadm refuses to start",
			Fix:    "give the machine at least 2 CPUs",
			Source: "kubeadm NumCPU",
		},
		{
			ID: "memory", Groups: []string{GroupOS}, Level: Block, Title: "there is enough memory for the host's roles", OK: hasMemory, Roles: cluster(),
			Why:    "processes would be killed for lack of memory, the API server or etcd among them",
			Fix:    "give the machine more memory, or lower precheck.minMemory in the cluster file",
			Source: "kubeadm Mem (1700 MiB); Kubespray (workers 1024 MB)",
		},
		{
			ID: "disk", Groups: []string{GroupHost}, Level: Block, Title: "what will be written fits on the disks", OK: hasSpace,
			Why:    "an installation that fills the disk leaves a half-installed host, and the kubelet evicts pods",
			Fix:    "free space or make the filesystem larger",
			Source: "sizes in the bundle",
		},
		{
			ID: "filesystems", Groups: []string{GroupHost}, Level: Block, Title: "programs can be written and run", OK: isWritable,
			Why:    "programs go to /usr/local/bin and /opt; on filesystems mounted ro or noexec they cannot be written or started",
			Fix:    "mount these filesystems with rw,exec",
			Source: "kkbundle",
		},
	}
}

// kernelChecks are about the kernel and the programs that come with the system.
func kernelChecks() []Check {
	return []Check{
		{
			ID: "kernel", Groups: []string{GroupOS}, Level: Block, Title: "the kernel is new enough", OK: hasKernel, Roles: cluster(),
			Why:    "container runtimes and pod networks need features of newer kernels",
			Fix:    "update the kernel, or lower precheck.minKernel in the cluster file",
			Source: "KubeKey v4 min_kernel_version (4.9.17)",
		},
		{
			ID: "modules", Groups: []string{GroupOS}, Level: Block, Title: "the kernel has the modules", OK: hasModules, Roles: cluster(),
			Why:    "containers need overlay, services need br_netfilter, and flannel connects hosts with vxlan",
			Fix:    "install the package with the kernel's modules (linux-modules-extra on Ubuntu, kernel-modules on RHEL)",
			Source: "Kubernetes: container runtimes; flannel backends",
		},
		{
			ID: "kernel-config", Groups: []string{GroupOS}, Level: Warn, Title: "the kernel's configuration has what containers need", OK: hasKernelConfig, Roles: cluster(),
			Why:    "without these options containers do not start, or their limits do not hold",
			Fix:    "use a distribution's standard kernel",
			Source: "kubeadm SystemVerification",
		},
		{
			ID: "cgroups", Groups: []string{GroupOS}, Level: Block, Title: "the kernel has the control groups", OK: hasCgroups, Roles: cluster(),
			Why:    "the kubelet does not start without them",
			Fix:    "remove cgroup_disable= from the kernel's command line; on a Raspberry Pi add cgroup_enable=memory",
			Source: "kubeadm SystemVerification",
		},
		{
			ID: "cgroup-version", Groups: []string{GroupOS}, Level: Warn, Title: "control groups are version 2", OK: isCgroup2, Roles: cluster(),
			Why:    "Kubernetes only maintains its support of version 1 and will drop it",
			Fix:    "boot with systemd.unified_cgroup_hierarchy=1, or use a newer release of the distribution",
			Source: "kubeadm SystemVerification",
		},
		{
			ID: "swap", Groups: []string{GroupOS}, Level: Warn, Title: "swap is off", OK: isSwapOff, Roles: cluster(),
			Why:    "the kubelet does not start with swap on",
			Fix:    "nothing needs to be done: the installation switches it off and says so",
			Source: "kubeadm Swap; kubelet failSwapOn",
		},
		{
			ID: "executables", Groups: []string{GroupOS}, Level: Block, Title: "the programs are there that kubeadm and the installation use", OK: hasExecutables, Roles: cluster(),
			Why:    "kubeadm refuses to start without them",
			Fix:    "install util-linux, mount, kmod, procps, coreutils and, for Kubernetes before 1.33, iproute2, iptables and conntrack",
			Source: "kubeadm FileExisting-*, by version",
		},
		{
			ID: "executables-optional", Groups: []string{GroupOS}, Level: Warn, Title: "iptables is there", OK: hasOptionalExecutables, Roles: cluster(),
			Why:    "pods that ask for a port of the host (hostPort) get none without it",
			Fix:    "install iptables",
			Source: "CNI plugin portmap",
		},
	}
}

// networkChecks are about how hosts are told apart and reached.
func networkChecks() []Check {
	return []Check{
		{
			ID: "ports", Groups: []string{GroupNetwork}, Level: Block, Title: "the ports are free", OK: hasPorts,
			Why:    "the API server, etcd, the kubelet or the registry could not listen there",
			Fix:    "stop the program that has the port",
			Source: "kubeadm Port-*",
		},
		{
			ID: "address", Groups: []string{GroupNetwork}, Level: Block, Title: "the host has the address that the inventory gives", OK: hasAddress,
			Why:    "other hosts would look for this one in vain",
			Fix:    "correct internalIPv4 (or address) in the inventory, or configure the address on the host",
			Source: "KubeKey v4 network_precheck",
		},
		{
			ID: "address-unique", Groups: []string{GroupNetwork}, Level: Block, Title: "no other host has its address", OK: hasUniqueAddress,
			Why:    "two hosts with one address cannot be told apart",
			Fix:    "correct internalIPv4 (or address) in the inventory",
			Source: "kkbundle",
		},
		{
			ID: "networks", Groups: []string{GroupNetwork}, Level: Block, Title: "its networks do not overlap those of pods and services", OK: hasNoOverlap, Roles: cluster(),
			Why:    "traffic to other hosts would end in the pod network",
			Fix:    "choose another kubernetes.podCIDR or serviceCIDR in the cluster file",
			Source: "kkbundle",
		},
		{
			ID: "default-route", Groups: []string{GroupNetwork}, Level: Warn, Title: "there is a default route", OK: hasDefaultRoute, Roles: cluster(),
			Why:    "some programs choose a host's address by it, and services in the cluster may be unreachable from the host without one",
			Fix:    "set one, also where it leads nowhere",
			Source: "k3s #1144, rke2 #1242: choice of the address",
		},
		{
			ID: "machine-unique", Groups: []string{GroupHost}, Level: Warn, Title: "no other host is the same machine", OK: isUniqueMachine,
			Why:    "hosts with one machine id were cloned, or one machine is listed twice; address services give them one address",
			Fix:    "on a clone: rm /etc/machine-id && systemd-machine-id-setup, and reboot",
			Source: "kubeadm: unique hostname, MAC address and product_uuid",
		},
		{
			ID: "mac-unique", Groups: []string{GroupHost}, Level: Warn, Title: "no other host has its MAC addresses", OK: hasUniqueMAC,
			Why:    "a switch sends what is for one of them to the other",
			Fix:    "give the cloned machine a MAC address of its own",
			Source: "kubeadm: unique hostname, MAC address and product_uuid",
		},
	}
}

// foreignChecks are about what others have installed.
func foreignChecks() []Check {
	return []Check{
		{
			ID: "leftovers", Groups: []string{GroupKubernetes}, Level: Block, Title: "no other cluster has left anything behind", OK: hasNoLeftovers,
			Why:    "kubeadm refuses to start over files of an earlier cluster, and etcd must not start with another one's data",
			Fix:    "if nobody needs that cluster any more: kubeadm reset, then remove what is named here",
			Source: "kubeadm FileAvailable-*, DirAvailable--var-lib-etcd",
		},
		{
			ID: "cni-config", Groups: []string{GroupNetwork}, Level: Block, Title: "no other pod network is configured", OK: hasNoForeignCNI, Roles: cluster(),
			Why:    "containerd uses the first configuration that it finds, so pods would not get this cluster's network",
			Fix:    "remove the files from " + cniDir,
			Source: "containerd CRI, max_conf_num",
		},
		{
			ID: "runtime", Groups: []string{GroupCRI}, Level: Warn, Title: "no other container runtime is in use", OK: hasNoForeignRuntime, Roles: cluster(),
			Why:    "the installation brings its own containerd and restarts it: containers that run with another one stop",
			Fix:    "move these containers elsewhere, or use another host",
			Source: "kkbundle",
		},
	}
}

// settingChecks are about settings that keep a cluster from working well.
func settingChecks() []Check {
	return []Check{
		{
			ID: "clock", Groups: []string{GroupHost}, Level: Warn, Title: "its clock agrees with the others", OK: hasClock,
			Why:    "certificates are not valid yet on a host whose clock is behind, and etcd warns",
			Fix:    "set the clock, and let the hosts take the time from one of them (chrony)",
			Source: "kkbundle: at most 2 s",
		},
		{
			ID: "time-sync", Groups: []string{GroupHost}, Level: Warn, Title: "the clock is synchronised", OK: isTimeSynced,
			Why:    "clocks that are right today drift apart",
			Fix:    "let chrony or systemd-timesyncd take the time from a server of the site",
			Source: "timedatectl",
		},
		{
			ID: "dns", Groups: []string{GroupNetwork}, Level: Warn, Title: "a nameserver is configured that pods can use", OK: hasNameserver, Roles: cluster(),
			Why:    "CoreDNS forwards to the host's nameservers: without one it does not start, with one on the host itself it asks itself",
			Fix:    "name the site's nameserver in /etc/resolv.conf",
			Source: "Kubespray; CoreDNS plugins forward and loop",
		},
		{
			ID: "proxy", Groups: []string{GroupNetwork}, Level: Warn, Title: "no proxy is set", OK: hasNoProxy,
			Why:    "programs would ask the proxy for the registry and the API server",
			Fix:    "remove the proxy from /etc/environment and the login scripts, or exempt the cluster's networks with NO_PROXY",
			Source: "kubeadm HTTPProxy, HTTPProxyCIDR",
		},
		{
			ID: "firewall", Groups: []string{GroupNetwork}, Level: Warn, Title: "no firewall is active", OK: hasNoFirewall,
			Why:    "hosts must reach each other on the ports of their roles, and pods each other through UDP 8472",
			Fix:    "open the ports between the hosts, or switch the firewall off",
			Source: "kubeadm Firewalld",
		},
		{
			ID: "selinux", Groups: []string{GroupOS}, Level: Warn, Title: "SELinux does not enforce", OK: isSELinuxOff,
			Why:    "its rules do not know programs in /usr/local and may keep them from running",
			Fix:    "setenforce 0, and SELINUX=permissive in /etc/selinux/config",
			Source: "KubeKey v4 and Kubespray switch it off or to permissive",
		},
	}
}
