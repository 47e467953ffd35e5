package node

import (
	"compress/gzip"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// tree makes files below a new root.
func makeRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The texts are written after proc(5), route(8), os-release(5) and systemctl(1); no such machine was at hand.
func TestCollect(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{
		"/etc/os-release":             "# comment\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID='9.4'\nPRETTY_NAME=\"Rocky \\\"Blue\\\" 9\"\n",
		"/etc/machine-id":             "abc\n",
		"/lib64/ld-linux-x86-64.so.2": "", "/lib64/libc.so.6": "",
		"/proc/meminfo":   "MemTotal:        2048 kB\nMemFree: 1 kB\n",
		"/proc/swaps":     "Filename Type Size Used Priority\n/dev/dm\\0401 partition 1024 0 -2\n",
		"/proc/1/comm":    "systemd\n",
		"/proc/modules":   "br_netfilter 32768 0 - Live 0x0\n",
		"/proc/cgroups":   "#subsys_name hierarchy num_cgroups enabled\ncpu 2 1 1\nmemory 3 1 0\n",
		"/proc/net/route": "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\neth0 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0\neth0 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n",
		"/proc/net/ipv6_route": strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) +
			" 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth1\n",
		"/proc/sys/net/ipv4/ip_forward":    "1\n",
		"/etc/resolv.conf":                 "nameserver 127.0.0.53 # the machine's own\nsearch site.example lab\noptions edns0 ndots:5\n",
		"/run/systemd/resolve/resolv.conf": "nameserver 10.0.0.2\n",
		"/run/netns/cni-1":                 "", "/run/docker.sock": "",
		"/etc/selinux/config":                     "# SELINUX= is one of\nSELINUX=permissive\nSELINUXTYPE=targeted\n",
		"/etc/passwd":                             "root:x:0:0:root:/root:/bin/bash\nkube:x:998:997::/home/kube:/sbin/nologin\nshort:x\n",
		"/etc/exports":                            "# none yet\n/share 10.0.0.0/24(rw,sync) # all\n",
		"/etc/exports.d/x.exports":                "/other *(ro)\n",
		"/etc/chrony.conf":                        "# pool none\npool 2.rocky.pool.ntp.org iburst\nserver 10.0.0.9 iburst\n",
		"/etc/systemd/timesyncd.conf":             "[Time]\n#NTP=\nNTP=10.0.0.8 10.0.0.9\n",
		"/etc/login.defs":                         "# x\nENV_SUPATH\tPATH=/sbin:/bin\n",
		"/etc/sudoers":                            "Defaults env_reset\nDefaults    secure_path = /sbin:/bin:/usr/sbin:/usr/bin\n",
		"/proc/self/status":                       "Name:\tx\nUmask:\t0077\n",
		"/proc/77/comm":                           "systemd-timesyn\n",
		"/proc/cpuinfo":                           "processor\t: 0\nmodel name\t: Some CPU\nflags\t: fpu hypervisor\n",
		"/proc/sys/fs/inotify/max_user_instances": "128\n",
		"/sys/devices/system/cpu/online":          "0-2,5\n",
		"/sys/class/dmi/id/product_uuid":          "4C4C4544-0001\n",
		"/sys/class/dmi/id/sys_vendor":            "VMware, Inc.\n",
		"/sys/block/sda/size":                     "2048\n", "/sys/block/sda/queue/rotational": "1\n",
		"/sys/block/sda/dev":            "8:0\n",
		"/sys/block/sda/sda1/partition": "1\n", "/sys/block/sda/sda1/dev": "8:1\n",
		"/sys/block/sdb/size": "2048\n", "/sys/block/loop0/size": "8\n", "/sys/block/sr0/size": "0\n",
		"/proc/self/mountinfo": "22 1 8:1 / / rw,relatime - xfs /dev/sda1 ro,seclabel\n23 22 0:5 / /proc rw - proc proc rw\n" +
			"24 22 0:6 / /mnt/s\\040p rw,noexec - nfs 10.0.0.7:/x rw\nshort\n",
		"/etc/hosts":              "127.0.0.1 localhost\n10.0.0.1 cp1 cp1.site # control plane\n",
		"/sys/fs/selinux/enforce": "1",
		"/etc/environment":        "http_proxy=\"http://user:secret@proxy:3128\"\n",
		"/etc/ufw/ufw.conf":       "ENABLED=no\n",
		"/usr/bin/mount":          "", "/usr/local/bin/kubelet": "", "/usr/bin/dnf": "", "/usr/bin/rpm": "",
		"/usr/bin/docker": "", "/usr/bin/hostname": "",
		"/usr/sbin/sshd":                      "",
		"/etc/kubernetes/manifests/etcd.yaml": "x",
	})
	c := &survey{
		system: system{root: root},
		probe: Probe{
			Units:       []string{"kubelet.service", "etcd.service"},
			Executables: []string{"mount", "losetup", "../etc/environment"},
			Paths:       []string{"/etc/kubernetes/manifests", "/etc/hosts", "/none"},
			Sysctls:     []string{"net.ipv4.ip_forward", "no.such", "../x"},
			Modules:     []string{"br_netfilter", "overlay", "vxlan"}, Dirs: []string{"/var/lib/etcd"},
			Packages: []string{"socat", "ipset", "--eval"}, Users: []string{"kube", "etcd", "short"},
		},
	}
	c.run = func(_ context.Context, args ...string) ([]byte, error) {
		switch line := strings.Join(args, " "); {
		case line == "systemctl --version":
			return []byte("systemd 252 (252-32)\n+PAM"), nil
		case strings.HasSuffix(line, "-- kubelet.service etcd.service"):
			return []byte("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n"), nil
		case strings.Contains(line, "firewalld"):
			return []byte("LoadState=loaded\nActiveState=active\n\nLoadState=loaded\nActiveState=active\n\nLoadState=not-found\nActiveState=inactive\n"), nil
		case strings.HasPrefix(line, "timedatectl"):
			return []byte("no\n"), nil
		case line == "/usr/local/bin/kubelet --version":
			return []byte("Kubernetes v1.34.3\n"), nil
		case line == "/usr/bin/docker info --format {{.Driver}}":
			return []byte("overlay2\nWARNING: No swap limit support\n"), nil
		case line == "/usr/bin/docker --version":
			return []byte("Docker version 28.2.2, build e6534b4\n"), nil
		case line == "/usr/bin/docker compose version":
			return []byte("docker: 'compose' is not a docker command.\n"), errors.New("exit status 1")
		case strings.HasPrefix(line, "rpm --query") && strings.HasSuffix(line, "-- socat ipset"):
			return []byte("rpm\tsocat\t1.7.4.1-5.el9\npackage ipset is not installed\n"), exitCode(1)
		case line == "getconf GNU_LIBC_VERSION":
			return []byte("glibc 2.34\n"), nil
		case strings.HasPrefix(line, "rpm --query --whatprovides") && strings.HasSuffix(line, "-- ipset"):
			return []byte("no package provides ipset\n"), exitCode(1)
		case line == "hostname -f":
			return []byte("cp1.site\n"), nil
		case strings.HasPrefix(line, "/usr/sbin/sshd -T"):
			return []byte("port 22\nciphers a,b\nmacs m\nallowtcpforwarding no\n"), nil
		}
		t.Errorf("unexpected %v", args)
		return nil, errors.New("unexpected")
	}
	c.facts.Kernel = "5.14.0"
	got, err := c.collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Problems) > 0 {
		t.Errorf("problems: %q", got.Problems)
	}
	want := Facts{
		Version: 1, UID: os.Geteuid(), MachineID: "abc", Memory: 2 << 20,
		OS: OSRelease{
			ID: "rocky", IDLike: []string{"rhel", "centos", "fedora"}, VersionID: "9.4",
			PrettyName: `Rocky "Blue" 9`,
		},
		Swaps:   []Swap{{Name: "/dev/dm 1", Size: 1 << 20}},
		Cgroups: Cgroups{Version: 1, Controllers: []string{"cpu"}},
		Modules: map[string]Module{"br_netfilter": ModuleLoaded, "overlay": ModuleMissing, "vxlan": ModuleMissing},
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1"},
		Routes: []DefaultRoute{
			{Interface: "eth0", Gateway: netip.MustParseAddr("192.168.2.1")},
			{Interface: "eth1", Gateway: netip.MustParseAddr("fe80::1")},
		},
		DNS: DNS{
			Nameservers: []string{"127.0.0.53"}, Search: []string{"site.example", "lab"},
			Options: []string{"edns0", "ndots:5"}, Ndots: 5,
			Stub: true, Upstream: []string{"10.0.0.2"},
		},
		Hosts: []HostsLine{{"127.0.0.1", []string{"localhost"}}, {"10.0.0.1", []string{"cp1", "cp1.site"}}},
		Systemd: Systemd{Init: true, Version: "252", Units: []Unit{
			{"kubelet.service", "loaded", "active", "enabled"}, {"etcd.service", "not-found", "inactive", ""},
		}},
		Executables: map[string]string{"mount": "/usr/bin/mount"},
		Paths: []Path{
			{Path: "/etc/kubernetes/manifests", Type: "dir", Entries: []string{"etcd.yaml"}},
			{Path: "/etc/hosts", Type: "file", Size: 58},
			{Path: "/none"},
		},
		SELinux: "enforcing", SELinuxConfig: "permissive",
		ProductUUID: "4c4c4544-0001", FQDN: "cp1.site", Virtualization: "vmware", OnlineCPUs: 4, CPUModel: "Some CPU",
		Disks: []Disk{
			{Name: "sda", Size: 1 << 20, Rotational: true, Partitions: []string{"sda1"}, Used: true},
			{Name: "sdb", Size: 1 << 20},
		},
		Mounts: []Mount{
			{Point: "/", Source: "/dev/sda1", Type: "xfs", Options: []string{"rw", "relatime", "ro"}},
			{Point: "/mnt/s p", Source: "10.0.0.7:/x", Type: "nfs", Options: []string{"rw", "noexec"}},
		},
		Limits:     Limits{InotifyInstances: 128},
		Namespaces: []string{"cni-1"},
		AllRoutes: []Route{
			{
				To: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0", Gateway: netip.MustParseAddr("192.168.2.1"),
				Metric: 100,
			},
			{To: netip.MustParsePrefix("192.168.2.0/24"), Interface: "eth0"},
			{
				To: netip.MustParsePrefix("::/0"), Interface: "eth1", Gateway: netip.MustParseAddr("fe80::1"),
				Metric: 1024,
			},
		},
		Packages: map[string]string{"socat": "1.7.4.1-5.el9"},
		Users:    map[string]User{"kube": {UID: 998, GID: 997, Home: "/home/kube", Shell: "/sbin/nologin"}},
		Exports:  []string{"/share 10.0.0.0/24(rw,sync)", "/other *(ro)"},
		Time: Time{Daemons: []string{"systemd-timesyncd"}, Servers: []string{
			"2.rocky.pool.ntp.org", "10.0.0.9",
			"10.0.0.8",
		}},
		Umask: "0077", SearchPath: "/sbin:/bin", SecurePath: "/sbin:/bin:/usr/sbin:/usr/bin",
		Firewalls: []string{"firewalld"},
		Programs: []Program{
			{"docker", "/usr/bin/docker", "28.2.2"},
			{"kubelet", "/usr/local/bin/kubelet", "v1.34.3"},
		},
		DockerDriver:   "overlay2",
		PackageManager: "dnf",
		Libc:           Libc{Name: "glibc", Version: "2.34", Loaders: []string{"/lib64/ld-linux-x86-64.so.2"}},
		TimeSync:       "no",
	}
	ignore := cmpopts.IgnoreFields(Facts{}, "Clock", "Took", "CPUs", "Kernel", "Machine", "Arch", "Hostname",
		"HostnameAddresses", "Dirs", "Interfaces", "Proxies", "KernelConfig")
	if got.UID == 0 {
		want.SSHD = &SSHD{Ciphers: []string{"a", "b"}, MACs: []string{"m"}, AllowTCPForwarding: "no"}
	}
	got.Time.Known, got.Time.Synchronized, got.Time.Offset, got.Time.MaxError = false, false, 0, 0 // this machine's
	got.Mounts[0].Total, got.Mounts[0].Free, got.Mounts[0].Inodes = 0, 0, 0
	compare := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})
	if diff := cmp.Diff(want, got, ignore, compare); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if d, ok := got.Dir("/var/lib/etcd"); !ok || d.Exists || d.Total <= 0 || d.Free <= 0 {
		t.Errorf("directory: %+v", d)
	}
	if os.Getenv("HTTP_PROXY") == "" && os.Getenv("http_proxy") == "" {
		if p := got.Proxies["HTTP_PROXY"]; p != "http://proxy:3128" {
			t.Errorf("proxy %q", p)
		}
	}
}

