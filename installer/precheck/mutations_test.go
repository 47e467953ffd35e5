package precheck_test

import (
	"crypto/x509"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	sshhost "github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

type input = precheck.Input

func machineMutations() []mutation {
	return []mutation{
		{"settings that do not fit", settled(""), func(in *input) {
			if err := settle(in, twoHosts("", "kubernetes: {maxPods: 300}")); err != nil {
				panic(err) // it is read
			}
		}, each("host-settings", "w1")},
		{"settings that fit", settled("kubernetes: {maxPods: 30}"), func(*input) {}, nil},
		{
			"unreachable", good, func(in *input) { in.Hosts[1].Facts, in.Hosts[1].Err = nil, errors.New("no answer") },
			each("reachable", "w1"),
		},
		{"user", good, w(func(f *node.Facts) { f.UID = 1000 }), each("privileges", "w1")},
		{"no systemd", good, w(func(f *node.Facts) { f.Systemd.Init = false }), each("systemd", "w1")},
		{"alpine", good, w(func(f *node.Facts) { f.OS.ID = "alpine" }), each("os", "w1")},
		{"alpine allowed", good, func(in *input) {
			in.Hosts[1].Facts.OS.ID = "alpine"
			in.Cluster.Precheck.AllowUnsupportedDistributions = true
		}, nil},
		{"riscv", good, w(func(f *node.Facts) { f.Arch, f.Machine = "", "riscv64" }), each("architecture", "w1")},
		{"arm64 host, amd64 bundle", good, w(func(f *node.Facts) { f.Arch = "arm64" }), each("architecture", "w1")},
		{"arm64 host, both", good, func(in *input) {
			in.Hosts[1].Facts.Arch = "arm64"
			in.Architectures = []string{"amd64", "arm64"}
		}, nil},
		{"name", good, func(in *input) { in.Hosts[1].Name = "Worker_1" }, each("hostname", "Worker_1")},
		{"dotted name", good, func(in *input) { in.Hosts[1].Name = "w-1.site.example" }, nil},
		{"same hostname", good, w(func(f *node.Facts) { f.Hostname = "CP1" }), each("hostname-unique", "cp1", "w1")},
		{
			"same machine", good, w(func(f *node.Facts) { f.MachineID = "5f0c2a8e0d8b4f0f9f3c0d3c1b6a7e11" }),
			each("machine-unique", "cp1", "w1"),
		},
		{
			"same product UUID", good, w(func(f *node.Facts) { f.ProductUUID = "4C4C4544-0032-3010-8050-B4C04F573101" }),
			each("product-unique", "cp1", "w1"),
		},
		{"no product UUID", good, func(in *input) {
			for _, h := range in.Hosts {
				h.Facts.ProductUUID = "00000000-0000-0000-0000-000000000000" // two machines of one vendor
			}
		}, nil},
		{"a text of the firmware as product UUID", good, func(in *input) {
			for _, h := range in.Hosts {
				h.Facts.ProductUUID = "Not Settable"
			}
		}, nil},
		{"a maker's product UUID", good, func(in *input) {
			for _, h := range in.Hosts {
				h.Facts.ProductUUID = "12345678-1234-5678-90AB-CDDEEFAABBCC"
			}
		}, nil},
		{"address on a tunnel, without a MAC address", good, w(func(f *node.Facts) {
			f.Interfaces[0].MAC, f.Interfaces[0].Kind = "", "wireguard"
		}), nil},
		{"default route in two halves", good, w(func(f *node.Facts) {
			for _, to := range []string{"0.0.0.0/1", "128.0.0.0/1"} {
				f.AllRoutes = append(f.AllRoutes, node.Route{To: netip.MustParsePrefix(to), Interface: f.Interfaces[0].Name})
			}
		}), nil},
		{
			"same MAC address", good, w(func(f *node.Facts) { f.Interfaces[0].MAC = "52:54:00:12:34:01" }),
			each("mac-unique", "cp1", "w1"),
		},
		{"one CPU", good, cp(func(f *node.Facts) { f.CPUs = 1 }), each("cpu", "cp1")},
		{"one CPU in a worker", good, w(func(f *node.Facts) { f.CPUs = 1 }), nil},
		{"1.6 GiB of memory", good, cp(func(f *node.Facts) { f.Memory = 1600 << 20 }), each("memory", "cp1")},
		{"1.6 GiB in a worker", good, w(func(f *node.Facts) { f.Memory = 1600 << 20 }), nil},
		{"half a GiB in a worker", good, w(func(f *node.Facts) { f.Memory = 512 << 20 }), each("memory", "w1")},
		{
			"a larger minimum", good, of(func(c *manifest.Cluster) { c.Precheck.MinMemory.Worker = 8 * gib }),
			each("memory", "w1"),
		},
		{"swap", good, w(func(f *node.Facts) { f.Swaps = []node.Swap{{Name: "/swap", Size: 1}} }), each("swap", "w1")},
		{"swap allowed", good, func(in *input) {
			in.Hosts[1].Facts.Swaps = []node.Swap{{Name: "/swap", Size: 1}}
			in.Cluster.Kubernetes.Kubelet = manifest.Config{"failSwapOn": false}
		}, nil},
	}
}

// unitProxy returns the proxy of a drop-in.
func unitProxy(exempt string) []node.UnitProxy {
	return []node.UnitProxy{{
		Unit: "containerd.service", File: "/etc/systemd/system/containerd.service.d/http-proxy.conf",
		Proxies: map[string]string{"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": exempt},
	}}
}

// settled is good with settings for one host.
func settled(own string) func(*testing.T) input {
	return func(t *testing.T) input {
		t.Helper()
		in := good(t)
		if err := settle(&in, twoHosts("", own)); err != nil {
			t.Fatal(err)
		}
		return in
	}
}

// runUnit gives a host a running unit.
func runUnit(f *node.Facts, name, file string) {
	f.Systemd.Units = slices.DeleteFunc(f.Systemd.Units, func(u node.Unit) bool { return u.Name == name })
	f.Systemd.Units = append(f.Systemd.Units, node.Unit{Name: name, Load: "loaded", Active: "active", File: file})
}

func kernelIs(kernel string) func(f *node.Facts) { return func(f *node.Facts) { f.Kernel = kernel } }

func iptables(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "iptables" }

func cilium117(c *manifest.Cluster) { c.CNI.Version = "v1.17.2" }

func kernelMutations() []mutation {
	old := func(c *manifest.Cluster) { c.Kubernetes.Version = "v1.31.14" }
	newest := func(c *manifest.Cluster) { c.Kubernetes.Version = "v1.35.0" }
	old5 := func(f *node.Facts) { f.Kernel = "5.4.0-205-generic" }
	return []mutation{
		{"old kernel", good, w(func(f *node.Facts) { f.Kernel = "4.9.16-x.el8" }), each("kernel", "w1")},
		{"kernel as required", good, w(func(f *node.Facts) { f.Kernel = "4.9.17.el8" }), nil},
		{"kernel 4.10", good, w(func(f *node.Facts) { f.Kernel = "4.10.0.el8" }), nil},
		{
			"kernel 3.10", good, w(func(f *node.Facts) { f.Kernel = "3.10.0-1160.el7.x86_64" }),
			[]string{"w1/kernel", "w1/kernel-tested"},
		},
		{
			"kernel without long-term support", good, w(func(f *node.Facts) { f.Kernel = "5.12.1" }),
			each("kernel-tested", "w1"),
		},
		{
			"nftables with 5.10", rich, w(func(f *node.Facts) { f.Kernel = "5.10.0-9-amd64" }),
			each("kernel-network", "w1"),
		},
		{
			"Cilium with 5.4", withCluster(rich, func(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "iptables" }),
			w(old5), each("kernel-network", "w1"),
		},
		{
			"older Cilium with 5.4",
			withCluster(rich, func(c *manifest.Cluster) {
				c.Kubernetes.ProxyMode, c.CNI.Version = "iptables",
					"v1.17.2"
			}), w(old5), nil,
		},
		{
			"Cilium on RHEL 8", withCluster(rich, func(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "iptables" }),
			w(func(f *node.Facts) { f.Kernel = "4.18.0-553.el8_10.x86_64" }), nil,
		},
		{
			"Cilium on RHEL 8.9", withCluster(rich, iptables), w(kernelIs("4.18.0-513.24.1.el8_9.x86_64")),
			each("kernel-network", "w1"),
		},
		{
			"older Cilium on RHEL 8.9", withCluster(withCluster(rich, iptables), cilium117),
			w(kernelIs("4.18.0-513.24.1.el8_9.x86_64")), nil,
		},
		{
			"older Cilium on RHEL 8.5", withCluster(withCluster(rich, iptables), cilium117),
			w(kernelIs("4.18.0-348.el8.x86_64")), each("kernel-network", "w1"),
		},
		{
			"Cilium on openEuler 20.03", withCluster(rich, iptables), w(kernelIs("4.19.90-2312.1.0.0255.oe1.x86_64")),
			each("kernel-network", "w1"),
		},
		{
			"Cilium on Kylin V10", withCluster(rich, iptables), w(kernelIs("4.19.90-89.11.v2401.ky10.x86_64")),
			each("kernel-network", "w1"),
		},
		{
			"Cilium on UOS 20", withCluster(rich, iptables), w(kernelIs("4.19.0-91.77.139.uelc20.x86_64")),
			each("kernel-network", "w1"),
		},
		{"Cilium on openEuler 22.03", withCluster(rich, iptables), w(kernelIs("5.10.0-60.18.0.50.oe2203.x86_64")), nil},
		{"nftables on RHEL 8", rich, w(kernelIs("4.18.0-553.el8_10.x86_64")), each("kernel-network", "w1")},
		{"no BPF for Calico", func(t *testing.T) precheck.Input {
			t.Helper()
			in := good(t)
			in.Cluster.CNI = manifest.CNI{Type: manifest.NetworkCalico, Version: "v3.32.1"}
			for _, h := range in.Hosts {
				h.Facts.Paths = append(h.Facts.Paths, node.Path{Path: "/sys/fs/bpf", Type: "dir"})
			}
			return in
		}, w(func(f *node.Facts) { setPath(f, node.Path{Path: "/sys/fs/bpf"}) }), each("kernel-directories", "w1")},
		{"overlay is forbidden", good, w(func(f *node.Facts) {
			f.Modules["overlay"], f.Forbids = node.ModuleForbidden,
				map[string]string{"overlay": "/etc/modprobe.d/cis.conf"}
		}), each("modules", "w1")},
		{
			"one way of iptables is forbidden", good,
			w(func(f *node.Facts) { f.Modules["ip_tables"] = node.ModuleForbidden }), nil,
		},
		{"no vxlan", good, w(func(f *node.Facts) { f.Modules["vxlan"] = node.ModuleMissing }), each("modules", "w1")},
		{"no vxlan, no overlay network", good, func(in *input) {
			in.Hosts[1].Facts.Modules["vxlan"] = node.ModuleMissing
			in.Cluster.CNI.Type = "none"
		}, nil},
		{
			"no IPVS", withCluster(rich, func(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "ipvs" }),
			w(func(f *node.Facts) { f.Modules["ip_vs_sh"] = node.ModuleMissing }), each("modules", "w1"),
		},
		{
			"no memory cgroup in the kernel", good, w(func(f *node.Facts) { f.KernelConfig["CONFIG_MEMCG"] = "n" }),
			each("kernel-config", "w1"),
		},
		{
			"one redirect target", good, w(func(f *node.Facts) { f.KernelConfig["CONFIG_IP_NF_TARGET_REDIRECT"] = "n" }),
			nil,
		},
		{"no redirect target", good, w(func(f *node.Facts) {
			f.KernelConfig["CONFIG_IP_NF_TARGET_REDIRECT"] = "n"
			f.KernelConfig["CONFIG_NETFILTER_XT_TARGET_REDIRECT"] = "n"
		}), each("kernel-config", "w1")},
		{
			"no pids", good, w(func(f *node.Facts) { f.Cgroups.Controllers = []string{"cpu", "cpuset", "memory"} }),
			each("cgroups", "w1"),
		},
		{"no cgroups", good, w(func(f *node.Facts) { f.Cgroups = node.Cgroups{} }), each("cgroups", "w1")},
		{"cgroups of version 1", good, w(cgroup1), each("cgroup-version", "w1")},
		{"cgroups of version 1 with 1.35", withCluster(good, newest), w(cgroup1), each("cgroup-version", "w1")},
		{
			"forwarding", rich, w(func(f *node.Facts) { f.Sysctls["net.ipv4.ip_forward"] = "0" }),
			each("ip-forward", "w1"),
		},
		{
			"forwarding of IPv6", rich, w(func(f *node.Facts) { f.Sysctls["net.ipv6.conf.default.forwarding"] = "0" }),
			each("ipv6-forward", "w1"),
		},
		{
			"IPv6 switched off", rich, w(func(f *node.Facts) { f.Sysctls["net.ipv6.conf.all.disable_ipv6"] = "1" }),
			each("ipv6-forward", "w1"),
		},
		{
			"bridges", rich, w(func(f *node.Facts) { delete(f.Sysctls, "net.bridge.bridge-nf-call-iptables") }),
			each("bridge-netfilter", "w1"),
		},
		{
			"bridges of IPv6", rich, w(func(f *node.Facts) { f.Sysctls["net.bridge.bridge-nf-call-ip6tables"] = "0" }),
			each("bridge-netfilter", "w1"),
		},
		{"inotify", rich, w(func(f *node.Facts) { f.Limits.InotifyInstances = 128 }), each("inotify", "w1")},
		{"few processes", good, w(func(f *node.Facts) { f.Limits.PIDs = 4096 }), each("pid-max", "w1")},
		{
			"little entropy", good, w(func(f *node.Facts) { f.Kernel, f.Limits.Entropy = "5.4.0", 60 }),
			each("entropy", "w1"),
		},
		{"much entropy", good, w(func(f *node.Facts) { f.Kernel, f.Limits.Entropy = "5.4.0", 3000 }), nil},
		{"no losetup", good, w(func(f *node.Facts) { delete(f.Executables, "losetup") }), each("executables", "w1")},
		{"no conntrack for 1.31", good, of(old), each("executables", "cp1", "w1")},
		{
			"no crictl for 1.30", withCluster(rich, func(c *manifest.Cluster) { c.Kubernetes.Version = "v1.30.4" }),
			w(func(f *node.Facts) { delete(f.Executables, "crictl") }), each("executables-optional", "w1"),
		},
		{
			"no iptables", good, w(func(f *node.Facts) { delete(f.Executables, "iptables") }),
			each("executables-optional", "w1"),
		},
		{
			"no iptables for Docker", withCluster(rich, func(c *manifest.Cluster) { c.CRI.Type = "docker" }),
			w(func(f *node.Facts) { delete(f.Executables, "iptables") }), each("executables", "w1"),
		},
		{
			"no ipvsadm", withCluster(rich, func(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "ipvs" }),
			w(func(f *node.Facts) { delete(f.Executables, "ipvsadm") }), each("executables-optional", "w1"),
		},
		{
			"no packages for the distribution", rich, w(func(f *node.Facts) { f.OS.VersionID = "11" }),
			each("packages", "w1"),
		},
		{
			"unsigned packages", rich, func(in *input) { in.Unsigned = in.Packages },
			each("package-signatures", "cp1", "cp2", "cp3", "w1", "reg1", "reg2", "nfs1"),
		},
		{"unsigned packages of another distribution", rich, func(in *input) { in.Unsigned = []string{"rocky/9"} }, nil},
	}
}

func cgroup1(f *node.Facts) {
	f.Cgroups = node.Cgroups{Version: 1, Controllers: []string{
		"cpu", "cpuset", "memory", "pids", "cpuacct", "devices",
		"freezer",
	}}
}

func hostMutations() []mutation {
	return []mutation{
		{"one disk for two", good, cp(func(f *node.Facts) {
			for i := range f.Dirs {
				f.Dirs[i].Free = 25 * gib // each fits, both do not
			}
		}), each("disk", "cp1")},
		{"a disk for each", good, cp(func(f *node.Facts) {
			f.Dirs[0].Total, f.Dirs[0].Free, f.Dirs[0].Device = 20*gib, 13*gib, 1
			f.Dirs[1].Total, f.Dirs[1].Free, f.Dirs[1].Device = 40*gib, 25*gib, 2
		}), nil},
		{"unknown space", good, cp(func(f *node.Facts) { f.Dirs = f.Dirs[1:] }), each("disk", "cp1")},
		{
			"xfs of CentOS 7", good, w(func(f *node.Facts) { f.Dirs[0].NoFileTypes = true }),
			each("runtime-storage", "w1"),
		},
		{"images on NFS", good, w(func(f *node.Facts) { f.Dirs[0].Type = "nfs4" }), each("runtime-storage", "w1")},
		{
			"images on overlay", good, w(func(f *node.Facts) { f.Dirs[0].Type = "overlay" }),
			each("runtime-storage", "w1"),
		},
		{"another directory on NFS", good, w(func(f *node.Facts) { f.Dirs[4].Type = "nfs4" }), nil},
		{
			"Docker with vfs", withCluster(good, func(c *manifest.Cluster) { c.CRI.Type = "docker" }),
			w(func(f *node.Facts) { f.DockerDriver = "vfs" }), each("runtime-storage", "w1"),
		},
		{
			"Docker with its containerd's images", withCluster(good, func(c *manifest.Cluster) { c.CRI.Type = "docker" }),
			w(func(f *node.Facts) { f.DockerDriver = "overlayfs" }), nil,
		},
		{"a Docker that runs no pods", good, w(func(f *node.Facts) { f.DockerDriver = "vfs" }), nil},
		{"noexec", good, w(func(f *node.Facts) { f.Dirs[2].NoExec = true }), each("filesystems", "w1")},
		{"noexec on /etc", good, w(func(f *node.Facts) { f.Dirs[4].NoExec = true }), nil},
		{"read-only /etc", good, w(func(f *node.Facts) { f.Dirs[4].ReadOnly = true }), each("filesystems", "w1")},
		{"nearly full afterwards", good, cp(func(f *node.Facts) {
			for i := range f.Dirs {
				f.Dirs[i].Free = 35 * gib // 30 GiB will be written, 8 should stay
			}
		}), each("nearly-full", "cp1")},
		{
			"another reserve", good, of(func(c *manifest.Cluster) { c.Precheck.MinFree = 31 * gib }),
			each("nearly-full", "cp1", "w1"),
		},
		{"few inodes", good, w(func(f *node.Facts) { f.Dirs[0].Inodes = 100 }), each("nearly-full", "w1")},
		{"inodes not counted", good, w(func(f *node.Facts) { f.Dirs[0].Inodes = -1 }), nil}, // btrfs
		{"a disk went read-only", good, w(func(f *node.Facts) {
			f.Mounts = append(f.Mounts, node.Mount{
				Point: "/data", Source: "/dev/vdb", Type: "ext4",
				Options: []string{"ro", "relatime"},
			})
		}), each("read-only", "w1")},
		{"a CD", good, w(func(f *node.Facts) {
			f.Mounts = append(f.Mounts, node.Mount{
				Point: "/mnt", Source: "/dev/sr0", Type: "iso9660",
				Options: []string{"ro"},
			})
		}), nil},
		{
			"/tmp", good, w(func(f *node.Facts) { f.Mounts[1].Options = append(f.Mounts[1].Options, "noexec") }),
			each("tmp-exec", "w1"),
		},
		{
			"clock ahead", good, func(in *input) { in.Hosts[1].Facts.Clock += int64(3 * time.Second) },
			each("clock", "w1"),
		},
		{
			"clock behind", good, func(in *input) { in.Hosts[1].Facts.Clock -= int64(3 * time.Second) },
			each("clock", "w1"),
		},
		{
			"another limit", withCluster(good,
				func(c *manifest.Cluster) { c.Precheck.ClockSkew = scalar.Duration(time.Minute) }),
			func(in *input) { in.Hosts[1].Facts.Clock -= int64(3 * time.Second) }, nil,
		},
		{"clock may be right", good, func(in *input) {
			in.Hosts[1].Facts.Clock -= int64(3 * time.Second)
			in.Hosts[1].Sent = in.Hosts[1].Sent.Add(-3 * time.Second) // the answer took that long
		}, nil},
		{
			"the time service does not start at boot", good,
			w(func(f *node.Facts) { runUnit(f, "chronyd.service", "disabled") }), each("autostart", "w1"),
		},
		{"the kubelet of a node does not start at boot", good, w(func(f *node.Facts) {
			ours(f)
			setProgram(f, "kubelet", "v1.34.3")
			runUnit(f, "kubelet.service", "disabled")
		}), each("autostart", "w1")},
		{
			"a time service that another unit starts", good,
			w(func(f *node.Facts) { runUnit(f, "chronyd.service", "static") }), nil,
		},
		{"not synchronised", good, w(func(f *node.Facts) { f.TimeSync = "no" }), each("time-sync", "w1")},
		{
			"only the kernel knows", good, w(func(f *node.Facts) { f.TimeSync, f.Time.Synchronized = "", false }),
			each("time-sync", "w1"),
		},
		{
			"SELinux without a policy for containers", good,
			w(func(f *node.Facts) { setPath(f, node.Path{Path: containerPolicyFile}) }), each("selinux", "w1"),
		},
		{
			"SELinux without its programs", good, w(func(f *node.Facts) { delete(f.Executables, "matchpathcon") }),
			each("selinux", "w1"),
		},
		{"SELinux off", good, w(func(f *node.Facts) {
			f.SELinux, f.SELinuxConfig = "", "disabled"
			delete(f.Executables, "matchpathcon")
			setPath(f, node.Path{Path: containerPolicyFile})
		}), nil},
		{
			"a kernel upgraded and not started", good,
			w(func(f *node.Facts) { f.InstalledKernels = []string{"5.14.0-503.11.1.el9_5.x86_64"} }),
			each("kernel-restart", "w1"),
		},
		{"two kernels", good, w(func(f *node.Facts) {
			f.InstalledKernels = []string{
				f.Kernel,
				"5.14.0-503.11.1.el9_5.x86_64",
			}
		}), nil},
		{
			"iptables without comments", good, w(func(f *node.Facts) { f.Modules["xt_comment"] = node.ModuleMissing }),
			each("modules", "w1"),
		},
		{
			"iptables by way of nftables", good, w(func(f *node.Facts) { f.Modules["ip_tables"] = node.ModuleMissing }),
			nil,
		},
		{"iptables by no way", good, w(func(f *node.Facts) {
			f.Modules["ip_tables"], f.Modules["nft_compat"] = node.ModuleMissing, node.ModuleMissing
		}), each("modules", "w1")},
		{
			"no masquerading in nftables", withCluster(good,
				func(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "nftables" }),
			w(func(f *node.Facts) { f.Modules["nft_masq"] = node.ModuleMissing }), each("modules", "w1"),
		},
		{
			"iptables without comments, with nftables", withCluster(good,
				func(c *manifest.Cluster) { c.Kubernetes.ProxyMode = "nftables" }),
			w(func(f *node.Facts) { f.Modules["xt_comment"] = node.ModuleMissing }), nil,
		},
		{
			"fapolicyd", good, w(func(f *node.Facts) { setUnit(f, "fapolicyd.service", "active") }),
			each("fapolicyd", "w1"),
		},
		{"old SSH", good, w(func(f *node.Facts) {
			f.SSHD.KexAlgorithms = append(f.SSHD.KexAlgorithms,
				"diffie-hellman-group1-sha1")
		}), each("ssh-algorithms", "w1")},
		{"old SSH in use", good, func(in *input) {
			in.Hosts[1].SSH = &sshhost.Algorithms{KeyExchange: "curve25519-sha256", Cipher: "aes128-cbc"}
		}, each("ssh-algorithms", "w1")},
		{"SSH in use", good, func(in *input) {
			in.Hosts[1].Facts.SSHD = nil
			in.Hosts[1].SSH = &sshhost.Algorithms{
				KeyExchange: "curve25519-sha256", Cipher: "aes128-gcm@openssh.com",
				HostKey: "ssh-ed25519",
			}
		}, nil},
		{"no SSH server", good, w(func(f *node.Facts) { f.SSHD = nil }), nil},
	}
}

// programMutations have a dynamic containerd on the worker, whose glibc is EL 8's, and programs of other roles and
// hosts.
func programMutations() []mutation {
	const loader = "/lib64/ld-linux-x86-64.so.2"
	with := func(l precheck.Linkage, libc node.Libc, roles ...manifest.Role) func(*input) {
		return func(in *input) {
			in.Programs = []precheck.Program{
				{Path: "/usr/local/bin/static", For: "amd64", Linkage: precheck.Linkage{Arch: "amd64"}},
				{Path: "/usr/local/bin/script", For: "amd64"},
				{Path: "/usr/local/bin/other", For: "arm64", Linkage: precheck.Linkage{Arch: "arm64"}},
				{Path: "/usr/local/bin/containerd", For: "amd64", Roles: roles, Linkage: l},
			}
			in.Hosts[0].Facts.Libc, in.Hosts[1].Facts.Libc = node.Libc{
				Name: "glibc", Version: "2.39",
				Loaders: []string{loader},
			}, libc
		}
	}
	dynamic, el8 := precheck.Linkage{Arch: "amd64", Loader: loader, GLIBC: "2.34"},
		node.Libc{Name: "glibc", Version: "2.28", Loaders: []string{loader}}
	return []mutation{
		{"an old glibc", good, with(dynamic, el8), each("bundle-programs", "w1")},
		{"an old glibc on hosts without the program", good, with(dynamic, el8, manifest.RoleRegistry), nil},
		{"an old glibc, an older program", good, with(precheck.Linkage{Arch: "amd64", Loader: loader, GLIBC: "2.4"},
			el8), nil},
		{"a program for musl", good, with(precheck.Linkage{Arch: "amd64", Loader: "/lib/ld-musl-x86_64.so.1"}, el8,
			manifest.RoleWorker), each("bundle-programs", "w1")},
		{
			"musl with a loader of glibc's name", good,
			with(dynamic, node.Libc{Name: "musl", Version: "1.2.5", Loaders: []string{loader}}),
			each("bundle-programs", "w1"),
		},
		{
			"a program that cannot be read", good,
			with(precheck.Linkage{Arch: "amd64", Problem: "the ELF file ends within its headers"}, el8,
				manifest.RoleWorker), each("bundle-programs", "w1"),
		},
		{"an unknown libc", good, with(dynamic, node.Libc{}), each("bundle-programs", "w1")},
		{"images for amd64 alone, hosts of both architectures", good, func(in *input) {
			in.Hosts[1].Facts.Arch = "arm64"
			in.Architectures, in.Lacking = []string{"amd64", "arm64"},
				map[string][]string{"arm64": {"docker.io/acme/app:1"}}
		}, each("bundle-images", "w1")},
		{"images for amd64 alone, hosts with amd64", good, func(in *input) {
			in.Lacking = map[string][]string{"arm64": {"docker.io/acme/app:1"}}
		}, nil},
		{
			"a program for arm64", good, with(precheck.Linkage{Arch: "arm64"}, el8, manifest.RoleWorker),
			each("bundle-programs", "w1"),
		},
	}
}

func networkMutations() []mutation {
	proxy := func(f *node.Facts) { f.Proxies = map[string]string{"HTTP_PROXY": "http://proxy"} }
	return []mutation{
		// a prefix of 10.0.0.11
		{
			"wrong address", good, func(in *input) { in.Hosts[1].InternalIPv4 = netip.MustParseAddr("10.0.0.1") },
			each("address", "w1"),
		},
		{"address of another", good, func(in *input) {
			in.Hosts[1].InternalIPv4 = netip.MustParseAddr("10.0.0.3")
			in.Hosts[1].Facts.Interfaces[0].Addresses[0] = netip.MustParsePrefix("10.0.0.3/24")
		}, each("address-unique", "cp1", "w1")},
		{"no address, default route", good, func(in *input) { in.Hosts[1].InternalIPv4 = netip.Addr{} }, nil},
		{"no address, no default route", good, func(in *input) {
			in.Hosts[1].InternalIPv4 = netip.Addr{}
			in.Hosts[1].Facts.Routes = nil
		}, []string{"w1/address", "w1/default-route"}},
		{"no default route", good, w(func(f *node.Facts) { f.Routes = nil }), each("default-route", "w1")},
		{
			"no IPv6 address", rich, w(func(f *node.Facts) { f.Interfaces[0].Addresses = f.Interfaces[0].Addresses[:1] }),
			each("address-ipv6", "w1"),
		},
		{
			"wrong IPv6 address", rich, func(in *input) { in.Hosts[0].InternalIPv6 = netip.MustParseAddr("fd00::99") },
			each("address-ipv6", "cp1"),
		},
		{
			"right IPv6 address", rich, func(in *input) { in.Hosts[0].InternalIPv6 = netip.MustParseAddr("fd00::3") },
			nil,
		},
		{
			"pods in the hosts' network", good,
			of(func(c *manifest.Cluster) { c.Kubernetes.PodCIDR = cidrs("10.0.0.0/17") }),
			each("networks", "cp1", "w1"),
		},
		{"a route into the pods' network", good, w(func(f *node.Facts) {
			f.AllRoutes = append(f.AllRoutes, node.Route{To: netip.MustParsePrefix("10.233.0.0/16"), Interface: "eth1"})
		}), each("routes", "w1")},
		{"larger packets", good, w(func(f *node.Facts) { f.Interfaces[0].MTU = 9000 }), each("mtu", "w1")},
		{"the internet", rich, w(func(f *node.Facts) { dial(f, "1.1.1.1:443", true) }), each("internet", "w1")},
		{
			"the internet is allowed", withCluster(rich, func(c *manifest.Cluster) { c.Precheck.Internet = "" }),
			w(func(f *node.Facts) { dial(f, "1.1.1.1:443", true) }), nil,
		},
		{
			"a way is closed", rich, func(in *input) { in.Links[0].OK, in.Links[0].Error = false, "timeout" },
			each("links", "cp1"),
		},
		{"the pod network works already", rich, func(in *input) {
			in.Links[0].OK, in.Links[0].Service, in.Links[0].Skipped = false, true, "w1 uses the port already"
		}, nil},
		{
			"a way was not tried", rich,
			func(in *input) { in.Links[0].OK, in.Links[0].Skipped = false, "w1 could not listen" },
			each("links", "cp1"),
		},
		{"smaller packets on the way", rich, func(in *input) { in.Links[0].MTU = 1400 }, each("path-mtu", "cp1")},
		{"port of the kubelet", good, w(func(f *node.Facts) { busy(f, 10250, "nginx") }), each("ports", "w1")},
		{"port of Spegel", shared, w(func(f *node.Facts) { busy(f, manifest.PeersHostPort, "nginx") }), each("ports", "w1")},
		{"port of the DNS cache", cached, w(func(f *node.Facts) { busy(f, 53, "dnsmasq") }), each("ports", "w1")},
		{"systemd-resolved beside the DNS cache", cached, w(func(f *node.Facts) {
			// on all addresses nobody else could listen
			f.Ports = slices.Insert(f.Ports, 0, node.Port{Network: "udp", Port: 53, By: "systemd-resolve"})
		}), nil},
		{"our own DNS cache", cached, w(func(f *node.Facts) {
			ours(f)
			busy(f, 53, "node-cache")
		}), nil},
		{"DNS of others on our own node", cached, w(func(f *node.Facts) {
			ours(f)
			busy(f, 53, "dnsmasq")
		}), each("ports", "w1")},
		{"port 53 without a DNS cache", good, w(func(f *node.Facts) {
			f.Ports = append(f.Ports, node.Port{Network: "udp", Port: 53, By: "dnsmasq"})
		}), nil},
		{"port of the registry", good, cp(func(f *node.Facts) { busy(f, 5000, "docker-proxy") }), each("ports", "cp1")},
		// was not tried
		{
			"other port of the registry", good, of(func(c *manifest.Cluster) { c.ImageRegistry.Port = 5001 }),
			each("ports", "cp1"),
		},
		{"no registry", good, func(in *input) {
			busy(in.Hosts[0].Facts, 5000, "docker-proxy")
			in.Cluster.ImageRegistry.Type = "none"
		}, nil},
		{"port of Cilium", rich, w(func(f *node.Facts) { busy(f, 4240, "") }), each("ports", "w1")},
		{"an address on lo", good, w(func(f *node.Facts) {
			eth := &f.Interfaces[0]
			f.Interfaces = append(f.Interfaces, node.Interface{
				Name: "lo", MTU: 65536, Up: true, Kind: node.LoopbackKind,
				Addresses: []netip.Prefix{netip.PrefixFrom(eth.Addresses[0].Addr(), eth.Addresses[0].Addr().BitLen())},
			})
			eth.Addresses = nil
		}), nil},
		{"no nameserver", good, w(func(f *node.Facts) { f.DNS.Nameservers = nil }), each("dns", "w1")},
		{
			"nameserver on the host", good, w(func(f *node.Facts) { f.DNS.Nameservers = []string{"127.0.0.1"} }),
			each("dns", "w1"),
		},
		{
			"the cluster's own DNS cache", good, w(func(f *node.Facts) { f.DNS.Nameservers = []string{"169.254.25.10"} }),
			each("dns", "w1"),
		},
		{
			"the cluster's own DNS service", good,
			w(func(f *node.Facts) { f.DNS.Nameservers = []string{"10.0.0.2", "10.233.0.10"} }), each("dns", "w1"),
		},
		{"nobody behind systemd-resolved", good, cp(func(f *node.Facts) { f.DNS.Upstream = nil }), each("dns", "cp1")},
		{
			"systemd-resolved asks the host", good, cp(func(f *node.Facts) { f.DNS.Upstream = []string{"::1"} }),
			each("dns", "cp1"),
		},
		{
			"many nameservers", good,
			w(func(f *node.Facts) { f.DNS.Nameservers = []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"} }),
			each("resolv-conf", "w1"),
		},
		{"old line in /etc/hosts", good, w(func(f *node.Facts) {
			f.Hosts = append(f.Hosts, node.HostsLine{Address: "10.0.0.99", Names: []string{"cp1"}})
		}), each("hosts-file", "w1")},
		{"another host at a loopback address", good, w(func(f *node.Facts) {
			f.Hosts = append(f.Hosts, node.HostsLine{Address: "127.0.0.1", Names: []string{"cp1"}})
		}), each("hosts-file", "w1")},
		{"line of an IPv6 address", good, w(func(f *node.Facts) {
			f.Hosts = append(f.Hosts, node.HostsLine{Address: "fd00::99", Names: []string{"cp1"}})
		}), nil},
		{
			"own name", rich, w(func(f *node.Facts) { f.HostnameAddresses, f.Hosts = nil, nil }),
			each("hostname-resolves", "w1"),
		},
		{"proxy", good, w(proxy), each("proxy", "w1")},
		{
			"proxy of a unit", good, w(func(f *node.Facts) { f.UnitProxies = unitProxy("localhost") }),
			each("proxy", "w1"),
		},
		{
			"proxy of a unit with NO_PROXY", good,
			w(func(f *node.Facts) { f.UnitProxies = unitProxy("10.0.0.0/24,10.233.0.0/16") }), nil,
		},
		{"proxy without some", good, w(func(f *node.Facts) {
			proxy(f)
			f.Proxies["NO_PROXY"] = "10.0.0.0/24,10.233.0.0/18"
		}), each("proxy", "w1")},
		{"proxy with NO_PROXY", good, w(func(f *node.Facts) {
			proxy(f)
			f.Proxies["NO_PROXY"] = "localhost,10.0.0.0/24,10.233.0.0/16"
		}), nil},
		{"firewall", good, w(func(f *node.Facts) { f.Firewalls = []string{"firewalld"} }), each("firewall", "w1")},
		{"rules that drop", good, w(func(f *node.Facts) {
			f.PacketFilter.Drops = []node.FilterChain{{Family: "ip", Table: "filter", Name: "FORWARD", Hook: "forward"}}
		}), each("packet-filter", "w1")},
		{"foreign pod network", good, w(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/etc/cni/net.d", Type: "dir", Entries: []string{".keep", "87-podman.conflist"}})
		}), each("cni-config", "w1")},
		{"interface of another pod network", good, w(func(f *node.Facts) {
			f.Interfaces = append(f.Interfaces, node.Interface{Name: "cali0123", MTU: 1450})
		}), each("leftovers-network", "w1")},
		{
			"rules of another pod network", good,
			w(func(f *node.Facts) { f.PacketFilter.Foreign = []string{"KUBE-SERVICES"} }),
			each("leftovers-network", "w1"),
		},
	}
}

// unsupported is what this version cannot install.
func unsupported(c *manifest.Cluster) { c.CRI.Type, c.CRI.Tools = "crio", []string{"nerdctl"} }

func clusterMutations() []mutation {
	old := func(version string) func(*manifest.Cluster) {
		return func(c *manifest.Cluster) { c.Kubernetes.Version = version }
	}
	k := func(f func(*manifest.Kubernetes)) func(*precheck.Input) {
		return of(func(c *manifest.Cluster) { f(&c.Kubernetes) })
	}
	return []mutation{
		{"nerdctl without containerd", good, of(unsupported), each("supported", "")},
		{
			"something is not in the bundle", good,
			func(in *input) { in.Missing = []string{"no kubelet for linux/arm64"} }, each("bundle", ""),
		},
		{"no setting is refused", good, func(in *input) { in.Answers = &precheck.ProgramAnswers{} }, nil},
		{"a setting is refused", good, func(in *input) {
			in.Answers = &precheck.ProgramAnswers{Refused: []string{"kubelet v1.34.3 does not start with --a=b"}}
		}, each("program-settings", "")},
		{"a program cannot be asked", good, func(in *input) {
			in.Answers = &precheck.ProgramAnswers{Unasked: []string{"kubelet v1.34.3 could not be asked"}}
		}, each("program-settings", "")},
		{"Kubernetes 1.22", withCluster(good, old("v1.24.1")), of(old("v1.22.9")), each("kubernetes-version", "")},
		{"Kubernetes 1.99", good, of(old("v1.99.0")), each("kubernetes-tested", "")},
		{"Kubernetes 1.29", withCluster(rich, old("v1.30.1")), of(old("v1.29.1")), each("kubernetes-tested", "")},
		{"kubectl 1.31 with 1.34", good, of(func(c *manifest.Cluster) {
			c.Components = map[string]manifest.Component{"kubectl": {Version: "v1.31.1"}}
		}), each("versions", "")},
		{"IPv6 first", rich, k(func(k *manifest.Kubernetes) { slices.Reverse(k.PodCIDR) }), each("cidr-format", "")},
		{
			"one family and two", good,
			k(func(k *manifest.Kubernetes) { k.ServiceCIDR = cidrs("10.233.0.0/18", "fd86::/112") }),
			[]string{"/cidr-format"},
		},
		{"two families with 1.19", withCluster(rich, func(c *manifest.Cluster) {
			c.Kubernetes.Version = "v1.19.1"
			c.Kubernetes.ServiceCIDR, c.Kubernetes.PodCIDR = c.Kubernetes.ServiceCIDR[:1], c.Kubernetes.PodCIDR[:1]
		}), k(func(k *manifest.Kubernetes) {
			k.ServiceCIDR, k.PodCIDR = cidrs("10.233.0.0/18", "fd86::/112"), cidrs("10.233.64.0/18", "fd85::/56")
		}), each("dual-stack", "")},
		{
			"pods among services", good, k(func(k *manifest.Kubernetes) { k.PodCIDR = cidrs("10.233.0.0/16") }),
			each("cidr-overlap", ""),
		},
		{"300 pods", good, k(func(k *manifest.Kubernetes) { k.MaxPods = 300 }), each("address-space", "")},
		{"254 pods", good, k(func(k *manifest.Kubernetes) { k.MaxPods = 254 }), nil},
		{
			"62 addresses of IPv6", rich, of(func(c *manifest.Cluster) { c.CNI.IPv6MaskSize = 122 }),
			each("address-space-ipv6", ""),
		},
		{
			"a network for one node", good, k(func(k *manifest.Kubernetes) { k.PodCIDR = cidrs("10.233.64.0/24") }),
			each("node-networks", ""),
		},
		{"a network for two nodes", good, k(func(k *manifest.Kubernetes) { k.PodCIDR = cidrs("10.233.64.0/23") }), nil},
		{
			"two services", good, k(func(k *manifest.Kubernetes) { k.ServiceCIDR = cidrs("10.233.0.0/30") }),
			each("service-network", ""),
		},
		{
			"too many services", good, k(func(k *manifest.Kubernetes) { k.ServiceCIDR = cidrs("11.0.0.0/8") }),
			each("service-network", ""),
		},
		{"unknown network", good, of(func(c *manifest.Cluster) { c.CNI.Type = "weave" }), each("plugin", "")},
		{"Hybridnet with 1.15", withCluster(rich, func(c *manifest.Cluster) {
			hybridnet(c)
			old("v1.16.15")(c)
		}), of(old("v1.15.1")), each("hybridnet", "")},
		{"Hybridnet with two networks", withCluster(rich, hybridnet), of(func(c *manifest.Cluster) {
			c.Kubernetes.PodCIDR, c.Kubernetes.ServiceCIDR = cidrs("10.233.64.0/18", "fd85::/56"),
				cidrs("10.233.0.0/18", "fd86::/112")
		}), each("supported", "")},
		{
			"ipvs with 1.35", withCluster(rich, old("v1.35.0")), k(func(k *manifest.Kubernetes) { k.ProxyMode = "ipvs" }),
			each("proxy-mode", ""),
		},
		{
			"nftables with 1.30", withCluster(good, func(c *manifest.Cluster) { c.Kubernetes.Version = "v1.30.1" }),
			k(func(k *manifest.Kubernetes) { k.ProxyMode = "nftables" }), each("proxy-mode", ""),
		},
		{
			"kube-vip has a host's address", rich,
			of(func(c *manifest.Cluster) { c.ControlPlaneEndpoint.Address = "10.0.0.19:6443" }),
			each("vip-address", ""),
		},
		{
			"kube-vip in another network", rich,
			of(func(c *manifest.Cluster) { c.ControlPlaneEndpoint.Address = "192.168.9.9" }),
			each("vip-network", "cp1", "cp2", "cp3"),
		},
		{
			"kube-vip on another interface", rich,
			of(func(c *manifest.Cluster) { c.ControlPlaneEndpoint.Interface = "eth9" }),
			each("vip-network", "cp1", "cp2", "cp3"),
		},
		{
			"kube-vip's IPv6 address without a port, outside of the network", rich,
			of(func(c *manifest.Cluster) { c.ControlPlaneEndpoint.Address = "[fd99::100]" }),
			each("vip-network", "cp1", "cp2", "cp3"),
		},
		{
			"kube-vip's address is taken", rich,
			cp(func(f *node.Facts) { f.Vacant[0].MACs = []string{"52:54:00:00:00:09"} }), each("vip-free", "cp1"),
		},
		{
			"the registries' address is taken", rich,
			on("reg1", func(f *node.Facts) { f.Vacant[0].Asked, f.Vacant[0].Ping = false, true }),
			each("vip-free", "reg1"),
		},
		{
			"a load balancer that is down", existing, w(func(f *node.Facts) { dial(f, "lb.site.example:6443", false) }),
			each("endpoint-reachable", "w1"),
		},
		{
			"three control planes, the first one's address", rich,
			of(func(c *manifest.Cluster) { c.ControlPlaneEndpoint = manifest.Endpoint{Type: "local"} }),
			each("endpoint-survives", ""),
		},
		{"three control planes, a name of the operator's", rich, of(func(c *manifest.Cluster) {
			c.ControlPlaneEndpoint = manifest.Endpoint{Type: "local", Address: "api.example"}
		}), nil},
		{"no control plane", good, withoutRole("cp1", manifest.RoleControlPlane), each("control-plane", "")},
		{"no worker", good, withoutRole("w1", manifest.RoleWorker), each("workers", "")},
		{"no etcd", rich, withoutRole("", manifest.RoleEtcd), each("etcd-group", "")},
		{"two etcds", rich, withoutRole("cp3", manifest.RoleEtcd), each("etcd-odd", "")},
		{"unknown etcd", rich, of(func(c *manifest.Cluster) { c.Etcd.Type = "sqlite" }), each("etcd-type", "")},
		{"no registry host", good, withoutRole("", manifest.RoleRegistry), each("registry-group", "")},
		{
			"one registry host with a shared address", rich, withoutRole("reg2", manifest.RoleRegistry),
			each("registry-group", ""),
		},
		{"no NFS server", rich, withoutRole("", manifest.RoleNFS), each("nfs-group", "")},
		{"unknown runtime", good, of(func(c *manifest.Cluster) { c.CRI.Type = "rkt" }), each("container-manager", "")},
		{
			"containerd 1.5", good, of(func(c *manifest.Cluster) { c.CRI.Version = "v1.5.18" }),
			each("containerd-version", ""),
		},
		{
			"containerd 1.7 with 1.36", withCluster(good, old("v1.36.0")),
			of(func(c *manifest.Cluster) { c.CRI.Version = "v1.7.27" }), each("containerd-version", ""),
		},
	}
}

func etcdMutations() []mutation {
	now := time.Unix(0, 1760000000000000000)
	return []mutation{
		{
			"slow disk", good, cp(func(f *node.Facts) { f.Sync.P99 = int64(11 * time.Millisecond) }),
			each("etcd-latency", "cp1"),
		},
		{
			"slow disk, another limit",
			withCluster(good, func(c *manifest.Cluster) { c.Precheck.DiskLatency = scalar.Duration(time.Second) }),
			cp(func(f *node.Facts) { f.Sync.P99 = int64(11 * time.Millisecond) }), nil,
		},
		{"etcd in memory", good, cp(func(f *node.Facts) { f.Sync.Type = "tmpfs" }), each("etcd-latency", "cp1")},
		{"newer etcd", rich, cp(func(f *node.Facts) {
			setUnit(f, "etcd.service", "inactive")
			setProgram(f, "etcd", "3.7.0")
		}), each("etcd-installed", "cp1")},
		{"the same etcd", rich, cp(func(f *node.Facts) { setUnit(f, "etcd.service", "inactive") }), nil},
		{
			"no certificate for etcd", existing, func(in *input) { in.Etcd.Problem = "client.key: no such file" },
			each("etcd-certificates", ""),
		},
		{
			"certificate that ends soon", existing, func(in *input) { in.Etcd.Now = now.Add(340 * 24 * time.Hour) },
			each("etcd-certificates", ""),
		},
		{
			"certificate that has ended", existing, func(in *input) { in.Etcd.Now = now.Add(400 * 24 * time.Hour) },
			each("etcd-certificates", ""),
		},
		{
			"certificate of a server", existing, func(in *input) { in.Etcd.CA, in.Etcd.Cert = serverCertificate(now) },
			each("etcd-certificates", ""),
		},
		{"no PEM", existing, func(in *input) { in.Etcd.CA = []byte("MIIB") }, each("etcd-certificates", "")},
		{"old etcd", existing, func(in *input) { in.Etcd.Versions[0].Version = "3.5.23" }, each("etcd-version", "")},
		{"etcd as old as may be", existing, func(in *input) { in.Etcd.Versions[0].Version = "3.5.24" }, nil},
		// a worker needs none
		{"etcd that does not answer", existing, w(func(f *node.Facts) { dial(f, "10.0.0.50:2379", false) }), nil},
		{
			"etcd that does not answer the control plane", existing,
			cp(func(f *node.Facts) { dial(f, "10.0.0.50:2379", false) }), each("etcd-reachable", "cp1"),
		},
		{"old etcd of the cluster file", good, of(func(c *manifest.Cluster) {
			c.Components = map[string]manifest.Component{"etcd": {Version: "3.5.10-0"}}
		}), each("etcd-version", "")},
	}
}

func installedMutations() []mutation {
	ourNode := func(f *node.Facts) {
		ours(f)
		setPath(f, node.Path{Path: "/etc/kubernetes/manifests", Type: "dir", Entries: []string{"etcd.yaml"}})
		setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"member"}})
		setPath(f, node.Path{Path: "/etc/cni/net.d", Type: "dir", Entries: []string{"10-flannel.conflist"}})
		setUnit(f, "kubelet.service", "active")
		setUnit(f, "containerd.service", "active")
		setProgram(f, "kubelet", "v1.34.3")
		f.Interfaces = append(f.Interfaces, node.Interface{Name: "flannel.1"}, node.Interface{Name: "cni0"})
		f.PacketFilter.Foreign = []string{"FLANNEL-FWD", "KUBE-SERVICES"}
		f.AllRoutes = append(f.AllRoutes, node.Route{
			To:        netip.MustParsePrefix("10.233.65.0/24"),
			Interface: "flannel.1",
		})
		for port, by := range map[int]string{
			6443: "kube-apiserver", 10257: "kube-controller", 5000: "registry",
			8472: "",
		} {
			busy(f, port, by)
		}
	}
	oursNow := func(t *testing.T) precheck.Input {
		in := good(t)
		ourNode(in.Hosts[0].Facts)
		return in
	}
	certificate := func(days int) node.Certificate {
		return node.Certificate{
			Path:     "/etc/kubernetes/pki/apiserver.crt",
			NotAfter: time.Unix(0, 1760000000000000000).AddDate(0, 0, days),
		}
	}
	return []mutation{
		{"old manifests", good, cp(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/etc/kubernetes/manifests", Type: "dir", Entries: []string{"etcd.yaml"}})
		}), each("leftovers", "cp1")},
		{
			"empty directory of manifests", good,
			cp(func(f *node.Facts) { setPath(f, node.Path{Path: "/etc/kubernetes/manifests", Type: "dir"}) }), nil,
		},
		{"data of an old etcd", good, cp(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"member"}})
		}), each("leftovers", "cp1")},
		{"a disk for etcd", good, cp(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"lost+found"}})
		}), nil},
		{"data of an old etcd on its disk", good, cp(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"lost+found", "member"}})
		}), each("leftovers", "cp1")},
		{"data of an old etcd where none will run", good, w(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"member"}})
		}), nil},
		{"arguments of another kubelet", good, w(func(f *node.Facts) {
			f.UnitSettings = []node.UnitSetting{{
				Unit: "kubelet.service", File: "/etc/default/kubelet",
				Sets: []string{"--cgroup-driver", "--node-ip"},
			}}
		}), each("kubelet-arguments", "w1")},
		{"arguments of our own node", oursNow, cp(func(f *node.Facts) {
			f.UnitSettings = []node.UnitSetting{{
				Unit: "kubelet.service", File: "/var/lib/kubelet/kubeadm-flags.env",
				Sets: []string{"--pod-infra-container-image"},
			}}
		}), nil},
		{"the drop-in that the installation writes", good, w(func(f *node.Facts) {
			f.UnitSettings = []node.UnitSetting{{
				Unit: "kubelet.service",
				File: "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", Sets: []string{"ExecStart"},
			}}
		}), nil},
		{"arguments of a k3s that is not installed", good, w(func(f *node.Facts) {
			f.UnitSettings = []node.UnitSetting{{
				Unit: "k3s.service", File: "/etc/systemd/system/k3s.service.env",
				Sets: []string{"K3S_TOKEN"},
			}}
		}), nil},
		{"arguments of another k3s", withCluster(good, func(c *manifest.Cluster) {
			c.Kubernetes.Distribution, c.Kubernetes.Version = "k3s", "v1.34.3+k3s1"
		}), w(func(f *node.Facts) {
			f.UnitSettings = []node.UnitSetting{
				{Unit: "kubelet.service", File: "/etc/default/kubelet", Sets: []string{"--v"}},
				{Unit: "k3s-agent.service", File: "/etc/default/k3s-agent", Sets: []string{"--v"}},
			}
		}), each("kubelet-arguments", "w1")},
		{
			"running kubelet", good, w(func(f *node.Facts) { setUnit(f, "kubelet.service", "active") }),
			each("leftovers", "w1"),
		},
		{"docker", good, w(func(f *node.Facts) { setUnit(f, "docker.service", "active") }), each("runtime", "w1")},
		{
			"podman's images and CRI-O", withCluster(good, func(c *manifest.Cluster) { c.CRI.Type = "crio" }),
			w(func(f *node.Facts) {
				f.Paths = append(f.Paths, node.Path{
					Path: "/var/lib/containers/storage", Type: "dir",
					Entries: []string{"overlay-images"},
				})
			}), each("runtime", "w1"),
		},
		{
			"the configuration of another CRI-O", withCluster(good, func(c *manifest.Cluster) { c.CRI.Type = "crio" }),
			w(func(f *node.Facts) {
				f.Paths = append(f.Paths, node.Path{Path: "/etc/crio", Type: "dir", Entries: []string{"crio.conf"}})
			}), each("runtime", "w1"),
		},
		{"podman's images", good, w(func(f *node.Facts) {
			f.Paths = append(f.Paths, node.Path{
				Path: "/var/lib/containers/storage", Type: "dir",
				Entries: []string{"overlay-images"},
			})
		}), nil},
		{"our own cluster", good, cp(ourNode), nil},
		{
			"our own cluster, a foreign program", oursNow, cp(func(f *node.Facts) { busy(f, 6443, "nginx") }),
			each("ports", "cp1"),
		},
		{"our own Harbor and Cilium", rich, func(in *precheck.Input) {
			on("reg1", func(f *node.Facts) {
				ours(f)
				busy(f, 80, "docker-proxy")
				busy(f, 443, "docker-proxy")
			})(in)
			on("w1", func(f *node.Facts) {
				ours(f)
				busy(f, 4240, "cilium-agent")
			})(in)
		}, nil},
		{"our own host, not Harbor", rich, on("reg1", func(f *node.Facts) {
			ours(f)
			busy(f, 443, "nginx")
		}), each("ports", "reg1")},
		{
			"our own cluster, another version", oursNow,
			of(func(c *manifest.Cluster) { c.Kubernetes.Version = "v1.34.2" }), each("kubernetes-installed", "cp1"),
		},
		{"our own cluster, another pod network", oursNow, cp(func(f *node.Facts) {
			setPath(f, node.Path{
				Path: "/etc/cni/net.d", Type: "dir",
				Entries: []string{"00-other.conf", "10-flannel.conflist"},
			})
		}), each("cni-config", "cp1")},
		{"a kubelet that does not run", good, w(func(f *node.Facts) {
			setUnit(f, "kubelet.service", "inactive")
			setProgram(f, "kubelet", "v1.30.1")
		}), each("kubernetes-installed", "w1")},
		{
			"an old kubelet", rich, w(func(f *node.Facts) { setProgram(f, "kubelet", "v1.30.1") }),
			each("kubelet-version", "w1"),
		},
		{
			"a new kubelet", rich, w(func(f *node.Facts) { setProgram(f, "kubelet", "v1.35.0") }),
			each("kubelet-version", "w1"),
		},
		{"a kubelet three versions older", rich, w(func(f *node.Facts) { setProgram(f, "kubelet", "v1.31.0") }), nil},
		{"a kubelet without service", rich, w(func(f *node.Facts) {
			for i := range f.Systemd.Units {
				if f.Systemd.Units[i].Name == "kubelet.service" {
					f.Systemd.Units[i].Load = "not-found"
				}
			}
		}), each("kubelet-service", "w1")},
		{
			"valid certificates", good, cp(func(f *node.Facts) { f.Certificates = []node.Certificate{certificate(31)} }),
			nil,
		},
		{
			"certificates that end soon", good,
			cp(func(f *node.Facts) { f.Certificates = []node.Certificate{certificate(29)} }),
			each("certificates", "cp1"),
		},
		{
			"certificates that have ended", good,
			cp(func(f *node.Facts) { f.Certificates = []node.Certificate{certificate(-1)} }),
			each("certificates", "cp1"),
		},
	}
}

