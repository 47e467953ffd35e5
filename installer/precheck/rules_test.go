package precheck_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestChecksAreDocumented(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range precheck.Checks() {
		whole := c.ID != "" && c.Title != "" && c.Why != "" && c.Fix != "" && c.Source != "" && c.Rule != nil &&
			len(c.Groups) > 0
		known := c.Level == precheck.Block || c.Level == precheck.Warn
		if !whole || !known || seen[c.ID] {
			t.Errorf("check %q is not whole, or there twice", c.ID)
		}
		if (c.LevelOf == nil) != (c.Varies == "") || c.OfCluster && len(c.Roles) > 0 {
			t.Errorf("check %q: a level that varies says on what, and one of the cluster is of no role", c.ID)
		}
		for _, g := range c.Groups {
			if !slices.Contains(precheck.Groups(), g) {
				t.Errorf("check %q: group %q is not known", c.ID, g)
			}
		}
		seen[c.ID] = true
	}
	for _, g := range precheck.Groups() {
		if !slices.ContainsFunc(precheck.Checks(),
			func(c precheck.Check) bool { return slices.Contains(c.Groups, g) }) {
			t.Errorf("group %q has no check", g)
		}
	}
}

// TestKubeadm holds every preflight check of kubeadm init and join (1.30 to 1.34), and those that it has dropped,
// against the names that checks say they stand for.
func TestKubeadm(t *testing.T) {
	t.Parallel()
	names := strings.Fields(`
		IsPrivilegedUser NumCPU Mem KubernetesVersion Firewalld Port-6443 Port-10259 Port-10257
		FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml FileAvailable--etc-kubernetes-manifests-kube-controller-manager.yaml
		FileAvailable--etc-kubernetes-manifests-kube-scheduler.yaml FileAvailable--etc-kubernetes-manifests-etcd.yaml
		HTTPProxy HTTPProxyCIDR CRI Swap FileExisting-losetup FileExisting-mount FileExisting-cp FileExisting-conntrack
		SystemVerification Hostname KubeletVersion Service-Kubelet Port-10250
		FileContent--proc-sys-net-ipv4-ip_forward FileContent--proc-sys-net-ipv6-conf-default-forwarding
		Port-2379 Port-2380 DirAvailable--var-lib-etcd ExternalEtcdVersion ExternalEtcdClientCertificates
		FileAvailable--etc-kubernetes-kubelet.conf FileAvailable--etc-kubernetes-bootstrap-kubelet.conf FileAvailable--etc-kubernetes-pki-ca.crt
		ImagePull
		FileContent--proc-sys-net-bridge-bridge-nf-call-iptables FileContent--proc-sys-net-bridge-bridge-nf-call-ip6tables
		FileExisting-crictl FileExisting-ip FileExisting-iptables FileExisting-nsenter FileExisting-ebtables FileExisting-ethtool
		FileExisting-socat FileExisting-tc FileExisting-touch`)
	covered := map[string]bool{}
	for _, c := range precheck.Checks() {
		for _, name := range c.Kubeadm {
			if !slices.Contains(names, name) {
				t.Errorf("check %s: kubeadm has no check %q", c.ID, name)
			}
			covered[name] = true
		}
	}
	for _, name := range names {
		if !covered[name] {
			t.Errorf("no check stands for kubeadm's %s", name)
		}
	}
}

// TestGood is what every mutation starts from.
func TestGood(t *testing.T) {
	t.Parallel()
	r := precheck.Evaluate(good(t))
	if list := failed(r); len(list) > 0 || r.Blocked != 0 || r.Warned != 0 || r.Err() != nil {
		t.Errorf("failed: %v, blocked %d, warned %d, %v", list, r.Blocked, r.Warned, r.Err())
	}
	if r := precheck.Evaluate(rich(t)); len(failed(r)) > 0 {
		t.Errorf("rich: failed %v", failed(r))
	}
	if r := precheck.Evaluate(existing(t)); len(failed(r)) > 0 || r.Blocked != 0 {
		t.Errorf("existing: failed %v", failed(r))
	}
}

