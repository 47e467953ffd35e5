package precheck_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

func facts(t *testing.T, name string) *node.Facts {
	t.Helper()
	data, err := os.ReadFile("testdata/facts/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var f node.Facts
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return &f
}

func host(name, address string, roles ...manifest.Role) precheck.Host {
	h := precheck.Host{Host: manifest.Host{Name: name, Roles: append(roles, manifest.RoleCluster)}}
	if address != "" {
		h.InternalIPv4 = netip.MustParseAddr(address)
	}
	return h
}

const gib = 1 << 30

// good is a control plane with a registry and a worker on which nothing is to be found.
func good(t *testing.T) precheck.Input {
	t.Helper()
	cp := host("cp1", "10.0.0.3", manifest.RoleControlPlane, manifest.RoleEtcd, manifest.RoleRegistry)
	cp.Facts = facts(t, "ubuntu-24.04")
	cp.Space = []precheck.Space{{For: "images", Dir: "/var/lib/containerd", Bytes: 10 * gib}, {For: "registry", Dir: "/var/lib/registry", Bytes: 20 * gib}}
	w := host("w1", "10.0.0.11", manifest.RoleWorker)
	w.Facts = facts(t, "rocky-9")
	w.Facts.SELinux, w.Facts.Firewalls, w.Facts.Proxies, w.Facts.Swaps = "permissive", nil, nil, nil
	for _, h := range []*precheck.Host{&cp, &w} {
		h.Sent = time.Unix(0, h.Facts.Clock).Add(-time.Second / 2)
		h.Received = h.Sent.Add(time.Second)
	}
	c := &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}}
	return precheck.Input{Cluster: c, Hosts: []precheck.Host{cp, w}, Architectures: []string{"amd64"}}
}

// failed lists the failed checks as host/id.
func failed(r precheck.Report) []string {
	var list []string
	for _, one := range r.Results {
		if !one.OK {
			list = append(list, one.Host+"/"+one.ID)
		}
	}
	return list
}

func TestGood(t *testing.T) {
	t.Parallel()
	r := precheck.Evaluate(good(t))
	if list := failed(r); len(list) > 0 || r.Blocked != 0 || r.Warned != 0 || r.Err() != nil {
		t.Errorf("failed: %v, blocked %d, warned %d, %v", list, r.Blocked, r.Warned, r.Err())
	}
}