func restMutations() []mutation {
	return []mutation{
		{
			"no runtime", rich, w(func(f *node.Facts) { setUnit(f, "containerd.service", "inactive") }),
			each("cri", "w1"),
		},
		{
			"installed containerd 1.5", rich, w(func(f *node.Facts) { setProgram(f, "containerd", "1.5.18") }),
			each("containerd-installed", "w1"),
		},
		{"an old containerd of ours, before an upgrade", rich, w(func(f *node.Facts) {
			ours(f)
			setProgram(f, "containerd", "1.5.18")
		}), nil},
		{
			"old Docker", rich, on("reg1", func(f *node.Facts) { setProgram(f, "docker", "19.03.15") }),
			each("docker-version", "reg1"),
		},
		{"no Docker", rich, on("reg1", func(f *node.Facts) {
			f.Programs = slices.DeleteFunc(f.Programs, func(p node.Program) bool { return p.Name == "docker" })
		}), each("docker-version", "reg1")},
		{
			"old Compose", rich, on("reg1", func(f *node.Facts) { setProgram(f, "docker compose", "1.17.1") }),
			each("compose-version", "reg1"),
		},
		{
			"Harbor on arm64", rich, on("reg1", func(f *node.Facts) { f.Arch = "arm64" }),
			each("harbor-architecture", "reg1"),
		},
		{
			"a registry that is down", existing, w(func(f *node.Facts) { dial(f, "registry.site.example:443", false) }),
			each("registry-reachable", "w1"),
		},
		{
			"no NFS client", rich, w(func(f *node.Facts) { delete(f.Executables, "mount.nfs") }),
			each("nfs-client", "w1"),
		},
		{
			"exports", rich, on("nfs1", func(f *node.Facts) { f.Exports = []string{"/srv *(rw)"} }),
			each("nfs-exports", "nfs1"),
		},
	}
}

func serverCertificate(now time.Time) (ca, cert []byte) {
	return newCertificate(now, now.AddDate(1, 0, 0), x509.ExtKeyUsageServerAuth)
}
