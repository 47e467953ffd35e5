package precheck

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// moduleChecks check the modules of the running kernel.
func moduleChecks() []Check {
	return []Check{
		{
			ID: "modules", Groups: []string{GroupOS, GroupNetwork}, Level: Block, Title: "the kernel has the modules",
			Rule: hasModules, Roles: cluster(),
			Why: "containers need overlay, kube-proxy and pod networks the modules of iptables, nftables or IPVS, and pod networks connect hosts with vxlan, IPIP, geneve or Open vSwitch",
			Fix: "install the package that the finding names, or take out the line of modprobe.d that it names; if the package manager brings a newer kernel with it, restart the host",
			Source: "Kubernetes: container runtimes; the rules that kube-proxy writes in each mode; kubeadm's IPVS check, which it has dropped; " +
				"backends of the pod networks; the packages of the distributions' kernels",
		},
		{
			ID: "kernel-directories", Groups: []string{GroupOS, GroupNetwork}, Level: Block,
			Title: "the kernel has the directories that the pod network mounts", Rule: hasNetworkDirs, Roles: cluster(),
			Why:    "the network's pods do not start where one is missing, and no node gets ready",
			Fix:    "use a kernel with CONFIG_BPF_SYSCALL, as those of distributions; if the host is a container, give it the directory",
			Source: "Calico's operator: the volume bpffs of calico-node must be a directory",
		},
		{
			ID: "kernel-restart", Groups: []string{GroupOS}, Level: Block,
			Title: "the modules of the running kernel are installed", Rule: hasRunningKernel, Roles: cluster(),
			Why:    "the kernel was upgraded and the host not restarted since: the running kernel cannot load modules any more",
			Fix:    "restart the host",
			Source: "kkbundle: /lib/modules without the directory of uname -r",
		},
	}
}

// A moduleNeed is a kernel module, or others that do the same.
type moduleNeed []string

// String joins the alternatives.
func (n moduleNeed) String() string { return strings.Join(n, " or ") }

// moduleNeeds returns the kernel modules that the cluster needs.
func moduleNeeds(c *manifest.Cluster, networks network.Table) []moduleNeed {
	list := []moduleNeed{{"overlay"}, {"br_netfilter"}}
	need := func(names ...string) {
		for _, name := range names {
			list = append(list, moduleNeed{name})
		}
	}
	for _, n := range networks {
		need(n.Modules...)
	}
	switch c.Kubernetes.ProxyMode {
	case manifest.ProxyIPVS:
		need("ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_sh", "nf_conntrack", "ip_set", "xt_set")
	case manifest.ProxyNFTables:
		need("nf_tables", "nf_conntrack", "nft_ct", "nft_fib", "nft_masq", "nft_nat", "nft_numgen")
	case manifest.ProxyIPTables:
		need("nf_conntrack", "xt_statistic")
	}
	if c.Kubernetes.ProxyMode != manifest.ProxyNFTables {
		// iptables has two ways into the kernel, of which kube-proxy's image takes the existing one. The target's
		// name is ipt_MASQUERADE before Linux 5.2.
		list = append(list, moduleNeed{"nft_compat", "ip_tables"}, moduleNeed{"xt_MASQUERADE", "ipt_MASQUERADE"})
		need("xt_addrtype", "xt_comment", "xt_conntrack", "xt_mark", "xt_nat")
	}
	if c.DNS.NodeLocal {
		need("dummy")
	}
	return list
}

// Modules returns the kernel modules that checks of the cluster look for.
func Modules(c *manifest.Cluster) []string { return modules(c, network.All().Of(c)) }

func modules(c *manifest.Cluster, networks network.Table) []string {
	var list []string
	for _, need := range moduleNeeds(c, networks) {
		list = append(list, need...)
	}
	return unique(list)
}

func hasModules(s *Subject) Finding {
	needs := moduleNeeds(s.Cluster, s.networks())
	if found := forbidden(s.Facts, needs); len(found) > 0 {
		return fail("forbidden: " + strings.Join(found, ", ") +
			"; take the lines out there, and restart the host if it is the kernel's command line")
	}
	missing, untold := lacking(s.Facts, needs)
	if len(missing) == 0 && len(untold) > 0 {
		return unknown("no information from the host about " + strings.Join(untold, ", "))
	}
	if len(missing) == 0 {
		return pass("all of them")
	}
	return fail("missing: " + strings.Join(missing, ", ") + "; " + modulePackage(s.Facts))
}

// forbidden returns the needed modules that the host's configuration keeps from being loaded, with the places.
func forbidden(f *node.Facts, needs []moduleNeed) []string {
	var found []string
	for _, need := range needs {
		if slices.ContainsFunc(need, func(name string) bool { return f.Modules[name].Usable() }) {
			continue
		}
		for _, name := range need {
			if f.Modules[name] == node.ModuleForbidden {
				found = append(found, name+" by "+cmp.Or(f.Forbids[name], "modprobe.d"))
			}
		}
	}
	return found
}