// TestLevels looks at what a failure means where that is not always the same.
func TestLevels(t *testing.T) {
	t.Parallel()
	version := func(v string) func(*precheck.Input) {
		return func(in *precheck.Input) {
			in.Cluster.Kubernetes.Version = v
			cgroup1(in.Hosts[len(in.Hosts)-1].Facts)
		}
	}
	podman := func(in *precheck.Input) {
		setPath(in.Hosts[0].Facts, node.Path{
			Path: "/etc/cni/net.d", Type: "dir",
			Entries: []string{"87-podman.conflist"},
		})
	}
	runtime := func(version string, takeOver bool) func(*precheck.Input) {
		return func(in *precheck.Input) {
			in.Cluster.CRI.TakeOver = takeOver
			setUnit(in.Hosts[0].Facts, "containerd.service", "active")
			in.Hosts[0].Facts.Programs = []node.Program{{
				Name: "containerd", Path: "/usr/bin/containerd",
				Version: version,
			}}
		}
	}
	noRoute := w(func(f *node.Facts) { f.Routes = nil })
	noBridge := func(in *precheck.Input) { delete(in.Hosts[0].Facts.Sysctls, "net.bridge.bridge-nf-call-iptables") }
	for _, c := range []struct {
		name   string
		base   func(*testing.T) precheck.Input
		change func(*precheck.Input)
		id     string
		want   precheck.Level
	}{
		{"another containerd", good, runtime("1.7.27", false), "runtime", precheck.Block},
		{"another containerd to be taken over", good, runtime("1.7.27", true), "runtime", precheck.Warn},
		{"a containerd of our release line to be taken over", good, runtime("2.3.99", true), "runtime", precheck.Warn},
		{"a newer containerd to be taken over", good, runtime("2.4.0", true), "runtime", precheck.Block},
		{"a containerd without a version to be taken over", good, runtime("", true), "runtime", precheck.Block},
		{"another containerd beside k3s", good, func(in *precheck.Input) {
			runtime("1.7.27", false)(in)
			in.Cluster.Kubernetes.Distribution, in.Cluster.Kubernetes.Version = "k3s", "v1.34.3+k3s1"
		}, "runtime", precheck.Warn},
		{"Docker to be taken over", good, func(in *precheck.Input) {
			in.Cluster.CRI.TakeOver = true
			setUnit(in.Hosts[0].Facts, "docker.service", "active")
		}, "runtime", precheck.Warn},
		{"Docker that Docker would take over", good, func(in *precheck.Input) {
			in.Cluster.CRI.TakeOver, in.Cluster.CRI.Type = true, "docker"
			setUnit(in.Hosts[0].Facts, "docker.service", "active")
		}, "runtime", precheck.Block},
		{"cgroups of version 1", good, version("v1.34.3"), "cgroup-version", precheck.Warn},
		{"cgroups of version 1 with 1.35", good, version("v1.35.0"), "cgroup-version", precheck.Block},
		{"cgroups of version 1, allowed", good, func(in *precheck.Input) {
			version("v1.35.0")(in)
			in.Cluster.Kubernetes.Kubelet = manifest.Config{"failCgroupV1": false}
		}, "cgroup-version", precheck.Warn},
		{"what kkbundle cannot install", good, of(unsupported), "supported", precheck.Block},
		{
			"what others install", rich, of(func(c *manifest.Cluster) { c.CNI.Type = "hybridnet" }), "supported",
			precheck.Warn,
		},
		{"no default route", good, noRoute, "default-route", precheck.Warn},
		{"no default route for Hybridnet", withCluster(good, hybridnet), noRoute, "default-route", precheck.Block},
		{"another pod network", good, podman, "cni-config", precheck.Block},
		{"another pod network for others", rich, podman, "cni-config", precheck.Warn},
		{"bridges with Cilium", rich, noBridge, "bridge-netfilter", precheck.Warn},
		{"bridges with flannel", rich, func(in *precheck.Input) {
			in.Cluster.CNI.Type = "flannel"
			noBridge(in)
		}, "bridge-netfilter", precheck.Warn},
		{
			"forwarding of IPv6", rich, w(func(f *node.Facts) { f.Sysctls["net.ipv6.conf.default.forwarding"] = "0" }),
			"ipv6-forward", precheck.Warn,
		},
		{
			"no IPv6 at all", rich, w(func(f *node.Facts) { f.Sysctls["net.ipv6.conf.all.disable_ipv6"] = "1" }),
			"ipv6-forward", precheck.Block,
		},
		{"cgroups of version 1 without a version", good, version(""), "cgroup-version", precheck.Warn},
		{
			"ipvs with 1.35", rich,
			of(func(c *manifest.Cluster) { c.Kubernetes.ProxyMode, c.Kubernetes.Version = "ipvs", "v1.35.0" }),
			"proxy-mode", precheck.Warn,
		},
		{
			"nftables with 1.30", rich, of(func(c *manifest.Cluster) { c.Kubernetes.Version = "v1.30.1" }), "proxy-mode",
			precheck.Block,
		},
		{"a way that pods may need", rich, func(in *precheck.Input) {
			in.Links = append(in.Links, precheck.Link{
				From: "cp1", To: "w1", Network: "tcp", Port: 179, Maybe: true,
				Error: "timeout",
			})
		}, "links", precheck.Warn},
		{"that and another way", rich, func(in *precheck.Input) {
			in.Links[0].OK = false
			in.Links = append(in.Links, precheck.Link{
				From: "cp1", To: "w1", Network: "tcp", Port: 179, Maybe: true,
				Error: "timeout",
			})
		}, "links", precheck.Block},
		{
			"a kubelet that does not run", good, cp(func(f *node.Facts) { setUnit(f, "kubelet.service", "inactive") }),
			"kubernetes-installed", precheck.Warn,
		},
		{"a kubelet of another version", good, cp(func(f *node.Facts) {
			ours(f)
			setUnit(f, "kubelet.service", "active")
			setProgram(f, "kubelet", "v1.33.1")
		}), "kubernetes-installed", precheck.Block},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := c.base(t)
			c.change(&in)
			r := precheck.Evaluate(in)
			i := slices.IndexFunc(r.Results, func(r precheck.Result) bool { return r.ID == c.id && !r.OK })
			if i < 0 || r.Results[i].Level != c.want {
				t.Errorf("want %s at level %s among %v", c.id, c.want, failed(r))
			}
		})
	}
}

