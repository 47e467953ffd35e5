package precheck_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// containerPolicyFile is a file of the package container-selinux.
const containerPolicyFile = "/usr/share/selinux/packages/container.pp.bz2"

// finding returns a check's result on w1.
func finding(t *testing.T, in precheck.Input, id string) precheck.Result {
	t.Helper()
	for _, r := range precheck.Evaluate(in).Results {
		if r.ID == id && r.Host == "w1" {
			return r
		}
	}
	t.Fatalf("%s: no result", id)
	return precheck.Result{}
}

// TestMissingModulesNameThePackageOfTheDistribution has a row for each distribution and kernel that the table knows,
// and one that it does not.
func TestMissingModulesNameThePackageOfTheDistribution(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ id, version, kernel, want string }{
		{"rocky", "10.1", "6.12.0-124.8.1.el10_1.x86_64", "install kernel-modules-extra-6.12.0-124.8.1.el10_1.x86_64"},
		{
			"rhel", "10.2", "6.12.0-211.34.1.el10_2.aarch64",
			"install kernel-modules-extra-6.12.0-211.34.1.el10_2.aarch64",
		},
		{
			"almalinux", "9.6", "5.14.0-570.12.1.el9_6.x86_64",
			"install kernel-modules-5.14.0-570.12.1.el9_6.x86_64 kernel-modules-extra-5.14.0-570.12.1.el9_6.x86_64",
		},
		{
			"rocky", "8.10", "4.18.0-553.el8_10.x86_64",
			"install kernel-modules-4.18.0-553.el8_10.x86_64 kernel-modules-extra-4.18.0-553.el8_10.x86_64",
		},
		{
			"fedora", "42", "6.14.0-63.fc42.x86_64",
			"install kernel-modules-6.14.0-63.fc42.x86_64 kernel-modules-extra-6.14.0-63.fc42.x86_64",
		},
		{
			"ol", "9.5", "6.12.0-103.40.4.4.el9uek.x86_64",
			"install kernel-uek-modules-extra-netfilter-6.12.0-103.40.4.4.el9uek.x86_64",
		},
		{
			"ol", "8.10", "5.15.0-307.178.5.el8uek.x86_64",
			"install kernel-uek-modules-5.15.0-307.178.5.el8uek.x86_64 kernel-uek-modules-extra-5.15.0-307.178.5.el8uek.x86_64",
		},
		{"ol", "10.0", "6.12.0-55.9.1.el10_0.x86_64", "install kernel-modules-extra-6.12.0-55.9.1.el10_0.x86_64"},
		{"ubuntu", "22.04", "5.15.0-1029-kvm", "install linux-image-generic and restart the host with this kernel"},
		{"ubuntu", "24.04", "6.8.0-1021-aws", "install linux-modules-extra-6.8.0-1021-aws"},
		{"debian", "12", "6.1.0-31-cloud-amd64", "install linux-image-6.1.0-31-cloud-amd64"},
		{
			"openEuler", "24.03", "6.6.0-72.0.0.76.oe2403.x86_64",
			"does not know which package of this distribution has modules of kernel 6.6.0-72.0.0.76.oe2403.x86_64",
		},
		{
			"kylin", "V10", "4.19.90-89.11.v2401.ky10.x86_64",
			"does not know which package of this distribution has modules of kernel 4.19.90-89.11.v2401.ky10.x86_64",
		},
	} {
		t.Run(c.id+" "+c.kernel, func(t *testing.T) {
			t.Parallel()
			in := good(t)
			f := in.Hosts[1].Facts
			f.OS.ID, f.OS.VersionID, f.Kernel = c.id, c.version, c.kernel
			f.Modules["br_netfilter"], f.Modules["xt_addrtype"] = node.ModuleMissing, node.ModuleMissing
			got := finding(t, in, "modules")
			if got.OK || got.Level != precheck.Block ||
				!strings.HasPrefix(got.Found, "missing: br_netfilter, xt_addrtype; ") ||
				!strings.HasSuffix(got.Found, c.want) {
				t.Errorf("%s, want %s", got.Found, c.want)
			}
		})
	}
}

// TestMasqueradeHasAnOlderName has Red Hat's kernel 4.18, whose target is ipt_MASQUERADE.
func TestMasqueradeHasAnOlderName(t *testing.T) {
	t.Parallel()
	in := good(t)
	in.Hosts[1].Facts.Modules["xt_MASQUERADE"], in.Hosts[1].Facts.Modules["ipt_MASQUERADE"] = node.ModuleMissing,
		node.ModuleAvailable
	if got := finding(t, in, "modules"); !got.OK {
		t.Error(got.Found)
	}
}

// TestUpgradedKernelAsksForARestart names both kernels.
func TestUpgradedKernelAsksForARestart(t *testing.T) {
	t.Parallel()
	in := good(t)
	in.Hosts[1].Facts.InstalledKernels = []string{"5.14.0-503.el9.x86_64"}
	got := finding(t, in, "kernel-restart")
	if got.OK || got.Fix != "restart the host" || got.Found != in.Hosts[1].Facts.Kernel+
		" runs, 5.14.0-503.el9.x86_64 is installed" {
		t.Errorf("%+v", got)
	}
}

