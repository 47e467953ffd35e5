package precheck

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// kernelChecks check the kernel.
func kernelChecks() []Check {
	return []Check{
		{
			ID: "kernel", Groups: []string{GroupOS}, Level: Block, Title: "the kernel is new enough", Rule: hasKernel, Roles: cluster(),
			Why:    "container runtimes and pod networks need features of newer kernels",
			Fix:    "update the kernel, or lower precheck.minKernel in the cluster file",
			Source: "KubeKey v4 min_kernel_version (4.9.17)",
		},
		{
			ID: "kernel-network", Groups: []string{GroupOS, GroupNetwork}, Level: Block, Title: "the kernel is new enough for the pod network and kube-proxy", Rule: hasNetworkKernel, Roles: cluster(),
			Why:    "programs that they load into the kernel are refused by an older one",
			Fix:    "update the kernel, or choose another cni.type or kubernetes.proxyMode",
			Source: "Kubespray (cilium 4.9.17); Cilium's system requirements (5.4 or RHEL 8.6 since 1.16, 5.10 or RHEL 8.10 since 1.18); Kubernetes: nftables mode (5.13)",
		},
		{
			ID: "kernel-tested", Groups: []string{GroupOS}, Level: Warn, Title: "the kernel is one that Kubernetes is tested with", Rule: isTestedKernel, Roles: cluster(),
			Why:     "Kubernetes is tested with long-term kernels (5.4, 5.10, 5.15) and those since 6.0; others may lack fixes",
			Fix:     "use a long-term kernel, or one that a distribution maintains for years",
			Source:  "kubeadm SystemVerification (1.34)",
			Kubeadm: []string{"SystemVerification"},
		},
		{
			ID: "kernel-config", Groups: []string{GroupOS}, Level: Warn, Title: "the kernel's configuration has the options that containers need", Rule: hasKernelConfig, Roles: cluster(),
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

// networks returns the pod networks of the cluster: multus adds one to another.
func networks(c *manifest.Cluster) []manifest.NetworkType {
	if c.CNI.Type == manifest.NetworkMultus {
		return []manifest.NetworkType{manifest.NetworkMultus, c.CNI.With}
	}
	return []manifest.NetworkType{c.CNI.Type}
}

func hasNetwork(c *manifest.Cluster, name manifest.NetworkType) bool {
	return slices.Contains(networks(c), name)
}

func hasNetworkKernel(s *Subject) Finding {
	least := ciliumKernel(s.Cluster)
	if isForCilium(s.Facts.Kernel, least) {
		least = ""
	}
	if s.Cluster.Kubernetes.ProxyMode == manifest.ProxyNFTables {
		least = "5.13" // more than any Cilium requires
	}
	if least == "" {
		return skip()
	}
	return atLeast(s.Facts.Kernel, least)
}

// isForCilium reports whether a kernel is one that Cilium names as equivalent to the version that it requires: the 4.18 of
// RHEL 8.6 and its rebuilds for 5.4, that of RHEL 8.10 for 5.10. It names no 4.19 of another distribution.
// https://docs.cilium.io/en/stable/operations/system_requirements/
func isForCilium(kernel, least string) bool {
	const rhel86, rhel810 = 372, 553
	build := rhel810
	switch least {
	case "":
		return false
	case "5.4":
		build = rhel86
	}
	v := numbers(strings.ReplaceAll(kernel, "-", "."))
	const number = 3
	return strings.Contains(kernel, ".el8") && len(v) > number && slices.Equal(v[:number], []int{4, 18, 0}) && v[number] >= build
}

// ciliumKernel returns the least kernel for the cluster's Cilium, "" without Cilium.
func ciliumKernel(c *manifest.Cluster) string {
	switch v := c.CNI.Version; {
	case !hasNetwork(c, manifest.NetworkCilium):
		return ""
	case c.CNI.Type == manifest.NetworkCilium && isBefore(v, 1, 16):
		return "4.9.17"
	case c.CNI.Type == manifest.NetworkCilium && isBefore(v, 1, 18):
		return "5.4"
	default:
		return "5.10"
	}
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
			ID: "cgroups", Groups: []string{GroupOS}, Level: Block, Title: "the kernel has the control groups", Rule: hasCgroups, Roles: cluster(),
			Why:     "the kubelet does not start without them",
			Fix:     "remove cgroup_disable= from the kernel's command line; on a Raspberry Pi add cgroup_enable=memory",
			Source:  "kubeadm SystemVerification",
			Kubeadm: []string{"SystemVerification"},
		},
		{
			ID: "cgroup-version", Groups: []string{GroupOS}, Level: Block, Title: "control groups are version 2", Rule: isCgroup2, Roles: cluster(),
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