// exitCode is how a program ended.
type exitCode int

func (exitCode) Error() string   { return "exit status" }
func (e exitCode) ExitCode() int { return int(e) }

// TestCollectThisMachine looks at the real thing.
func TestCollectThisMachine(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	busy := l.Addr().(*net.TCPAddr).Port
	probe := Probe{Ports: []int{busy, 0}, Dirs: []string{"/", "/none/at/all"}, Executables: []string{"sh"}}
	for range 3 { // all of them cannot become others' in a moment
		u, err := net.ListenPacket("udp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
		probe.UDPPorts = append(probe.UDPPorts, u.LocalAddr().(*net.UDPAddr).Port)
		if len(probe.UDPPorts) > 1 {
			_ = u.Close()
		}
	}
	f, err := Collect(t.Context(), probe)
	if err != nil {
		t.Fatal(err)
	}
	if f.Kernel == "" || f.Arch == "" || f.Hostname == "" || f.CPUs < 1 || f.Memory < 1<<20 || f.Clock == 0 ||
		!f.Executable("sh") {
		t.Errorf("facts: %+v", f)
	}
	if p := f.Ports[0]; p.Free || p.Problem != "" || (os.Geteuid() == 0 && !strings.HasPrefix(p.By, "node.test")) {
		t.Errorf("busy port: %+v", p)
	}
	if f.Ports[1].Problem == "" || f.Ports[2].Free || !f.Ports[3].Free && !f.Ports[4].Free {
		t.Errorf("ports: %+v", f.Ports)
	}
	if d, ok := f.Dir("/none/at/all"); !ok || d.Exists || d.Device != f.Dirs[0].Device {
		t.Errorf("directories: %+v", f.Dirs)
	}
	if _, err := Collect(t.Context(), Probe{Ports: make([]int, 1001)}); err == nil {
		t.Error("a probe that asks for too much: no error")
	}
}

func TestKernelConfig(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{
		"/proc/config.gz":                    "",
		"/lib/modules/6.1.0/modules.builtin": "kernel/fs/overlayfs/overlay.ko\n",
		"/lib/modules/6.1.0/modules.dep":     "kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/net/x.ko\n",
	})
	f, err := os.Create(root + "/proc/config.gz")
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	_, _ = z.Write([]byte("# CONFIG_A is not set\nCONFIG_BRIDGE_NETFILTER=y\nCONFIG_B=m\nCONFIG_C=\"x\"\n"))
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	c := &survey{system: system{root: root}, probe: Probe{
		KernelConfig: []string{"CONFIG_A", "CONFIG_B"},
		Modules:      []string{"overlay", "vxlan", "br_netfilter", "ip-vs"},
	}}
	c.facts.Kernel = "6.1.0"
	kernelCollector{c}.kernel()
	if a, b := c.facts.KernelConfig["CONFIG_A"], c.facts.KernelConfig["CONFIG_B"]; a != "n" || b != "m" {
		t.Errorf("configuration: %v", c.facts.KernelConfig)
	}
	want := map[string]Module{
		"overlay": ModuleBuiltIn, "vxlan": ModuleAvailable, "br_netfilter": ModuleBuiltIn,
		"ip-vs": ModuleMissing,
	}
	if diff := cmp.Diff(want, c.facts.Modules); diff != "" {
		t.Error(diff)
	}
}