// TestEachCheck changes one thing, and exactly what it is about fails.
func TestEachCheck(t *testing.T) {
	t.Parallel()
	type input = precheck.Input
	cp := func(f func(*node.Facts)) func(*input) { return func(in *input) { f(in.Hosts[0].Facts) } }
	w := func(f func(*node.Facts)) func(*input) { return func(in *input) { f(in.Hosts[1].Facts) } }
	setPath := func(f *node.Facts, p node.Path) {
		i := slices.IndexFunc(f.Paths, func(o node.Path) bool { return o.Path == p.Path })
		f.Paths[i] = p
	}
	setUnit := func(f *node.Facts, name, active string) {
		i := slices.IndexFunc(f.Systemd.Units, func(u node.Unit) bool { return u.Name == name })
		f.Systemd.Units[i].Load, f.Systemd.Units[i].Active = "loaded", active
	}
	busy := func(f *node.Facts, port int, by string) {
		for i := range f.Ports {
			if f.Ports[i].Port == port {
				f.Ports[i].Free, f.Ports[i].By = false, by
			}
		}
	}
	ours := func(f *node.Facts) {
		setPath(f, node.Path{Path: precheck.MarkerDir, Type: "dir", Entries: []string{"registry"}})
	}
	covered := map[string]bool{}
	for _, c := range []struct {
		name   string
		change func(*input)
		want   []string
	}{
		{"user", w(func(f *node.Facts) { f.UID = 1000 }), []string{"w1/privileges"}},
		{"no systemd", w(func(f *node.Facts) { f.Systemd.Init = false }), []string{"w1/systemd"}},
		{"alpine", w(func(f *node.Facts) { f.OS.ID = "alpine" }), []string{"w1/os"}},
		{"alpine allowed", func(in *input) {
			in.Hosts[1].Facts.OS.ID = "alpine"
			in.Cluster.Precheck.AllowUnsupportedDistributions = true
		}, nil},
		{"riscv", w(func(f *node.Facts) { f.Arch, f.Machine = "", "riscv64" }), []string{"w1/architecture"}},
		{"arm64 host, amd64 bundle", w(func(f *node.Facts) { f.Arch = "arm64" }), []string{"w1/architecture"}},
		{"arm64 host, both", func(in *input) {
			in.Hosts[1].Facts.Arch = "arm64"
			in.Architectures = []string{"amd64", "arm64"}
		}, nil},
		{"name", func(in *input) { in.Hosts[1].Name = "Worker_1" }, []string{"Worker_1/hostname"}},
		{"dotted name", func(in *input) { in.Hosts[1].Name = "w-1.site.example" }, nil},
		{"one CPU", cp(func(f *node.Facts) { f.CPUs = 1 }), []string{"cp1/cpu"}},
		{"one CPU in a worker", w(func(f *node.Facts) { f.CPUs = 1 }), nil},
		{"1.6 GiB of memory", cp(func(f *node.Facts) { f.Memory = 1600 << 20 }), []string{"cp1/memory"}},
		{"1.6 GiB in a worker", w(func(f *node.Facts) { f.Memory = 1600 << 20 }), nil},
		{"half a GiB in a worker", w(func(f *node.Facts) { f.Memory = 512 << 20 }), []string{"w1/memory"}},
		{"a larger minimum", func(in *input) { in.Cluster.Precheck.MinMemory.Worker = 8 * gib }, []string{"w1/memory"}},
		{"one disk for two", cp(func(f *node.Facts) {
			for i := range f.Dirs {
				f.Dirs[i].Free = 25 * gib // each fits, both do not
			}
		}), []string{"cp1/disk"}},
		{"a disk for each", cp(func(f *node.Facts) {
			f.Dirs[0].Free, f.Dirs[0].Device = 10*gib, 1
			f.Dirs[1].Free, f.Dirs[1].Device = 20*gib, 2
		}), nil},
		{"unknown space", cp(func(f *node.Facts) { f.Dirs = f.Dirs[1:] }), []string{"cp1/disk"}},
		{"noexec", w(func(f *node.Facts) { f.Dirs[2].NoExec = true }), []string{"w1/filesystems"}},
		{"noexec on /etc", w(func(f *node.Facts) { f.Dirs[4].NoExec = true }), nil},
		{"read-only", w(func(f *node.Facts) { f.Dirs[4].ReadOnly = true }), []string{"w1/filesystems"}},
		{"old kernel", w(func(f *node.Facts) { f.Kernel = "4.9.16-x" }), []string{"w1/kernel"}},
		{"kernel as required", w(func(f *node.Facts) { f.Kernel = "4.9.17" }), nil},
		{"kernel 4.10", w(func(f *node.Facts) { f.Kernel = "4.10.0" }), nil},
		{"kernel 3.10", w(func(f *node.Facts) { f.Kernel = "3.10.0-1160.el7.x86_64" }), []string{"w1/kernel"}},
		{"no vxlan", w(func(f *node.Facts) { f.Modules["vxlan"] = node.ModuleMissing }), []string{"w1/modules"}},
		{"no vxlan, no flannel", func(in *input) {
			in.Hosts[1].Facts.Modules["vxlan"] = node.ModuleMissing
			in.Cluster.CNI.Type = "calico"
		}, nil},
		{"no memory cgroup in the kernel", w(func(f *node.Facts) { f.KernelConfig["CONFIG_MEMCG"] = "n" }), []string{"w1/kernel-config"}},
		{"one redirect target", w(func(f *node.Facts) { f.KernelConfig["CONFIG_IP_NF_TARGET_REDIRECT"] = "n" }), nil},
		{"no redirect target", w(func(f *node.Facts) {
			f.KernelConfig["CONFIG_IP_NF_TARGET_REDIRECT"] = "n"
			f.KernelConfig["CONFIG_NETFILTER_XT_TARGET_REDIRECT"] = "n"
		}), []string{"w1/kernel-config"}},
		{"kernel configuration unknown", w(func(f *node.Facts) { f.KernelConfig = nil }), nil},
		{"no pids", w(func(f *node.Facts) { f.Cgroups.Controllers = []string{"cpu", "cpuset", "memory"} }), []string{"w1/cgroups"}},
		{"version 1", w(func(f *node.Facts) {
			f.Cgroups = node.Cgroups{Version: 1, Controllers: []string{"cpu", "cpuset", "memory", "pids", "cpuacct", "devices", "freezer"}}
		}), []string{"w1/cgroup-version"}},
		{"swap", w(func(f *node.Facts) { f.Swaps = []node.Swap{{Name: "/swap", Size: 1}} }), []string{"w1/swap"}},
		{"swap allowed", func(in *input) {
			in.Hosts[1].Facts.Swaps = []node.Swap{{Name: "/swap", Size: 1}}
			in.Cluster.Kubernetes.Kubelet = manifest.Config{"failSwapOn": false}
		}, nil},
		{"no losetup", w(func(f *node.Facts) { delete(f.Executables, "losetup") }), []string{"w1/executables"}},
		{"no conntrack for 1.31", func(in *input) { in.Cluster.Kubernetes.Version = "v1.31.14" }, []string{"cp1/executables", "w1/executables"}},
		{"no iptables", w(func(f *node.Facts) { delete(f.Executables, "iptables") }), []string{"w1/executables-optional"}},
		{"port of the kubelet", w(func(f *node.Facts) { busy(f, 10250, "nginx") }), []string{"w1/ports"}},
		{"port of the registry", cp(func(f *node.Facts) { busy(f, 5000, "docker-proxy") }), []string{"cp1/ports"}},
		{"other port of the registry", func(in *input) { in.Cluster.ImageRegistry.Port = 5001 }, []string{"cp1/ports"}}, // was not tried
		{"no registry", func(in *input) {
			busy(in.Hosts[0].Facts, 5000, "docker-proxy")
			in.Cluster.ImageRegistry.Type = "existing"
		}, nil},
		{"wrong address", func(in *input) { in.Hosts[1].InternalIPv4 = netip.MustParseAddr("10.0.0.1") }, []string{"w1/address"}}, // a prefix of 10.0.0.11
		{"address of another", func(in *input) {
			in.Hosts[1].InternalIPv4 = netip.MustParseAddr("10.0.0.3")
			in.Hosts[1].Facts.Interfaces[0].Addresses[0] = netip.MustParsePrefix("10.0.0.3/24")
		}, []string{"cp1/address-unique", "w1/address-unique"}},
		{"no address, default route", func(in *input) { in.Hosts[1].InternalIPv4 = netip.Addr{} }, nil},
		{"no address, no default route", func(in *input) {
			in.Hosts[1].InternalIPv4 = netip.Addr{}
			in.Hosts[1].Facts.Routes = nil
		}, []string{"w1/address", "w1/default-route"}},
		{"pods in the hosts' network", func(in *input) {
			in.Cluster.Kubernetes.PodCIDR = manifest.CIDRs{netip.MustParsePrefix("10.0.0.128/25")}
		}, []string{"cp1/networks", "w1/networks"}},
		{"same machine", w(func(f *node.Facts) { f.MachineID = "5f0c2a8e0d8b4f0f9f3c0d3c1b6a7e11" }), []string{"cp1/machine-unique", "w1/machine-unique"}},
		{"same MAC address", w(func(f *node.Facts) { f.Interfaces[0].MAC = "52:54:00:12:34:01" }), []string{"cp1/mac-unique", "w1/mac-unique"}},
		{"old manifests", cp(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/etc/kubernetes/manifests", Type: "dir", Entries: []string{"etcd.yaml"}})
		}), []string{"cp1/leftovers"}},
		{"empty directory of manifests", cp(func(f *node.Facts) { setPath(f, node.Path{Path: "/etc/kubernetes/manifests", Type: "dir"}) }), nil},
		{"old etcd", cp(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"member"}})
		}), []string{"cp1/leftovers"}},
		{"old etcd where none will run", w(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"member"}})
		}), nil},
		{"running kubelet", w(func(f *node.Facts) { setUnit(f, "kubelet.service", "active") }), []string{"w1/leftovers"}},
		{"foreign pod network", w(func(f *node.Facts) {
			setPath(f, node.Path{Path: "/etc/cni/net.d", Type: "dir", Entries: []string{".keep", "87-podman.conflist"}})
		}), []string{"w1/cni-config"}},
		{"docker", w(func(f *node.Facts) { setUnit(f, "docker.service", "active") }), []string{"w1/runtime"}},
		{"our own cluster", cp(func(f *node.Facts) {
			ours(f)
			setPath(f, node.Path{Path: "/etc/kubernetes/manifests", Type: "dir", Entries: []string{"etcd.yaml"}})
			setPath(f, node.Path{Path: "/var/lib/etcd", Type: "dir", Entries: []string{"member"}})
			setPath(f, node.Path{Path: "/etc/cni/net.d", Type: "dir", Entries: []string{"10-flannel.conflist"}})
			setUnit(f, "kubelet.service", "active")
			setUnit(f, "containerd.service", "active")
			busy(f, 6443, "kube-apiserver")
			busy(f, 10257, "kube-controller")
			busy(f, 5000, "registry")
			busy(f, 8472, "")
		}), nil},
		{"our own cluster, a foreign program", cp(func(f *node.Facts) {
			ours(f)
			busy(f, 6443, "nginx")
		}), []string{"cp1/ports"}},
		{"clock ahead", func(in *input) { in.Hosts[1].Facts.Clock += int64(3 * time.Second) }, []string{"w1/clock"}},
		{"clock behind", func(in *input) { in.Hosts[1].Facts.Clock -= int64(3 * time.Second) }, []string{"w1/clock"}},
		{"clock may be right", func(in *input) {
			in.Hosts[1].Facts.Clock -= int64(3 * time.Second)
			in.Hosts[1].Sent = in.Hosts[1].Sent.Add(-3 * time.Second) // the answer took that long
		}, nil},
		{"no times", func(in *input) {
			in.Hosts[1].Facts.Clock = 0
			in.Hosts[1].Sent = time.Time{}
		}, nil},
		{"not synchronised", w(func(f *node.Facts) { f.TimeSync = "no" }), []string{"w1/time-sync"}},
		{"no nameserver", w(func(f *node.Facts) { f.DNS.Nameservers = nil }), []string{"w1/dns"}},
		{"nameserver on the host", w(func(f *node.Facts) { f.DNS.Nameservers = []string{"127.0.0.1"} }), []string{"w1/dns"}},
		{"proxy", w(func(f *node.Facts) { f.Proxies = map[string]string{"HTTP_PROXY": "http://proxy"} }), []string{"w1/proxy"}},
		{"firewall", w(func(f *node.Facts) { f.Firewalls = []string{"firewalld"} }), []string{"w1/firewall"}},
		{"SELinux", w(func(f *node.Facts) { f.SELinux = "enforcing" }), []string{"w1/selinux"}},
		{"unreachable", func(in *input) { in.Hosts[1].Facts, in.Hosts[1].Err = nil, errors.New("no answer") }, []string{"w1/reachable"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := good(t)
			c.change(&in)
			if diff := cmp.Diff(c.want, failed(precheck.Evaluate(in))); diff != "" {
				t.Errorf("failed checks (-want +got):\n%s", diff)
			}
		})
		for _, one := range c.want {
			covered[one[strings.IndexByte(one, '/')+1:]] = true
		}
	}
	for _, c := range precheck.Checks() {
		if !covered[c.ID] {
			t.Errorf("check %s is not tested", c.ID)
		}
	}
}