// TestWithoutBundle looks at hosts that a bundle would be installed on, and once more without it: what does not keep
// the installation from succeeding does not block there either.
func TestWithoutBundle(t *testing.T) {
	t.Parallel()
	blocking := func(in precheck.Input) map[string][]string {
		list := map[string][]string{}
		for _, r := range precheck.Evaluate(in).Results {
			if !r.OK && r.Level == precheck.Block {
				list[r.Host] = append(list[r.Host], r.ID)
			}
		}
		return list
	}
	for _, m := range mutations() {
		in := m.base(t)
		m.change(&in)
		in.Install = true
		with := blocking(in)
		in.Install = false
		for host, ids := range blocking(in) {
			if len(with[host]) == 0 {
				t.Errorf("%s: %s on %q blocks without a bundle, and nothing with one", m.name, ids, host)
			}
		}
	}
}

// TestWithoutVersion has no cluster file: what depends on the version of Kubernetes is left out.
func TestWithoutVersion(t *testing.T) {
	t.Parallel()
	in := good(t)
	in.Cluster, in.Install, in.Architectures = nil, false, nil
	for i := range in.Hosts {
		prepare(in.Hosts[i].Facts)
		setUnit(in.Hosts[i].Facts, "etcd.service", "inactive")
		cgroup1(in.Hosts[i].Facts)
	}
	if diff := cmp.Diff(each("cgroup-version", "cp1", "w1"), failed(precheck.Evaluate(in))); diff != "" {
		t.Errorf("failed checks (-want +got):\n%s", diff)
	}
	for _, etcd := range []manifest.EtcdType{manifest.EtcdInternal, manifest.EtcdExternal} {
		in.Cluster = &manifest.Cluster{}
		in.Cluster.Etcd.Type = etcd
		for _, r := range precheck.Evaluate(in).Results {
			if r.Unknown || r.Level == precheck.Block && !r.OK {
				t.Errorf("%s: %s on %q: %s", etcd, r.ID, r.Host, r.Found)
			}
		}
	}
}