// lacking returns the needs that the host's kernel does not meet, and those that the host told nothing about.
func lacking(f *node.Facts, needs []moduleNeed) (missing, untold []string) {
	for _, need := range needs {
		told := false
		usable := slices.ContainsFunc(need, func(name string) bool {
			told = told || f.Modules[name] == node.ModuleMissing || f.Modules[name] == node.ModuleForbidden
			return f.Modules[name].Usable()
		})
		switch {
		case usable:
		case told:
			missing = append(missing, need.String())
		default:
			untold = append(untold, need.String())
		}
	}
	return missing, untold
}

// networkDirs returns the directories that pods of the networks mount and nobody makes.
func networkDirs(c *manifest.Cluster, networks network.Table) []string {
	var dirs []string
	for _, n := range networks {
		if n.Dirs != nil {
			dirs = append(dirs, n.Dirs(c)...)
		}
	}
	return dirs
}

func hasNetworkDirs(s *Subject) Finding {
	dirs := networkDirs(s.Cluster, s.networks())
	if len(dirs) == 0 {
		return skip()
	}
	for _, dir := range dirs {
		if !slices.ContainsFunc(s.Facts.Paths, func(p node.Path) bool { return p.Path == dir }) {
			return unknown("no information from the host about " + dir)
		}
		if s.Facts.Path(dir).Type != "dir" {
			return fail("missing: " + dir)
		}
	}
	return pass(strings.Join(dirs, ", "))
}

// A kernelPackage is the package of a distribution that has the kernel modules which its smallest kernel lacks.
type kernelPackage struct {
	ids    []string // ID in /etc/os-release
	from   int      // first major version; 0 is any
	kernel string   // path.Match pattern of the kernel's release; "" is any
	// packages has UNAME for the running kernel's release.
	packages string
	// other means that the package has another kernel, which the host must start.
	other bool
}

// kernelPackages returns the known packages. The first match counts.
func kernelPackages() []kernelPackage {
	red := []string{"rhel", "rocky", "almalinux", "centos", "ol"}
	return []kernelPackage{
		// UEK 8 has moved netfilter into a package of its own: kernel-uek-modules-extra-netfilter-6.12.0-… in
		// ol9_UEKR8.
		{ids: red, kernel: "6.12.*uek*", packages: "kernel-uek-modules-extra-netfilter-UNAME"},
		// kernel-uek-modules and kernel-uek-modules-extra: yum.oracle.com, OracleLinux/OL8 and OL9/UEKR7.
		{ids: red, kernel: "*uek*", packages: "kernel-uek-modules-UNAME kernel-uek-modules-extra-UNAME"},
		// br_netfilter, nft_compat, ip_set and all xt_* are there alone: kubernetes/kops#18724,
		// openshift/microshift#7069, k3s-io/k3s-ansible#419. With the release in the package's name, dnf does not
		// bring a newer kernel with it (k3s-io/k3s-ansible#536).
		{ids: red, from: 10, packages: "kernel-modules-extra-UNAME"},
		// kernel.spec: kernel-core has what starts a machine, kernel-modules the rest, kernel-modules-extra the less
		// common.
		{ids: append(slices.Clone(red), "fedora"), packages: "kernel-modules-UNAME kernel-modules-extra-UNAME"},
		// Ubuntu's kernel for KVM has no IPVS and no package with more modules: kubernetes-sigs/kubespray#10602.
		{ids: []string{"ubuntu"}, kernel: "*-kvm", packages: "linux-image-generic", other: true},
		// Cloud and Raspberry Pi images have linux-modules alone: k0sproject/k0s#1262, flannel-io/flannel#1502.
		{ids: []string{"ubuntu"}, packages: "linux-modules-extra-UNAME"},
		// Debian's packages of a kernel are whole; the cloud kernel has these modules too
		// (linux-image-6.1.0-56-cloud-amd64, looked at).
		{ids: []string{"debian"}, packages: "linux-image-UNAME"},
	}
}

// modulePackage returns the remedy for missing modules on the host's distribution.
func modulePackage(f *node.Facts) string {
	id, major := strings.ToLower(f.OS.ID), numbers(f.OS.VersionID)
	for _, p := range kernelPackages() {
		old := p.from > 0 && (len(major) == 0 || major[0] < p.from)
		running, err := path.Match(cmp.Or(p.kernel, "*"), f.Kernel)
		if !slices.Contains(p.ids, id) || old || !running || err != nil {
			continue
		}
		text := "install " + strings.ReplaceAll(p.packages, "UNAME", f.Kernel)
		if p.other {
			text += " and restart the host with this kernel"
		}
		return text
	}
	return "kkbundle does not know which package of this distribution has modules of kernel " + f.Kernel
}

// hasRunningKernel compares the running kernel with the installed ones. A kernel without modules has no directory.
func hasRunningKernel(s *Subject) Finding {
	installed := s.Facts.InstalledKernels
	switch {
	case len(installed) == 0:
		return skip()
	case slices.Contains(installed, s.Facts.Kernel):
		return pass(s.Facts.Kernel)
	default:
		return failf("%s runs, %s is installed", s.Facts.Kernel, some(installed))
	}
}