func TestChecksAreDocumented(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range precheck.Checks() {
		if seen[c.ID] || c.Title == "" || c.Why == "" || c.Fix == "" || c.Source == "" || c.OK == nil || (c.Level != precheck.Block && c.Level != precheck.Warn) {
			t.Errorf("check %q is not whole, or there twice", c.ID)
		}
		seen[c.ID] = true
	}
}

// TestRecorded evaluates facts as they come from machines.
func TestRecorded(t *testing.T) {
	t.Parallel()
	debian := host("debian", "192.0.2.2", manifest.RoleControlPlane, manifest.RoleEtcd, manifest.RoleRegistry)
	debian.Facts = facts(t, "debian-12")
	rocky := host("rocky", "10.0.0.11", manifest.RoleWorker)
	rocky.Facts = facts(t, "rocky-9")
	c := &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}}
	r := precheck.Evaluate(precheck.Input{Cluster: c, Hosts: []precheck.Host{debian, rocky}})
	want := []string{
		"debian/systemd", "debian/cgroup-version", "debian/executables", // the machine has no modprobe
		"rocky/swap", "rocky/proxy", "rocky/firewall", "rocky/selinux",
	}
	if diff := cmp.Diff(want, failed(r)); diff != "" {
		t.Errorf("failed checks (-want +got):\n%s", diff)
	}
}

