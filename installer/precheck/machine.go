package precheck

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// machineChecks check the hardware.
func machineChecks() []Check {
	return slices.Concat(systemChecks(), identityChecks(), []Check{
		{
			ID: "cpu", Groups: []string{GroupOS}, Level: Block, Title: "a control plane has 2 CPUs or more",
			Rule: hasCPUs, Roles: controlPlane(),
			Why:     "with one CPU the control plane's own requests do not fit, and kubeadm refuses to start",
			Fix:     "give the machine at least 2 CPUs",
			Source:  "kubeadm NumCPU",
			Kubeadm: []string{"NumCPU"},
		},
		{
			ID: "memory", Groups: []string{GroupOS}, Level: Block, Title: "there is enough memory for the host's roles",
			Rule: hasMemory, Roles: cluster(),
			Why:     "processes would be killed for lack of memory, the API server or etcd among them",
			Fix:     "give the machine more memory, or lower precheck.minMemory in the cluster file",
			Source:  "kubeadm Mem (1700 MiB); Kubespray (workers 1024 MB)",
			Kubeadm: []string{"Mem"},
		},
		{
			ID: "swap", Groups: []string{GroupOS}, Level: Warn, Title: "swap is off", Rule: isSwapOff, Roles: cluster(),
			Why:     "the kubelet does not start with swap on",
			Fix:     "nothing needs to be done for an installation by kkbundle, which switches it off; else: swapoff -a, and take it out of /etc/fstab",
			Source:  "kubeadm Swap; kubelet failSwapOn",
			Kubeadm: []string{"Swap"},
		},
	})
}

// systemChecks check the operating system.
func systemChecks() []Check {
	return []Check{
		{
			ID: "privileges", Groups: []string{GroupOS}, Level: Block, Title: "commands run as root", Rule: isRoot,
			Why:     "an installation writes to /etc and /usr/local and controls systemd",
			Fix:     "log in as root, or as a user who may run every command with sudo",
			Source:  "kubeadm IsPrivilegedUser",
			Kubeadm: []string{"IsPrivilegedUser"},
		},
		{
			ID: "systemd", Groups: []string{GroupOS}, Level: Block, Title: "systemd is the init system",
			Rule:   isSystemd,
			Why:    "the registry, containerd and the kubelet run as systemd units",
			Fix:    "use a distribution with systemd",
			Source: "Kubespray: service manager must be systemd",
		},
		{
			ID: "os", Groups: []string{GroupOS}, Level: Block, Title: "the distribution is supported",
			Rule: isSupportedOS,
			Why:  "on others, nobody has tried whether the installation works",
			Fix: "use one of " + strings.Join(manifest.HostDistributions(), ", ") +
				", or set precheck.allowUnsupportedDistributions in the cluster file",
			Source: "KubeKey v4 os_precheck, widened by the rebuilds of the same distributions",
		},
		{
			ID: "architecture", Groups: []string{GroupOS, GroupKKBundle}, Level: Block,
			Title: "the architecture is supported, and the bundle has it", Rule: hasArchitecture,
			Why:    "programs and images of another architecture do not run",
			Fix:    "build the bundle with this platform in platforms, or use an amd64 or arm64 machine",
			Source: "KubeKey v4 os_precheck",
		},
	}
}

// identityChecks check that hosts are distinguishable.
func identityChecks() []Check {
	return []Check{
		{
			ID: "hostname", Groups: []string{GroupOS}, Level: Block, Title: "the host's name can be a node's name",
			Rule:    hasNodeName,
			Why:     "Kubernetes refuses nodes whose name is not a DNS name in lower case, or is longer than the value of a label",
			Fix:     "rename the host in the inventory: at most 63 lower case letters, digits, hyphens and dots",
			Source:  "RFC 1123; kubeadm Hostname",
			Kubeadm: []string{"Hostname"},
		},
		{
			ID: "hostname-unique", Groups: []string{GroupOS, GroupHost}, Level: Warn,
			Title: "no other host calls itself by its name", Rule: hasUniqueName,
			Why:    "logs and monitoring cannot tell the hosts apart, and installers that take a node's name from the host register only one of them",
			Fix:    "hostnamectl set-hostname with the host's name in the inventory",
			Source: "kubeadm: unique hostname, MAC address and product_uuid",
		},
		{
			ID: "machine-unique", Groups: []string{GroupHost}, Level: Warn, Title: "no other host is the same machine",
			Rule:   isUniqueMachine,
			Why:    "hosts with one machine id were cloned, or one machine is listed twice; address services give them one address",
			Fix:    "on a clone: rm /etc/machine-id && systemd-machine-id-setup, and reboot",
			Source: "kubeadm: unique hostname, MAC address and product_uuid",
		},
		{
			ID: "product-unique", Groups: []string{GroupHost}, Level: Warn, Title: "no other host has its product UUID",
			Rule:   hasUniqueProduct,
			Why:    "Kubernetes tells machines apart by it, and drivers for disks of a hypervisor attach to the wrong one",
			Fix:    "give the cloned machine a UUID of its own in the hypervisor",
			Source: "kubeadm: unique hostname, MAC address and product_uuid",
		},
		{
			ID: "mac-unique", Groups: []string{GroupHost, GroupNetwork}, Level: Warn,
			Title: "no other host has its MAC addresses", Rule: hasUniqueMAC,
			Why:    "a switch sends packets for one of them to the other",
			Fix:    "give the cloned machine a MAC address of its own",
			Source: "kubeadm: unique hostname, MAC address and product_uuid",
		},
	}
}