// TestUnknown leaves facts out: what could not be looked at is a warning that says so, and blocks only where it must be
// known.
func TestUnknown(t *testing.T) {
	t.Parallel()
	essential := map[string]bool{}
	for _, c := range precheck.Checks() {
		essential[c.ID] = c.Essential
	}
	for _, base := range []func(*testing.T) precheck.Input{good, rich, existing} {
		in := base(t)
		for i := range in.Hosts {
			in.Hosts[i].Facts = &node.Facts{Version: node.FactsVersion, Systemd: in.Hosts[i].Facts.Systemd}
		}
		in.Etcd = nil
		count := 0
		for _, r := range precheck.Evaluate(in).Results {
			if !r.Unknown {
				continue
			}
			count++
			if r.OK || r.Found == "" || (r.Level == precheck.Block) != essential[r.ID] {
				t.Errorf("%s on %s is not known: ok %v, level %s, %q", r.ID, r.Host, r.OK, r.Level, r.Found)
			}
		}
		if count == 0 {
			t.Error("everything is known")
		}
	}
	// What a cluster does not need is not asked for.
	in := good(t)
	in.Hosts[0].Sent = in.Hosts[0].Received
	in.Hosts[1].Facts.Clock, in.Hosts[1].Facts.KernelConfig, in.Hosts[1].Facts.TimeSync, in.Hosts[1].Facts.Time = 0,
		nil, "", node.Time{}
	if diff := cmp.Diff([]string{"w1/kernel-config", "w1/clock", "w1/time-sync"},
		failed(precheck.Evaluate(in))); diff != "" {
		t.Errorf("failed checks (-want +got):\n%s", diff)
	}
}