// TestProbe checks that what the checks look at is asked for.
func TestProbe(t *testing.T) {
	t.Parallel()
	in := good(t)
	for _, h := range in.Hosts {
		p := precheck.ProbeFor(in.Cluster, h)
		if len(p.Ports)+len(p.UDPPorts) != len(h.Facts.Ports) {
			t.Errorf("%s: ports %v and %v, facts have %v", h.Name, p.Ports, p.UDPPorts, h.Facts.Ports)
		}
		for _, dir := range h.Space {
			if !slices.Contains(p.Dirs, dir.Dir) {
				t.Errorf("%s: %s is not asked for", h.Name, dir.Dir)
			}
		}
		for _, path := range h.Facts.Paths {
			if !slices.Contains(p.Paths, path.Path) {
				t.Errorf("%s: %s is not asked for", h.Name, path.Path)
			}
		}
		for m := range h.Facts.Modules {
			if !slices.Contains(p.Modules, m) {
				t.Errorf("%s: module %s is not asked for", h.Name, m)
			}
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	in := good(t)
	in.Hosts[1].Facts, in.Hosts[1].Err = nil, errors.New("w1 (10.0.0.11:22): connection refused\x1b[2J")
	in.Hosts[0].Facts.CPUs = 1
	in.Hosts[0].Facts.Swaps = []node.Swap{{Name: "/dev/evil\x1b]0;title\a", Size: gib}}
	third := host("w2", "10.0.0.12", manifest.RoleWorker)
	third.Facts = facts(t, "rocky-9")
	in.Hosts = append(in.Hosts, third)
	r := precheck.Evaluate(in)

	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	text := table.String()
	if strings.ContainsAny(text, "\x1b\a") {
		t.Errorf("control characters in %q", text)
	}
	var last int
	for _, want := range []string{
		"BLOCKS  reachable:", "w1  w1 (10.0.0.11:22): connection refused", "BLOCKS  cpu:", "cp1  1 CPU", "BLOCKS  address:",
		"warning  swap:", "cp1  on: /dev/evil", "w2   on: /dev/dm-1", "3 hosts, ", "NOT ready",
	} {
		i := strings.Index(text[last:], want)
		if i < 0 {
			t.Fatalf("no %q in its place in:\n%s", want, text)
		}
		last += i
	}
	var blocked *precheck.BlockedError
	if err := r.Err(); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "3 of 3 hosts are not ready (cp1: cpu; w1: reachable; w2: address") {
		t.Errorf("error: %v", err)
	}
	var out bytes.Buffer
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out.Bytes()) {
		t.Errorf("no JSON:\n%s", out.String())
	}
}
