package precheck

import (
	"fmt"
	"strconv"

	"github.com/kkbundle/kkbundle/installer/node"
)

// Kernel parameters used by checks.
const (
	forward4  = "net.ipv4.ip_forward"
	forward6  = "net.ipv6.conf.default.forwarding"
	bridge4   = "net.bridge.bridge-nf-call-iptables"
	bridge6   = "net.bridge.bridge-nf-call-ip6tables"
	disabled6 = "net.ipv6.conf.all.disable_ipv6"
)

func sysctls() []string { return []string{forward4, forward6, bridge4, bridge6, disabled6} }

// sysctlChecks check kernel parameters. An installation by kkbundle sets them, so their present values matter only for
// other installers: they are warnings, for who looks at hosts without a bundle may install from one.
func sysctlChecks() []Check {
	return []Check{
		{
			ID: "ip-forward", Groups: []string{GroupNetwork}, Level: Warn, Title: "the host forwards packets",
			Rule: forwards, Roles: cluster(),
			Why:     "pods reach nothing outside their host, and kubeadm refuses to start",
			Fix:     "sysctl -w net.ipv4.ip_forward=1, and the same in a file of /etc/sysctl.d; an installation by kkbundle does so",
			Source:  "kubeadm FileContent--proc-sys-net-ipv4-ip_forward",
			Kubeadm: []string{"FileContent--proc-sys-net-ipv4-ip_forward"},
		},
		{
			ID: "ipv6-forward", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the host forwards packets of IPv6 where the cluster uses it", Rule: forwards6, Roles: cluster(),
			LevelOf: forward6Level, Varies: "warns about forwarding, which the installation sets; blocks if IPv6 is switched off",
			Why:     "pods reach nothing outside their host by IPv6, and kubeadm refuses to start",
			Fix:     "net.ipv6.conf.all.forwarding=1 and net.ipv6.conf.default.forwarding=1 in a file of /etc/sysctl.d; an installation by kkbundle does so, but does not switch IPv6 on",
			Source:  "kubeadm FileContent--proc-sys-net-ipv6-conf-default-forwarding (KubeKey sets all, kubeadm reads default)",
			Kubeadm: []string{"FileContent--proc-sys-net-ipv6-conf-default-forwarding"},
		},
		{
			ID: "bridge-netfilter", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "bridged packets go through iptables", Rule: filtersBridges, Roles: cluster(),
			Why:    "services that lead to a pod on the same host do not answer",
			Fix:    "modprobe br_netfilter, and net.bridge.bridge-nf-call-iptables=1 in a file of /etc/sysctl.d; an installation by kkbundle does so",
			Source: "kubeadm up to 1.29; KubeKey and Kubespray set it",
			Kubeadm: []string{
				"FileContent--proc-sys-net-bridge-bridge-nf-call-iptables",
				"FileContent--proc-sys-net-bridge-bridge-nf-call-ip6tables",
			},
		},
		{
			ID: "inotify", Groups: []string{GroupOS}, Level: Warn, Title: "enough files can be watched",
			Rule: watchesEnough, Roles: cluster(),
			Why:    "the kubelet and pods that follow logs fail with \"too many open files\"",
			Fix:    "fs.inotify.max_user_instances=8192 and fs.inotify.max_user_watches=524288 in a file of /etc/sysctl.d; an installation by kkbundle does so",
			Source: "kind, known issues (512 instances); Kubespray sets 8192, KubeKey 524288 watches",
		},
		{
			ID: "pid-max", Groups: []string{GroupOS}, Level: Warn, Title: "enough processes can run", Rule: runsEnough,
			Roles:  cluster(),
			Why:    "with many pods, new processes fail with \"resource temporarily unavailable\"",
			Fix:    "kernel.pid_max=4194304 in a file of /etc/sysctl.d",
			Source: "the kernel's own default (32768) as the least; KubeKey sets 4194304",
		},
		{
			ID: "entropy", Groups: []string{GroupOS}, Level: Warn, Title: "there are enough random numbers",
			Rule:   isRandom,
			Why:    "making keys and TLS connections waits for minutes on kernels before 5.6",
			Fix:    "install rng-tools or haveged, or give the virtual machine a virtio-rng device",
			Source: "Linux random(4): below 200 bits readers may wait",
		},
	}
}

// isOn checks that a parameter is 1, or will be set by the installation.
func (s *Subject) isOn(key string) Finding {
	value, known := s.Facts.Sysctls[key]
	switch {
	case value == "1":
		return pass("1")
	case s.Input.Install:
		return pass("the installation sets it")
	case len(s.Facts.Sysctls) == 0:
		return unknown("the host did not say what " + key + " is")
	case !known:
		return fail(key + " does not exist")
	default:
		return failf("%s is %s", key, value)
	}
}

func forwards(s *Subject) Finding {
	if !hasFamily(s.Cluster, is4) {
		return skip()
	}
	return s.isOn(forward4)
}

// forwards6 also covers parameters that the installation does not set: it leaves IPv6 off if it has been disabled.
func forwards6(s *Subject) Finding {
	if !hasFamily(s.Cluster, is6) {
		return skip()
	}
	if s.Facts.Sysctls[disabled6] == "1" {
		return fail("IPv6 is switched off (" + disabled6 + ")")
	}
	return s.isOn(forward6)
}

func forward6Level(s *Subject) Level {
	if s.Facts.Sysctls[disabled6] == "1" {
		return Block
	}
	return Warn
}

func filtersBridges(s *Subject) Finding {
	if s.Facts.Modules["br_netfilter"] == node.ModuleMissing {
		return skip() // reported by modules
	}
	found := s.isOn(bridge4)
	if found.State == Passed && hasFamily(s.Cluster, is6) {
		return s.isOn(bridge6)
	}
	return found
}

func watchesEnough(s *Subject) Finding {
	const instances, watches = 512, 65536 // below these limits even a few pods fail
	have := s.Facts.Limits
	text := fmt.Sprintf("%d instances, %d watches", have.InotifyInstances, have.InotifyWatches)
	switch {
	case s.Input.Install:
		return pass("the installation raises them")
	case have.InotifyInstances == 0 || have.InotifyWatches == 0:
		return unknown("the limits are not known")
	case have.InotifyInstances < instances || have.InotifyWatches < watches:
		return fail(text)
	default:
		return pass(text)
	}
}

func runsEnough(s *Subject) Finding {
	const least = 32768
	switch n := s.Facts.Limits.PIDs; {
	case n == 0:
		return unknown("kernel.pid_max is not known")
	case n < least:
		return failf("%d, needed are %d", n, least)
	default:
		return pass(strconv.FormatInt(n, 10))
	}
}

func isRandom(s *Subject) Finding {
	const least = 200
	bits := s.Facts.Limits.Entropy
	switch {
	case len(numbers(s.Facts.Kernel)) > 0 && !isBefore(s.Facts.Kernel, 5, 6):
		return skip() // such a kernel does not block once it has started
	case bits == 0:
		return unknown("kernel.random.entropy_avail is not known")
	case bits < least:
		return failf("%d bits", bits)
	default:
		return pass(fmt.Sprintf("%d bits", bits))
	}
}