// TestInstalledKernels has the remains of a removed kernel, and an installed one that does not run yet.
func TestInstalledKernels(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{
		"/lib/modules/6.1.0-28/kernel/left.ko": "", "/lib/modules/6.1.0-31/modules.dep": "",
		"/lib/modules/6.1.0-29/modules.dep": "",
	})
	c := &survey{system: system{root: root}, probe: Probe{Modules: []string{"overlay"}}}
	c.facts.Kernel = "6.1.0-28"
	kernelCollector{c}.kernel()
	if diff := cmp.Diff([]string{"6.1.0-29", "6.1.0-31"}, c.facts.InstalledKernels); diff != "" {
		t.Error(diff)
	}
}

// TestBuiltInModulesOfAllRules has a kernel without modules: its configuration tells about each module that a check
// asks for.
func TestBuiltInModulesOfAllRules(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{"/boot/config-6.1.0": "CONFIG_NETFILTER_XT_MATCH_COMMENT=y\nCONFIG_NFT_COMPAT=y\nCONFIG_IP_VS_SH=m\n"})
	c := &survey{system: system{root: root}, probe: Probe{Modules: []string{
		"xt_comment", "nft_compat", "ip_vs_sh",
		"xt_nat",
	}}}
	c.facts.Kernel = "6.1.0"
	kernelCollector{c}.kernel()
	want := map[string]Module{
		"xt_comment": ModuleBuiltIn, "nft_compat": ModuleBuiltIn, "ip_vs_sh": ModuleMissing,
		"xt_nat": ModuleMissing,
	}
	if diff := cmp.Diff(want, c.facts.Modules); diff != "" {
		t.Error(diff)
	}
}

