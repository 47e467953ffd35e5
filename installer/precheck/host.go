package precheck

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// Rules about what a host is.

func isRoot(s *Subject) (string, bool) {
	if s.Facts.UID == 0 {
		return "root", true
	}
	return fmt.Sprintf("user id %d", s.Facts.UID), false
}

func isSystemd(s *Subject) (string, bool) {
	if s.Facts.Systemd.Init {
		return "systemd " + s.Facts.Systemd.Version, true
	}
	return "another one", false
}

// supported lists the ID of /etc/os-release of the distributions that are supported.
func supported() []string {
	return []string{"ubuntu", "debian", "centos", "rhel", "rocky", "almalinux", "ol", "kylin", "openeuler", "uos"}
}

func supportedText() string { return strings.Join(supported(), ", ") }

func isSupportedOS(s *Subject) (string, bool) {
	os := s.Facts.OS
	name := os.PrettyName
	if name == "" {
		name = strings.TrimSpace(os.ID + " " + os.VersionID)
	}
	if name == "" {
		name = "no /etc/os-release"
	}
	if slices.Contains(supported(), strings.ToLower(os.ID)) {
		return name, true
	}
	return name, s.Cluster.Precheck.AllowUnsupportedDistributions
}

func hasArchitecture(s *Subject) (string, bool) {
	f := s.Facts
	if f.Arch == "" {
		return f.Machine, false
	}
	if has := s.Input.Architectures; has != nil && !slices.Contains(has, f.Arch) {
		return fmt.Sprintf("%s, the bundle has %s", f.Arch, strings.Join(has, ", ")), false
	}
	return f.Arch, true
}