// TestSELinuxStaysOn holds the level of each state and the package that each distribution has for it. Nobody is told
// to switch SELinux off.
func TestSELinuxStaysOn(t *testing.T) {
	t.Parallel()
	without := func(f *node.Facts) { setPath(f, node.Path{Path: containerPolicyFile}) }
	for name, c := range map[string]struct {
		change func(in *precheck.Input, f *node.Facts)
		ok     bool
		level  precheck.Level
		found  string
	}{
		"enforcing with everything": {func(*precheck.Input, *node.Facts) {}, true, precheck.Block, "enforcing"},
		"enforcing without policy": {
			func(_ *precheck.Input, f *node.Facts) { without(f) }, false, precheck.Block,
			"enforcing; missing: container-selinux",
		},
		"permissive until the next boot": {func(_ *precheck.Input, f *node.Facts) {
			without(f)
			f.SELinux = "permissive"
		}, false, precheck.Block, "permissive, after the next boot enforcing; missing: container-selinux"},
		"permissive": {func(_ *precheck.Input, f *node.Facts) {
			without(f)
			f.SELinux, f.SELinuxConfig = "permissive", "permissive"
		}, false, precheck.Warn, "permissive; missing: container-selinux"},
		"permissive without programs": {
			func(_ *precheck.Input, f *node.Facts) {
				delete(f.Executables, "matchpathcon")
				f.SELinux, f.SELinuxConfig = "permissive", "permissive"
			}, false, precheck.Block,
			"permissive; missing: matchpathcon (package libselinux-utils, on Debian and Ubuntu selinux-utils)",
		},
		"Debian": {
			func(_ *precheck.Input, f *node.Facts) {
				without(f)
				f.OS.ID = "debian"
			}, false, precheck.Warn,
			"enforcing; missing: a policy for containers (debian has no package of it; containers run unconfined)",
		},
		"in the bundle": {func(in *precheck.Input, f *node.Facts) {
			without(f)
			in.Packages = []string{"rocky/9"}
			in.PackagesOf = func([]manifest.Role,
				string,
			) ([]string, error) {
				return []string{"container-selinux"}, nil
			}
			f.Packages = map[string]string{}
		}, true, precheck.Block, "enforcing"},
		"k3s": {
			func(in *precheck.Input, _ *node.Facts) { in.Cluster.Kubernetes.Distribution = manifest.DistributionK3s },
			false, precheck.Block,
			"enforcing; missing: k3s-selinux (from the releases of github.com/k3s-io/k3s-selinux, not from the distribution)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := good(t)
			in.Hosts[1].Facts.Paths = append(in.Hosts[1].Facts.Paths,
				node.Path{Path: "/usr/share/selinux/packages/k3s.pp"})
			c.change(&in, in.Hosts[1].Facts)
			got := finding(t, in, "selinux")
			if got.OK != c.ok || got.Level != c.level || got.Found != c.found {
				t.Errorf("ok %v, level %s, %q; want %v, %s, %q", got.OK, got.Level, got.Found, c.ok, c.level, c.found)
			}
			if strings.Contains(got.Fix+got.Found, "setenforce") || strings.Contains(got.Fix, "permissive") {
				t.Errorf("%s: %s", got.Found, got.Fix)
			}
		})
	}
}

// Calico's pods look into a directory of the kernel since v3.31, which a kernel without BPF, or a container, lacks.
func TestDirectoriesOfTheNetwork(t *testing.T) {
	t.Parallel()
	const bpf = "/sys/fs/bpf"
	dir := node.Path{Path: bpf, Type: "dir"}
	for name, c := range map[string]struct {
		network manifest.NetworkType
		version string
		paths   []node.Path
		ok      bool
		found   string
		asked   bool
	}{
		"there":    {manifest.NetworkCalico, "v3.31.7", []node.Path{dir}, true, bpf, true},
		"missing":  {manifest.NetworkCalico, "v3.32.1", []node.Path{{Path: bpf}}, false, "missing: " + bpf, true},
		"a file":   {manifest.NetworkCalico, "v3.32.1", []node.Path{{Path: bpf, Type: "file"}}, false, "missing: " + bpf, true},
		"not told": {manifest.NetworkCalico, "v3.32.1", nil, false, "no information from the host about " + bpf, true},
		"before":   {manifest.NetworkCalico, "v3.30.5", []node.Path{{Path: bpf}}, true, "", false},
		"flannel":  {manifest.NetworkFlannel, "", []node.Path{{Path: bpf}}, true, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := good(t)
			in.Cluster.CNI = manifest.CNI{Type: c.network, Version: c.version}
			if got := precheck.ProbeFor(in.Cluster, in.Hosts[1]); slices.Contains(got.Paths, bpf) != c.asked {
				t.Errorf("the host is asked for %q", got.Paths)
			}
			f := in.Hosts[1].Facts
			f.Paths = append(f.Paths, c.paths...)
			report := precheck.Evaluate(in)
			i := slices.IndexFunc(report.Results, func(r precheck.Result) bool {
				return r.Host == in.Hosts[1].Name && r.ID == "kernel-directories"
			})
			if i >= 0 != c.asked {
				t.Fatalf("the check is there: %v", i >= 0)
			}
			if i >= 0 && (report.Results[i].OK != c.ok || report.Results[i].Found != c.found) {
				t.Errorf("%+v", report.Results[i])
			}
		})
	}
}

// TestUnneededPackagesAreNotInstalled leaves out the packages for SELinux and for modules that the kernel has.
func TestUnneededPackagesAreNotInstalled(t *testing.T) {
	t.Parallel()
	in := good(t)
	f, c := in.Hosts[1].Facts, in.Cluster.WithDefaults()
	all := []string{"container-selinux", "kernel-modules-extra", "socat"}
	if got := strings.Join(precheck.Unneeded(f, c, all), " "); got != "container-selinux socat" {
		t.Error(got)
	}
	f.SELinux, f.Modules["xt_nat"] = "", node.ModuleMissing
	if got := strings.Join(precheck.Unneeded(f, c, all), " "); got != "kernel-modules-extra socat" {
		t.Error(got)
	}
}