func TestReadProbe(t *testing.T) {
	t.Parallel()
	if p, err := ReadProbe(strings.NewReader(" \n")); err != nil || len(p.Ports) != 0 {
		t.Errorf("empty: %v, %v", p, err)
	}
	if p, err := ReadProbe(strings.NewReader(`{"ports":[1,2]}`)); err != nil || len(p.Ports) != 2 {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := ReadProbe(strings.NewReader("{")); err == nil {
		t.Error("malformed: no error")
	}
}

// TestForbiddenModules reads modprobe.d as modprobe does, and the kernel's command line.
func TestForbiddenModules(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{
		"/lib/modules/6.1.0/modules.dep": "kernel/a/overlay.ko.xz:\nkernel/b/br_netfilter.ko:\nkernel/c/vxlan.ko:\nkernel/d/ip-vs.ko:\nkernel/e/xt_nat.ko:\n",
		"/etc/modprobe.d/cis.conf":       "# CIS\ninstall overlay /bin/false\nblacklist overlay\nblacklist vxlan\n",
		"/etc/modprobe.d/own.conf":       "install ip_vs /sbin/modprobe --ignore-install ip_vs\n",
		"/usr/lib/modprobe.d/own.conf":   "install vxlan /bin/true\n", // replaced
		"/usr/lib/modprobe.d/net.conf":   "install br-netfilter \\\n  /bin/true\n",
		"/etc/modprobe.d/net.txt":        "install xt_nat /bin/true\n",
		"/proc/cmdline":                  "quiet module_blacklist=xt-nat,nothing\n",
	})
	c := &survey{system: system{root: root}, probe: Probe{Modules: []string{
		"overlay", "br_netfilter", "vxlan", "ip_vs",
		"xt_nat", "dummy",
	}}}
	c.facts.Kernel = "6.1.0"
	kernelCollector{c}.kernel()
	want := map[string]Module{
		"overlay": ModuleForbidden, "br_netfilter": ModuleForbidden, "xt_nat": ModuleForbidden,
		"vxlan": ModuleAvailable, "ip_vs": ModuleAvailable, "dummy": ModuleMissing,
	}
	if diff := cmp.Diff(want, c.facts.Modules); diff != "" {
		t.Error(diff)
	}
	places := map[string]string{
		"overlay": "/etc/modprobe.d/cis.conf", "br_netfilter": "/usr/lib/modprobe.d/net.conf",
		"xt_nat": "module_blacklist",
	}
	if diff := cmp.Diff(places, c.facts.Forbids); diff != "" {
		t.Error(diff)
	}
}