func hasNodeName(s *Subject) (string, bool) {
	name := s.Host.Name
	const most = 253
	label := `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	ok := regexp.MustCompile(`^` + label + `(\.` + label + `)*$`).MatchString(name)
	return name, ok && len(name) <= most
}

func hasCPUs(s *Subject) (string, bool) {
	const least = 2
	return count(s.Facts.CPUs, "CPU"), s.Facts.CPUs >= least
}

// hasMemory compares bytes with bytes.
func hasMemory(s *Subject) (string, bool) {
	least, role := s.Cluster.Precheck.MinMemory.Worker, "a worker"
	if s.Host.Is(manifest.RoleControlPlane) {
		least, role = s.Cluster.Precheck.MinMemory.ControlPlane, "a control plane"
		if s.Host.Is(manifest.RoleWorker) {
			least = max(least, s.Cluster.Precheck.MinMemory.Worker)
		}
	}
	have := s.Facts.Memory
	if have >= int64(least) {
		return size(have), true
	}
	return fmt.Sprintf("%s, %s needs %s", size(have), role, size(int64(least))), false
}

// size writes bytes for people, in units of 1024.
func size(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	if u == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}

// hasSpace adds up what goes to the same filesystem.
func hasSpace(s *Subject) (string, bool) {
	type filesystem struct {
		mount      string
		free, need int64
		what       []string
	}
	var order []uint64
	all := map[uint64]*filesystem{}
	for _, want := range s.Host.Space {
		d, ok := s.Facts.Dir(want.Dir)
		if !ok {
			return "the free space of " + want.Dir + " is not known", false
		}
		fs := all[d.Device]
		if fs == nil {
			fs = &filesystem{mount: d.Mount, free: d.Free}
			all[d.Device] = fs
			order = append(order, d.Device)
		}
		fs.need += want.Bytes
		fs.what = append(fs.what, fmt.Sprintf("%s in %s", want.For, want.Dir))
	}
	ok := true
	var found []string
	for _, device := range order {
		fs := all[device]
		text := fmt.Sprintf("%s has %s free and needs %s", fs.mount, size(fs.free), size(fs.need))
		if fs.free < fs.need {
			ok = false
			text += " for " + strings.Join(fs.what, ", ")
		}
		found = append(found, text)
	}
	if len(found) == 0 {
		return "nothing will be written", true
	}
	return strings.Join(found, "; "), ok
}

func isWritable(s *Subject) (string, bool) {
	var wrong []string
	for _, d := range s.Facts.Dirs {
		switch {
		case d.ReadOnly:
			wrong = append(wrong, d.Path+" is read-only")
		case d.NoExec && (strings.HasPrefix(d.Path, "/usr/local") || strings.HasPrefix(d.Path, "/opt")):
			wrong = append(wrong, d.Path+" is mounted noexec")
		}
	}
	if len(wrong) > 0 {
		return strings.Join(wrong, ", "), false
	}
	return "they can", true
}

func hasKernel(s *Subject) (string, bool) {
	least := s.Cluster.Precheck.MinKernel
	have := numbers(s.Facts.Kernel)
	if len(have) > 0 && slices.Compare(have, numbers(least)) >= 0 {
		return s.Facts.Kernel, true
	}
	return fmt.Sprintf("%s, needed is %s", s.Facts.Kernel, least), false
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

// modules are what the cluster needs of the kernel.
func modules(c *manifest.Cluster) []string {
	list := []string{"overlay", "br_netfilter"}
	if c.CNI.Type == "flannel" {
		list = append(list, "vxlan")
	}
	if c.Kubernetes.ProxyMode == "ipvs" {
		list = append(list, "ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack")
	}
	return list
}

func hasModules(s *Subject) (string, bool) {
	var missing []string
	for _, m := range modules(s.Cluster) {
		if !s.Facts.Modules[m].Usable() {
			missing = append(missing, m)
		}
	}
	if len(missing) > 0 {
		return "missing: " + strings.Join(missing, ", "), false
	}
	return "all of them", true
}

// kernelOptions are kubeadm's; of the last two, one is enough.
func kernelOptions() []string {
	return []string{
		"CONFIG_NAMESPACES", "CONFIG_NET_NS", "CONFIG_PID_NS", "CONFIG_IPC_NS", "CONFIG_UTS_NS", "CONFIG_CGROUPS",
		"CONFIG_CPUSETS", "CONFIG_MEMCG", "CONFIG_INET", "CONFIG_EXT4_FS", "CONFIG_PROC_FS",
		"CONFIG_NETFILTER_XT_MATCH_COMMENT", "CONFIG_FAIR_GROUP_SCHED",
		"CONFIG_NETFILTER_XT_TARGET_REDIRECT", "CONFIG_IP_NF_TARGET_REDIRECT",
	}
}

func hasKernelConfig(s *Subject) (string, bool) {
	config := s.Facts.KernelConfig
	if config == nil {
		return "the configuration cannot be read, so it was not checked", true
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
		return "not set: " + strings.Join(missing, ", "), false
	}
	return "all options are set", true
}

// hasCgroups asks for kubeadm's controllers. Version 2 has devices and freezer without saying so.
func hasCgroups(s *Subject) (string, bool) {
	g := s.Facts.Cgroups
	needed := []string{"cpu", "cpuset", "memory", "pids"}
	switch g.Version {
	case 2:
	case 1:
		needed = append(needed, "cpuacct", "devices", "freezer")
	default:
		return "none are mounted", false
	}
	var missing []string
	for _, n := range needed {
		if !slices.Contains(g.Controllers, n) {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return fmt.Sprintf("version %d without %s", g.Version, strings.Join(missing, ", ")), false
	}
	return fmt.Sprintf("version %d with all controllers", g.Version), true
}

func isCgroup2(s *Subject) (string, bool) {
	return fmt.Sprintf("version %d", s.Facts.Cgroups.Version), s.Facts.Cgroups.Version == 2
}

func isSwapOff(s *Subject) (string, bool) {
	if v, ok := s.Cluster.Kubernetes.Kubelet["failSwapOn"].(bool); ok && !v {
		return "the cluster allows swap (failSwapOn: false)", true
	}
	if len(s.Facts.Swaps) == 0 {
		return "off", true
	}
	names := make([]string, len(s.Facts.Swaps))
	for i, w := range s.Facts.Swaps {
		names[i] = fmt.Sprintf("%s (%s)", w.Name, size(w.Size))
	}
	return "on: " + strings.Join(names, ", "), false
}

// executables are all programs that some check asks for.
func executables() []string {
	return []string{
		"cp", "mount", "losetup", "systemctl", "modprobe", "sysctl", "swapoff",
		"conntrack", "ip", "iptables", "nsenter", "crictl",
	}
}

// neededExecutables follows kubeadm, which has asked for less with each version, and adds what the installation calls.
func neededExecutables(c *manifest.Cluster) []string {
	list := []string{"cp", "mount", "losetup", "systemctl", "modprobe", "sysctl", "swapoff"}
	v := numbers(c.Kubernetes.Version)
	if len(v) < 2 || slices.Compare(v[:2], []int{1, 33}) >= 0 {
		return list
	}
	list = append(list, "ip", "iptables", "nsenter")
	if slices.Compare(v[:2], []int{1, 32}) < 0 {
		list = append(list, "conntrack")
	}
	return list
}

func hasExecutables(s *Subject) (string, bool) {
	var missing []string
	for _, name := range neededExecutables(s.Cluster) {
		if !s.Facts.Executable(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "missing: " + strings.Join(missing, ", "), false
	}
	return "all of them", true
}

func hasOptionalExecutables(s *Subject) (string, bool) {
	if s.Facts.Executable("iptables") {
		return s.Facts.Executables["iptables"], true
	}
	return "missing: iptables", false
}

// cniDir is where containerd looks for the pod network.
const cniDir = "/etc/cni/net.d"

// leftoverPaths are what an earlier cluster leaves behind.
func leftoverPaths() []string {
	return []string{
		"/etc/kubernetes/manifests", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf",
		"/etc/kubernetes/pki/ca.crt", etcdDir, "/var/lib/rancher/k3s", "/var/lib/rancher/rke2",
	}
}

const etcdDir = "/var/lib/etcd"

func hasNoLeftovers(s *Subject) (string, bool) {
	if s.Ours() {
		return "kkbundle has installed here before", true
	}
	var found []string
	for _, name := range leftoverPaths() {
		p := s.Facts.Path(name)
		// etcd's data is in the way where etcd will run, and nowhere else.
		elsewhere := name == etcdDir && !s.Host.Is(manifest.RoleEtcd) && !s.Host.Is(manifest.RoleControlPlane)
		if p.Type == "" || (p.Type == "dir" && len(p.Entries) == 0) || elsewhere {
			continue
		}
		if p.Type == "dir" {
			name = fmt.Sprintf("%s (%s)", name, some(p.Entries))
		}
		found = append(found, name)
	}
	for _, name := range []string{"kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"} {
		if u := s.Facts.Unit(name + ".service"); u.Active == "active" || u.Active == "activating" {
			found = append(found, name+" is running")
		}
	}
	if len(found) > 0 {
		return strings.Join(found, ", "), false
	}
	return "none", true
}

// some shows the first of a list.
func some(names []string) string {
	const most = 3
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

func hasNoForeignCNI(s *Subject) (string, bool) {
	var found []string
	for _, name := range s.Facts.Path(cniDir).Entries {
		isConfig := slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
		ours := s.Ours() && name == "10-flannel.conflist"
		if isConfig && !ours {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return strings.Join(found, ", "), false
	}
	return "none", true
}

func hasNoForeignRuntime(s *Subject) (string, bool) {
	if s.Ours() {
		return "kkbundle has installed here before", true
	}
	var found []string
	for _, name := range []string{"containerd", "docker", "crio"} {
		if s.Facts.Unit(name+".service").Active == "active" {
			found = append(found, withVersion(s.Facts, name))
		}
	}
	if len(found) > 0 {
		return "running: " + strings.Join(found, ", "), false
	}
	return "none", true
}

func withVersion(f *node.Facts, name string) string {
	for _, p := range f.Programs {
		if p.Name == name && p.Version != "" {
			return name + " " + p.Version
		}
	}
	return name
}

func isTimeSynced(s *Subject) (string, bool) {
	switch s.Facts.TimeSync {
	case "no":
		return "it is not", false
	case "yes":
		return "it is", true
	default:
		return "systemd does not know", true
	}
}

func isSELinuxOff(s *Subject) (string, bool) {
	if s.Facts.SELinux == "" {
		return "off", true
	}
	return s.Facts.SELinux, s.Facts.SELinux != "enforcing"
}
