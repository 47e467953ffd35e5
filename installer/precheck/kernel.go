package precheck

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/manifest"
)

// kernelChecks check the kernel.
func kernelChecks(known network.Table) []Check {
	return []Check{
		{
			ID: "kernel", Groups: []string{GroupOS}, Level: Block, Title: "the kernel is new enough", Rule: hasKernel,
			Roles:  cluster(),
			Why:    "container runtimes and pod networks need features of newer kernels",
			Fix:    "update the kernel, or lower precheck.minKernel in the cluster file",
			Source: "KubeKey v4 min_kernel_version (4.9.17)",
		},
		{
			ID: "kernel-network", Groups: []string{GroupOS, GroupNetwork}, Level: Block,
			Title: "the kernel is new enough for the pod network and kube-proxy", Rule: hasNetworkKernel,
			Roles:  cluster(),
			Why:    "programs that they load into the kernel are refused by an older one",
			Fix:    "update the kernel, or choose another cni.type or kubernetes.proxyMode",
			Source: kernelSources(known) + "; Kubernetes: nftables mode (" + nftablesKernel + ")",
		},
		{
			ID: "kernel-tested", Groups: []string{GroupOS}, Level: Warn,
			Title: "the kernel is one that Kubernetes is tested with", Rule: isTestedKernel, Roles: cluster(),
			Why:     "Kubernetes is tested with long-term kernels (5.4, 5.10, 5.15) and those since 6.0; others may lack fixes",
			Fix:     "use a long-term kernel, or one that a distribution maintains for years",
			Source:  "kubeadm SystemVerification (1.34)",
			Kubeadm: []string{"SystemVerification"},
		},
		{
			ID: "kernel-config", Groups: []string{GroupOS}, Level: Warn,
			Title: "the kernel's configuration has the options that containers need", Rule: hasKernelConfig,
			Roles:   cluster(),
			Why:     "without these options containers do not start, or their limits do not hold",
			Fix:     "use a distribution's standard kernel",
			Source:  "kubeadm SystemVerification",
			Kubeadm: []string{"SystemVerification"},
		},
	}
}

func hasKernel(s *Subject) Finding { return atLeast(s.Facts.Kernel, s.Cluster.Precheck.MinKernel) }

// atLeast compares a host's kernel with the least one.
func atLeast(have, least string) Finding {
	switch v := numbers(have); {
	case len(v) == 0:
		return unknown("the kernel's version is not known")
	case slices.Compare(v, numbers(least)) < 0:
		return failf("%s, needed is %s", have, least)
	default:
		return pass(have)
	}
}

// numbers returns the leading numbers of a version: 5, 14, 0 of 5.14.0-427.el9.
func numbers(version string) []int {
	var list []int
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			return list
		}
		list = append(list, n)
		if digits != part {
			return list
		}
	}
	return list
}

// isBefore reports whether a version is older than another, whose number of parts determines the precision. An unknown
// version counts as the newest.
func isBefore(version string, than ...int) bool {
	v := numbers(version)
	return len(v) > 0 && slices.Compare(v[:min(len(v), len(than))], than) < 0
}

// nftablesKernel is the least kernel for kube-proxy's mode nftables.
const nftablesKernel = "5.13"

func hasNetworkKernel(s *Subject) Finding {
	least := ""
	raise := func(to string) {
		if slices.Compare(numbers(least), numbers(to)) < 0 {
			least = to
		}
	}
	for _, n := range s.networks() {
		raise(leastKernel(n, s))
	}
	if s.Cluster.Kubernetes.ProxyMode == manifest.ProxyNFTables {
		raise(nftablesKernel)
	}
	if least == "" {
		return skip()
	}
	return atLeast(s.Facts.Kernel, least)
}

// leastKernel returns the least kernel for the cluster's release of a pod network, "" if it needs none or the host's
// is one that the network names as equivalent. Of a network below another one the newest release counts: cni.version
// is the other one's.
func leastKernel(n network.Network, s *Subject) string {
	release := ""
	if s.Cluster.CNI.Type == n.Name {
		release = s.Cluster.CNI.Version
	}
	for _, k := range n.Kernels {
		if len(k.Before) > 0 && !isBefore(release, k.Before...) {
			continue
		}
		if isOfRHEL8(s.Facts.Kernel, k.RHEL8) {
			return ""
		}
		return k.Least
	}
	return ""
}

// isOfRHEL8 reports whether a kernel is the 4.18 of RHEL 8 or a rebuild of it, of this build or a later one; no build
// is 0.
func isOfRHEL8(kernel string, build int) bool {
	v := numbers(strings.ReplaceAll(kernel, "-", "."))
	const number = 3
	return build > 0 && strings.Contains(kernel, ".el8") && len(v) > number &&
		slices.Equal(v[:number], []int{4, 18, 0}) && v[number] >= build
}

// kernelSources names where the least kernels of pod networks are from.
func kernelSources(known network.Table) string {
	var list []string
	for _, n := range known {
		if n.KernelSource != "" {
			list = append(list, n.KernelSource)
		}
	}
	return strings.Join(list, "; ")
}

