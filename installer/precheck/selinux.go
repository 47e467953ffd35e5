package precheck

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// Packages with SELinux's policy for containers, and with that of k3s.
const (
	containerPolicy = "container-selinux"
	k3sPolicy       = "k3s-selinux"
)

// policyFiles returns the files of the policy packages' modules, one of which a host with the package has.
func policyFiles(pkg string) []string {
	if pkg == k3sPolicy {
		return []string{"/usr/share/selinux/packages/k3s.pp"}
	}
	return []string{
		"/usr/share/selinux/packages/container.pp.bz2",
		"/var/lib/selinux/targeted/active/modules/200/container",
	}
}

// labelProgram finds the label that a file must have.
const labelProgram = "matchpathcon"

func selinuxChecks() []Check {
	return []Check{{
		ID: "selinux", Groups: []string{GroupOS}, Level: Block,
		Title: "where SELinux is on, it knows the cluster's programs and containers", Rule: fitsSELinux,
		Roles:   cluster(),
		LevelOf: selinuxLevel, Varies: "warns of a missing policy where SELinux is permissive now and after the next boot, and on Debian and Ubuntu, which have no package of it",
		Why: "programs from the bundle get the label of the host's policy; without the policy for containers, they run like any service",
		Fix: "leave SELinux on and install the packages that the finding names, or build the bundle with packages for this distribution",
		Source: "container-selinux: container.fc has the labels of containerd, runc, the kubelet and their directories; " +
			"k3s-selinux for k3s",
	}}
}

// fitsSELinux checks tools and policies. Packages that the bundle brings count as installed.
func fitsSELinux(s *Subject) Finding {
	mode := s.Facts.SELinux
	if mode == "" {
		return pass("off")
	}
	if s.Facts.SELinuxConfig != "" && s.Facts.SELinuxConfig != mode {
		mode += ", after the next boot " + s.Facts.SELinuxConfig
	}
	var missing []string
	if lacksLabelProgram(s.Facts) {
		missing = append(missing, labelProgram+" (package libselinux-utils, on Debian and Ubuntu selinux-utils)")
	}
	policy := containerPolicy
	if s.Cluster.Kubernetes.Distribution == manifest.DistributionK3s {
		policy = k3sPolicy
	}
	there, known := hasPolicy(s.Facts, policy)
	if !known {
		return unknown("SELinux is " + mode + "; the host did not say whether it has " + policy)
	}
	if !there && !s.brings(policy) {
		missing = append(missing, policyRemedy(s.Facts, policy))
	}
	if len(missing) > 0 {
		return fail(mode + "; missing: " + strings.Join(missing, ", "))
	}
	return pass(mode)
}

// policyRemedy names the package with a policy, or says that the distribution has none.
func policyRemedy(f *node.Facts, pkg string) string {
	switch {
	case pkg == k3sPolicy:
		return pkg + " (from the releases of github.com/k3s-io/k3s-selinux, not from the distribution)"
	case isDebian(f):
		return "a policy for containers (" + f.OS.ID + " has no package of it; containers run unconfined)"
	default:
		return pkg
	}
}

// hasPolicy reports whether the host has a policy package; known is false if the host was not asked.
func hasPolicy(f *node.Facts, pkg string) (there, known bool) {
	for _, name := range policyFiles(pkg) {
		known = known || slices.ContainsFunc(f.Paths, func(p node.Path) bool { return p.Path == name })
		there = there || f.Path(name).Type != ""
	}
	return there, known
}

// selinuxLevel blocks where install could not set labels, or where SELinux enforces without the distribution's policy
// for containers.
func selinuxLevel(s *Subject) Level {
	enforces := s.Facts.SELinux == "enforcing" || s.Facts.SELinuxConfig == "enforcing"
	if lacksLabelProgram(s.Facts) || enforces && !isDebian(s.Facts) {
		return Block
	}
	return Warn
}

func lacksLabelProgram(f *node.Facts) bool {
	return len(f.Executables) > 0 && !f.Executable(labelProgram)
}

func isDebian(f *node.Facts) bool {
	return slices.Contains([]string{"debian", "ubuntu"}, strings.ToLower(f.OS.ID))
}

// Unneeded removes packages that this host does not need although its distribution has them: the policy for
// containers where SELinux is off, and further kernel modules where no module is missing.
func Unneeded(f *node.Facts, c *manifest.Cluster, packages []string) []string {
	missing, _ := lacking(f, moduleNeeds(c, network.All().Of(c)))
	return slices.DeleteFunc(slices.Clone(packages), func(name string) bool {
		return name == containerPolicy && f.SELinux == "" || name == "kernel-modules-extra" && len(missing) == 0
	})
}