// TestRecorded evaluates facts of machines of many kinds, each as a cluster of one host.
func TestRecorded(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"debian-12": { // a small virtual machine without systemd, asked before newer facts were known
			"systemd", "cgroup-version", "pid-max", "executables", "packet-filter", "etcd-latency", "time-sync",
		},
		"ubuntu-22.04": {}, "ubuntu-24.04": {}, "almalinux-9": {}, "openeuler-22.03": {}, "arm64": {},
		"rocky-9":   {"swap", "proxy", "firewall", "selinux"},
		"rocky-8":   {"cgroup-version", "selinux"},
		"rocky-10":  {"modules", "selinux"},
		"kylin-v10": {"cgroup-version", "firewall", "ssh-algorithms"},
		"alpine-3.20": {
			"systemd", "os", "machine-unique", "kernel-config", "executables", "executables-optional",
			"packet-filter", "time-sync",
		},
		"existing-cluster": {
			"ports", "runtime", "certificates", "leftovers", "leftovers-network", "cni-config",
		},
		"docker":    {"packet-filter", "runtime"},
		"cgroup-v1": {"cgroup-version", "ssh-algorithms"},
	}
	files, err := filepath.Glob("testdata/facts/*.json")
	if err != nil || len(files) < len(want) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for name, ids := range want {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host(name, "", manifest.RoleControlPlane, manifest.RoleEtcd, manifest.RoleRegistry,
				manifest.RoleWorker)
			h.Facts = facts(t, name)
			if h.Facts.Sync == nil && name != "debian-12" {
				h.Facts.Sync = &node.SyncLatency{Writes: 1, P99: 1}
			}
			in := precheck.Input{
				Install: true, Hosts: []precheck.Host{h},
				Cluster: &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}},
			}
			asked(&in)
			full := make([]string, 0, len(ids))
			for _, id := range ids {
				full = append(full, name+"/"+id)
			}
			if diff := cmp.Diff(full, failed(precheck.Evaluate(in)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("failed checks (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProbe takes away from the facts what is not asked for; nothing of that is missed.
func TestProbe(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]func(*testing.T) precheck.Input{
		"good": good, "rich": rich, "existing": existing,
		"cached": cached,
	} {
		in := base(t)
		want := failed(precheck.Evaluate(in))
		for _, h := range in.Hosts {
			trim(h.Facts, precheck.ProbeFor(in.Cluster, h))
		}
		if diff := cmp.Diff(want, failed(precheck.Evaluate(in))); diff != "" {
			t.Errorf("%s: failed checks (-with everything +with what is asked for):\n%s", name, diff)
		}
	}
}

func trim(f *node.Facts, p node.Probe) {
	f.Dirs = slices.DeleteFunc(f.Dirs, func(d node.Dir) bool { return !slices.Contains(p.Dirs, d.Path) })
	f.Paths = slices.DeleteFunc(f.Paths, func(o node.Path) bool { return !slices.Contains(p.Paths, o.Path) })
	f.Ports = slices.DeleteFunc(f.Ports, func(o node.Port) bool {
		if o.Address.IsValid() {
			return !slices.Contains(p.Addresses, netip.AddrPortFrom(o.Address, uint16(o.Port)))
		}
		return !slices.Contains(map[string][]int{"tcp": p.Ports, "udp": p.UDPPorts}[o.Network], o.Port)
	})
	f.Systemd.Units = slices.DeleteFunc(f.Systemd.Units,
		func(u node.Unit) bool { return !slices.Contains(p.Units, u.Name) })
	f.Internet = slices.DeleteFunc(f.Internet,
		func(d node.Dialled) bool { return !slices.Contains(p.Internet, d.Address) })
	f.Vacant = slices.DeleteFunc(f.Vacant, func(v node.Vacancy) bool { return !slices.Contains(p.Vacant, v.Address) })
	maps.DeleteFunc(f.Executables, func(name, _ string) bool { return !slices.Contains(p.Executables, name) })
	maps.DeleteFunc(f.Modules, func(name string, _ node.Module) bool { return !slices.Contains(p.Modules, name) })
	maps.DeleteFunc(f.Sysctls, func(name, _ string) bool { return !slices.Contains(p.Sysctls, name) })
	maps.DeleteFunc(f.KernelConfig, func(name, _ string) bool { return !slices.Contains(p.KernelConfig, name) })
	if p.Sync == "" {
		f.Sync = nil
	}
	if len(p.Certificates) == 0 {
		f.Certificates = nil
	}
}

func TestProbeAsksForLittle(t *testing.T) {
	t.Parallel()
	in := rich(t)
	for _, h := range in.Hosts {
		p := precheck.ProbeFor(in.Cluster, h)
		if (p.Sync != "") != h.Is(manifest.RoleEtcd) {
			t.Errorf("%s: its disk is measured in %q", h.Name, p.Sync)
		}
		if (len(p.Vacant) > 0) != (h.Is(manifest.RoleControlPlane) || h.Is(manifest.RoleRegistry)) {
			t.Errorf("%s: the network is asked for %v", h.Name, p.Vacant)
		}
	}
	in.Cluster.Precheck.Internet = ""
	if p := precheck.ProbeFor(in.Cluster, in.Hosts[0]); len(p.Internet) > 0 {
		t.Errorf("the internet is dialled where it is allowed: %v", p.Internet)
	}
}

// TestClusterError names the cluster where it is what blocks.
func TestClusterError(t *testing.T) {
	t.Parallel()
	in := good(t)
	unsupported(in.Cluster)
	r := precheck.Evaluate(in)
	var blocked *precheck.BlockedError
	if err := r.Err(); !errors.As(err, &blocked) ||
		err.Error() != "precheck: the cluster cannot be installed (the cluster: supported)" {
		t.Errorf("error: %v", err)
	}
	in.Hosts[0].Facts.CPUs = 1
	if err := precheck.Evaluate(in).Err(); err.Error() != "precheck: 1 of 2 hosts are not ready (the cluster: supported; cp1: cpu)" {
		t.Errorf("error: %v", err)
	}
}

// many is a cluster of many hosts, of which the last tenth are clones of one machine.
func many(t testing.TB, hosts int) precheck.Input {
	t.Helper()
	clones := hosts / 10
	data, err := os.ReadFile("testdata/facts/ubuntu-24.04.json")
	if err != nil {
		t.Fatal(err)
	}
	in := precheck.Input{Cluster: &manifest.Cluster{Kubernetes: manifest.Kubernetes{
		Version: "v1.34.3",
		PodCIDR: cidrs("172.16.0.0/12"),
	}}}
	in.Cluster.CNI.Type = "calico"
	base := netip.MustParseAddr("10.0.0.1")
	var shared node.Facts
	if err := json.Unmarshal(data, &shared); err != nil {
		t.Fatal(err)
	}
	for i := range hosts {
		f := shared
		address := base
		base = base.Next()
		if i < hosts-clones {
			f.MachineID, f.ProductUUID, f.Hostname = fmt.Sprint("m", i), fmt.Sprint("p", i), fmt.Sprint("n", i)
		}
		f.Interfaces = []node.Interface{{
			Name: "ens3", MTU: 1500, MAC: fmt.Sprintf("52:54:%08x", i),
			Addresses: []netip.Prefix{netip.PrefixFrom(address, 16)},
		}}
		h := precheck.Host{Host: manifest.Host{
			Name: fmt.Sprintf("node%d", i), InternalIPv4: address,
			Roles: []manifest.Role{manifest.RoleWorker, manifest.RoleCluster},
		}, Facts: &f}
		in.Hosts = append(in.Hosts, h)
		for k := 1; k <= 4; k++ {
			in.Links = append(in.Links, precheck.Link{
				From: h.Name, To: fmt.Sprintf("node%d", (i+k)%hosts),
				Network: "udp", Port: 4789, OK: true,
			})
		}
	}
	asked(&in)
	return in
}

// TestMany shows that names of hosts do not fill the report where all have the same.
func TestMany(t *testing.T) {
	t.Parallel()
	r := precheck.Evaluate(many(t, 1000))
	seen := 0
	for _, one := range r.Results {
		if len(one.Found) > 500 {
			t.Fatalf("%s on %s: %d characters", one.ID, one.Host, len(one.Found))
		}
		if one.ID == "machine-unique" && !one.OK {
			seen++
			if !strings.HasSuffix(one.Found, "and 96 more") {
				t.Fatalf("%s: %s", one.Host, one.Found)
			}
		}
	}
	if seen != 100 {
		t.Errorf("%d clones, want 100", seen)
	}
}

func BenchmarkEvaluate10000Hosts(b *testing.B) {
	in := many(b, 10000)
	b.ReportAllocs()
	for b.Loop() {
		precheck.Evaluate(in)
	}
}

// FuzzEvaluate gives Evaluate whatever JSON says that a host and a cluster are.
func FuzzEvaluate(f *testing.F) {
	files, err := filepath.Glob("testdata/facts/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, "v1.34.3", "cilium", "10.0.0.100", 24, 110, true)
	}
	f.Add([]byte("{}"), "v1", "multus", "::1", 200, -1, false)
	f.Fuzz(func(t *testing.T, data []byte, version, network, address string, mask, pods int, install bool) {
		var facts node.Facts
		if json.NewDecoder(bytes.NewReader(data)).Decode(&facts) != nil {
			t.Skip()
		}
		c := &manifest.Cluster{}
		c.Kubernetes.Version, c.Kubernetes.MaxPods, c.CNI.Type, c.CNI.With = version, pods,
			manifest.NetworkType(network), manifest.NetworkFlannel
		c.Kubernetes.PodCIDR = cidrs("10.233.64.0/18", "fd85::/56")
		c.CNI.IPv4MaskSize, c.CNI.IPv6MaskSize = mask, mask
		c.ControlPlaneEndpoint = manifest.Endpoint{Type: "kube-vip", Address: address}
		c.Etcd = manifest.Etcd{Type: "provided", Endpoints: []string{"https://" + address}}
		c.ImageRegistry = manifest.ImageRegistry{Type: "existing", Address: address, VIP: address}
		c.Precheck.Internet = "forbidden"
		in := precheck.Input{Cluster: c, Install: install, Etcd: &precheck.ProvidedEtcd{CA: data, Cert: data}}
		for _, name := range []string{"a", "b"} {
			h := host(name, "", manifest.RoleControlPlane, manifest.RoleEtcd, manifest.RoleRegistry, manifest.RoleNFS,
				manifest.RoleWorker)
			h.Facts = &facts
			h.Space = []precheck.Space{{For: "images", Dir: "/var/lib/containerd", Bytes: 1 << 40}}
			in.Hosts = append(in.Hosts, h)
			precheck.ProbeFor(c, h)
		}
		asked(&in)
		for _, r := range precheck.Evaluate(in).Results {
			if r.ID == "" || r.Title == "" || r.Unknown && r.OK {
				t.Errorf("%+v", r)
			}
		}
	})
}