// isMaintained reports whether a kernel is from an enterprise distribution, with more features than its number tells.
func isMaintained(kernel string) bool {
	marks := []string{".el8", ".el9", ".el10", ".oe1", ".oe2", ".ky10", ".ky11", ".uelc20", "-default"}
	return slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(kernel, mark) })
}

func isTestedKernel(s *Subject) Finding {
	kernel := s.Facts.Kernel
	v := numbers(kernel)
	const series = 2
	switch {
	case len(v) < series:
		return unknown("the kernel's version is not known")
	case v[0] >= 6, isMaintained(kernel), v[0] == 5 && slices.Contains([]int{4, 10, 15}, v[1]):
		return pass(kernel)
	default:
		return fail(kernel)
	}
}

// kernelOptions returns kubeadm's; one of the last two is enough.
func kernelOptions() []string {
	return []string{
		"CONFIG_NAMESPACES", "CONFIG_NET_NS", "CONFIG_PID_NS", "CONFIG_IPC_NS", "CONFIG_UTS_NS", "CONFIG_CGROUPS",
		"CONFIG_CPUSETS", "CONFIG_MEMCG", "CONFIG_INET", "CONFIG_EXT4_FS", "CONFIG_PROC_FS",
		"CONFIG_NETFILTER_XT_MATCH_COMMENT", "CONFIG_FAIR_GROUP_SCHED",
		"CONFIG_NETFILTER_XT_TARGET_REDIRECT", "CONFIG_IP_NF_TARGET_REDIRECT",
	}
}

func hasKernelConfig(s *Subject) Finding {
	config := s.Facts.KernelConfig
	if config == nil {
		return unknown("the configuration is nowhere to be read (/proc/config.gz, /boot/config-*)")
	}
	options := kernelOptions()
	all, either := options[:len(options)-2], options[len(options)-2:]
	isSet := func(option string) bool { return config[option] == "y" || config[option] == "m" }
	var missing []string
	for _, option := range all {
		if !isSet(option) {
			missing = append(missing, option)
		}
	}
	if !slices.ContainsFunc(either, isSet) {
		missing = append(missing, strings.Join(either, " or "))
	}
	if len(missing) > 0 {
		return fail("not set: " + strings.Join(missing, ", "))
	}
	return pass("all options are set")
}

// cgroupChecks check the kernel's control groups.
func cgroupChecks() []Check {
	return []Check{
		{
			ID: "cgroups", Groups: []string{GroupOS}, Level: Block, Title: "the kernel has the control groups",
			Rule: hasCgroups, Roles: cluster(),
			Why:     "the kubelet does not start without them",
			Fix:     "remove cgroup_disable= from the kernel's command line; on a Raspberry Pi add cgroup_enable=memory",
			Source:  "kubeadm SystemVerification",
			Kubeadm: []string{"SystemVerification"},
		},
		{
			ID: "cgroup-version", Groups: []string{GroupOS}, Level: Block, Title: "control groups are version 2",
			Rule: isCgroup2, Roles: cluster(),
			LevelOf: cgroupLevel, Varies: "warns before Kubernetes 1.35, and where kubernetes.kubelet has failCgroupV1: false",
			Why:     "Kubernetes only maintains its support of version 1; since 1.35 kubeadm refuses it and the kubelet does not start with it",
			Fix:     "boot with systemd.unified_cgroup_hierarchy=1, or use a newer release of the distribution; or set kubernetes.kubelet.failCgroupV1 to false: kkbundle then has kubeadm skip SystemVerification",
			Source:  "kubeadm SystemVerification; kubelet failCgroupV1",
			Kubeadm: []string{"SystemVerification"},
		},
	}
}

// hasCgroups checks kubeadm's controllers. Version 2 has devices and freezer without listing them.
func hasCgroups(s *Subject) Finding {
	g := s.Facts.Cgroups
	needed := []string{"cpu", "cpuset", "memory", "pids"}
	switch g.Version {
	case 2:
	case 1:
		needed = append(needed, "cpuacct", "devices", "freezer")
	default:
		return fail("none are mounted")
	}
	var missing []string
	for _, n := range needed {
		if !slices.Contains(g.Controllers, n) {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return failf("version %d without %s", g.Version, strings.Join(missing, ", "))
	}
	return pass(fmt.Sprintf("version %d with all controllers", g.Version))
}

func isCgroup2(s *Subject) Finding {
	switch s.Facts.Cgroups.Version {
	case 0:
		return skip() // reported by cgroups
	case 2:
		return pass("version 2")
	default:
		return failf("version %d", s.Facts.Cgroups.Version)
	}
}

func cgroupLevel(s *Subject) Level {
	stays, said := s.Cluster.Kubernetes.Kubelet["failCgroupV1"].(bool)
	if v := s.Cluster.Kubernetes.Version; v == "" || isBefore(v, 1, 35) || said && !stays {
		return Warn
	}
	return Block
}