// TestUnitProxies reads drop-ins as systemd does.
func TestUnitProxies(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{
		"/etc/systemd/system.conf.d/p.conf":                        "[Manager]\nDefaultEnvironment=ALL_PROXY=http://all:1\n",
		"/etc/systemd/system/containerd.service.d/http-proxy.conf": "[Service]\nEnvironment=\"HTTP_PROXY=http://u:p@proxy:3128\" 'NO_PROXY=localhost,10.0.0.1' X=1\n",
		"/etc/systemd/system/docker.service.d/a.conf":              "[Service]\nEnvironment=HTTPS_PROXY=http://old:1\n",
		"/etc/systemd/system/docker.service.d/b.conf":              "[Service]\nEnvironment=\n",
		"/etc/systemd/system/crio.service.d/env.conf":              "[Service]\nEnvironmentFile=-/etc/sysconfig/proxy\n",
		"/etc/sysconfig/proxy":                                     "https_proxy=http://proxy:3129\n",
		"/etc/systemd/system/kubelet.service.d/x.txt":              "[Service]\nEnvironment=HTTP_PROXY=http://none:1\n",
		// Of two files with one name the directory counts; the order is that of the names.
		"/usr/lib/systemd/system/k3s.service.d/a.conf": "[Service]\nEnvironment=HTTP_PROXY=http://masked:1\n",
		"/etc/systemd/system/k3s.service.d/a.conf":     "",
		"/usr/lib/systemd/system/k3s.service.d/z.conf": "[Service]\nEnvironment=HTTP_PROXY=http://last:1\n",
		"/etc/systemd/system/k3s.service.d/b.conf":     "[Service]\nEnvironment=HTTP_PROXY=http://first:1\n",
	})
	c := &survey{system: system{root: root}}
	machineCollector{c}.unitProxies()
	want := []UnitProxy{
		{"all units", "/etc/systemd/system.conf.d/p.conf", map[string]string{"ALL_PROXY": "http://all:1"}},
		{
			"containerd.service", "/etc/systemd/system/containerd.service.d/http-proxy.conf",
			map[string]string{"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,10.0.0.1"},
		},
		{"crio.service", "/etc/sysconfig/proxy", map[string]string{"HTTPS_PROXY": "http://proxy:3129"}},
		{
			"k3s.service", "/usr/lib/systemd/system/k3s.service.d/z.conf",
			map[string]string{"HTTP_PROXY": "http://last:1"},
		},
	}
	if diff := cmp.Diff(want, c.facts.UnitProxies); diff != "" {
		t.Error(diff)
	}
}