func isRoot(s *Subject) Finding {
	if s.Facts.UID == 0 {
		return pass("root")
	}
	return failf("user id %d", s.Facts.UID)
}

func isSystemd(s *Subject) Finding {
	if s.Facts.Systemd.Init {
		return pass("systemd " + s.Facts.Systemd.Version)
	}
	return fail("another one")
}

func isSupportedOS(s *Subject) Finding {
	os := s.Facts.OS
	name := os.PrettyName
	if name == "" {
		name = strings.TrimSpace(os.ID + " " + os.VersionID)
	}
	name = cmp.Or(name, "no /etc/os-release")
	if s.Cluster.Precheck.AllowUnsupportedDistributions || slices.Contains(manifest.HostDistributions(),
		strings.ToLower(os.ID)) {
		return pass(name)
	}
	return fail(name)
}

func hasArchitecture(s *Subject) Finding {
	f := s.Facts
	if f.Arch == "" {
		return fail(f.Machine)
	}
	if has := s.Input.Architectures; has != nil && !slices.Contains(has, f.Arch) {
		return failf("%s, the bundle has %s", f.Arch, strings.Join(has, ", "))
	}
	return pass(f.Arch)
}

var nodeName = sync.OnceValue(func() *regexp.Regexp { //nolint:gochecknoglobals // what it holds does not change
	label := `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	return regexp.MustCompile(`^` + label + `(\.` + label + `)*$`)
})

func hasNodeName(s *Subject) Finding {
	most := 253
	if s.Host.Is(manifest.RoleCluster) {
		most = manifest.MaxNodeName
	}
	if name := s.Host.Name; len(name) > most || !nodeName().MatchString(name) {
		return fail(name)
	}
	return pass(s.Host.Name)
}

func hasUniqueName(s *Subject) Finding {
	name := s.Facts.Hostname
	if name == "" {
		return unknown("the host did not report its own name")
	}
	if also := s.fleet.byName.besides(s.Host.Name, strings.ToLower(name)); also != "" {
		return failf("%s, as %s", name, also)
	}
	return pass(name)
}

func isUniqueMachine(s *Subject) Finding {
	id := s.Facts.MachineID
	if id == "" {
		return unknown("the host has no machine id")
	}
	if also := s.fleet.byMachine.besides(s.Host.Name, id); also != "" {
		return failf("machine id %s, as %s", id, also)
	}
	return pass(id)
}

// hasUniqueProduct ignores the placeholder values of firmware without a UUID.
func hasUniqueProduct(s *Subject) Finding {
	id := strings.ToLower(s.Facts.ProductUUID)
	if strings.Trim(id, "0-") == "" || strings.Trim(id, "f-") == "" || strings.Trim(id, "0123456789abcdef-") != "" ||
		strings.HasPrefix(id, "03000200-0400-0500-0006") || strings.HasPrefix(id, "12345678-1234-5678-90ab") {
		return skip()
	}
	if also := s.fleet.byProduct.besides(s.Host.Name, id); also != "" {
		return failf("%s, as %s", id, also)
	}
	return pass(id)
}

func hasUniqueMAC(s *Subject) Finding {
	mine := macs(s.Host)
	if len(mine) == 0 && hasNoMAC(s.Host) {
		return skip()
	}
	if len(mine) == 0 {
		return unknown("no interface with a default route or the host's address has a MAC address")
	}
	var found []string
	for _, mac := range mine {
		if also := s.fleet.byMAC.besides(s.Host.Name, mac); also != "" {
			found = append(found, mac+", as "+also)
		}
	}
	return none(found, strings.Join(mine, ", "))
}

func hasCPUs(s *Subject) Finding {
	const least = 2
	switch n := s.Facts.CPUs; {
	case n == 0:
		return unknown("the number of CPUs is not known")
	case n < least:
		return fail(plain.Count(n, "CPU"))
	default:
		return pass(plain.Count(n, "CPU"))
	}
}

// hasMemory compares bytes with bytes.
func hasMemory(s *Subject) Finding {
	least, role := s.Cluster.Precheck.MinMemory.Worker, "a worker"
	if s.Host.Is(manifest.RoleControlPlane) {
		least, role = s.Cluster.Precheck.MinMemory.ControlPlane, "a control plane"
		if s.Host.Is(manifest.RoleWorker) {
			least = max(least, s.Cluster.Precheck.MinMemory.Worker)
		}
	}
	switch have := s.Facts.Memory; {
	case have <= 0:
		return unknown("the memory's size is not known")
	case have < int64(least):
		return failf("%s, %s needs %s", plain.Size(have), role, plain.Size(int64(least)))
	default:
		return pass(plain.Size(have))
	}
}

func isSwapOff(s *Subject) Finding {
	if v, ok := s.Cluster.Kubernetes.Kubelet["failSwapOn"].(bool); ok && !v {
		return pass("the cluster allows swap (failSwapOn: false)")
	}
	if len(s.Facts.Swaps) == 0 {
		return pass("off")
	}
	names := make([]string, len(s.Facts.Swaps))
	for i, w := range s.Facts.Swaps {
		names[i] = fmt.Sprintf("%s (%s)", w.Name, plain.Size(w.Size))
	}
	return fail("on: " + some(names))
}