// TestUnitSettings has what earlier clusters and packages leave beside units: names are told, values are not.
func TestUnitSettings(t *testing.T) {
	t.Parallel()
	root := makeRoot(t, map[string]string{
		"/etc/default/kubelet":                                      "# of the package\nKUBELET_EXTRA_ARGS=\n",
		"/etc/sysconfig/kubelet":                                    "KUBELET_EXTRA_ARGS=\"--node-ip=10.0.0.9 \\\n --v 4\"\nGODEBUG=x\n;OLD=1\nHTTP_PROXY=http://p:1\n",
		"/var/lib/kubelet/kubeadm-flags.env":                        "KUBELET_KUBEADM_ARGS=\"--pod-infra-container-image=registry/pause:3.9\"\n",
		"/etc/systemd/system/k3s.service.env":                       "K3S_TOKEN=secret\n",
		"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n",
		"/etc/systemd/system/kubelet.service.d/20-own.conf": "# mine\n[Service]\nEnvironment=\"KUBELET_EXTRA_ARGS=--cgroup-driver=cgroupfs --v=2\" TOKEN=secret\n" +
			"EnvironmentFile=-/etc/own\nCPUAffinity=0\n",
		"/etc/systemd/system/kubelet.service.d/30-proxy.conf": "[Service]\nEnvironment=HTTP_PROXY=http://u:secret@p:1 no_proxy=x\n",
		"/etc/systemd/system/kubelet.service.d/40-clear.conf": "[Service]\nEnvironment=\n",
		"/run/systemd/system/kubelet.service.d/50-gone.conf":  "[Service]\nExecStart=/bin/false\n",
		"/etc/systemd/system/kubelet.service.d/50-gone.conf":  "",
	})
	c := &survey{system: system{root: root}}
	machineCollector{c}.unitSettings()
	const dir = "/etc/systemd/system/kubelet.service.d/"
	want := []UnitSetting{
		{"kubelet.service", "/etc/sysconfig/kubelet", []string{"--node-ip", "--v", "GODEBUG"}},
		{"kubelet.service", "/var/lib/kubelet/kubeadm-flags.env", []string{"--pod-infra-container-image"}},
		{"kubelet.service", "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", []string{"ExecStart"}},
		{"kubelet.service", dir + "20-own.conf", []string{
			"--cgroup-driver", "--v", "CPUAffinity",
			"EnvironmentFile=-/etc/own", "TOKEN",
		}},
		{"kubelet.service", dir + "40-clear.conf", []string{"Environment"}},
		{"k3s.service", "/etc/systemd/system/k3s.service.env", []string{"K3S_TOKEN"}},
	}
	if diff := cmp.Diff(want, c.facts.UnitSettings); diff != "" {
		t.Error(diff)
	}
}

// TestPortOfAnAddress tries the port of an address that this machine does not have, as the DNS cache's is before it
// runs: who listens on all addresses is in its way, who listens on another one is not.
func TestPortOfAnAddress(t *testing.T) {
	t.Parallel()
	address := netip.MustParseAddr("192.0.2.10")
	for on, free := range map[string]bool{"127.0.0.53:0": true, "0.0.0.0:0": false, "[::]:0": false, "[::1]:0": true} {
		l, err := net.Listen("tcp", on)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		u, err := net.ListenPacket("udp", on)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
		tcp, udp := l.Addr().(*net.TCPAddr).AddrPort().Port(), u.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		f, err := Collect(t.Context(), Probe{Addresses: []netip.AddrPort{
			netip.AddrPortFrom(address, tcp),
			netip.AddrPortFrom(address, udp),
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []Port{f.Ports[0], f.Ports[3]} { // TCP of the first, UDP of the second
			seen := os.Geteuid() != 0 || p.Free || strings.HasPrefix(p.By, "node.test")
			if p.Address != address || p.Free != free || p.Problem != "" || !seen {
				t.Errorf("beside %s: %+v, want free: %v", on, p, free)
			}
		}
	}
}

// TestWhoListens has systemd-resolved on its own address and another program on all.
func TestWhoListens(t *testing.T) {
	t.Parallel()
	line := func(at, inode string) string {
		return " 1: " + at + ":0035 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 " + inode + " 2 0 0\n"
	}
	root := makeRoot(t, map[string]string{
		"/proc/net/udp":  "sl\n" + line("3500007F", "11") + line("0A19FEA9", "12"),
		"/proc/net/udp6": line(strings.Repeat("0", 32), "13"),
		"/proc/11/comm":  "systemd-resolve\n", "/proc/12/comm": "node-cache\n", "/proc/13/comm": "dnsmasq\n",
	})
	for pid, inode := range map[string]string{"11": "11", "12": "12", "13": "13"} {
		if err := os.MkdirAll(root+"/proc/"+pid+"/fd", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("socket:["+inode+"]", root+"/proc/"+pid+"/fd/3"); err != nil {
			t.Fatal(err)
		}
	}
	c := networkCollector{&survey{system: system{root: root}}}
	for address, want := range map[string]string{
		"169.254.25.10": "node-cache", "192.0.2.1": "dnsmasq",
		"127.0.0.53": "systemd-resolve",
	} {
		if got := c.listener(Port{Network: "udp", Port: 53, Address: netip.MustParseAddr(address)}); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
