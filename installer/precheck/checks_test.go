package precheck_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// rich is a cluster that has as many options as possible, which someone is going to install with something else than
// kkbundle, on hosts that are prepared for that. Only that kkbundle could not install it is to be found.
func rich(t *testing.T) precheck.Input {
	t.Helper()
	in := precheck.Input{Packages: []string{
		"ubuntu/24.04", "ubuntu/22.04", "almalinux/9", "debian/12",
		"openeuler/22.03",
	}}
	add := func(name, file, address string, roles ...manifest.Role) *node.Facts {
		h := host(name, address, roles...)
		if !h.Is(manifest.RoleControlPlane) && !h.Is(manifest.RoleWorker) {
			h.Roles = roles // it is no node
		}
		h.Facts = facts(t, file)
		h.Facts.Hostname = name
		in.Hosts = append(in.Hosts, h)
		return h.Facts
	}
	for _, one := range []struct{ name, file, address string }{
		{"cp1", "ubuntu-24.04", "10.0.0.3"}, {"cp2", "ubuntu-22.04", "10.0.0.4"}, {"cp3", "almalinux-9", "10.0.0.12"},
	} {
		prepare(add(one.name, one.file, one.address, manifest.RoleControlPlane, manifest.RoleEtcd))
	}
	prepare(add("w1", "arm64", "10.0.0.19", manifest.RoleWorker))
	for i, name := range []string{"reg1", "reg2"} {
		f := add(name, "docker", []string{"10.0.0.17", "10.0.0.18"}[i], manifest.RoleRegistry)
		f.Internet, f.Vacant = offline(), []node.Vacancy{{
			Address: netip.MustParseAddr("10.0.0.101"), Interface: "ens3",
			Asked: true,
		}}
		if name == "reg2" {
			f.MachineID, f.ProductUUID, f.Interfaces[0].MAC = "b1", "b2", "52:54:00:12:34:b3"
			f.Interfaces[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.18/24")}
		}
	}
	add("nfs1", "openeuler-22.03", "10.0.0.13", manifest.RoleNFS).Internet = offline()
	asked(&in)
	c := &manifest.Cluster{}
	c.Kubernetes.Version, c.Kubernetes.ProxyMode = "v1.34.3", "nftables"
	c.Kubernetes.PodCIDR = cidrs("10.233.64.0/18", "fd85::/56")
	c.Kubernetes.ServiceCIDR = cidrs("10.233.0.0/18", "fd86::/112")
	c.ControlPlaneEndpoint = manifest.Endpoint{Type: "kube-vip", Address: "10.0.0.100"}
	c.Etcd.Type = "external"
	c.CNI.Type = "cilium"
	c.ImageRegistry = manifest.ImageRegistry{Type: "harbor", VIP: "10.0.0.101"}
	c.Storage.NFS = true
	c.Precheck.Internet = "forbidden"
	in.Cluster = c
	for _, from := range []string{"cp1", "cp2", "cp3", "w1"} {
		for _, to := range []string{"cp1", "w1"} {
			if from != to {
				in.Links = append(in.Links,
					precheck.Link{From: from, To: to, Network: "tcp", Port: 10250, OK: true, MTU: 1500, Want: 1500},
					precheck.Link{From: from, To: to, Network: "udp", Port: 8472, OK: true})
			}
		}
	}
	return in
}

// prepare does by hand what kubeadm asks for.
func prepare(f *node.Facts) {
	f.Sysctls = map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv6.conf.default.forwarding": "1", "net.ipv6.conf.all.disable_ipv6": "0",
		"net.bridge.bridge-nf-call-iptables": "1", "net.bridge.bridge-nf-call-ip6tables": "1",
	}
	f.Limits.InotifyInstances, f.Limits.InotifyWatches = 8192, 524288
	for _, name := range []string{
		"mount.nfs", "ipset", "ipvsadm", "conntrack", "socat", "iptables", "tc", "ethtool",
		"ebtables", "crictl",
	} {
		f.Executables[name] = "/usr/sbin/" + name
	}
	setUnit(f, "containerd.service", "active")
	setUnit(f, "kubelet.service", "inactive")
	f.Programs = []node.Program{
		{Name: "containerd", Path: "/usr/bin/containerd", Version: "v1.7.27"},
		{Name: "kubelet", Path: "/usr/bin/kubelet", Version: "v1.34.3"},
		{Name: "etcd", Path: "/usr/bin/etcd", Version: "3.6.5"},
	}
	f.Sync = &node.SyncLatency{
		Dir: "/var/lib/etcd", In: "/var/lib", Type: "ext4", Writes: 2000,
		P99: int64(2 * time.Millisecond),
	}
	f.Vacant = []node.Vacancy{{
		Address: netip.MustParseAddr("10.0.0.100"), Interface: f.Interfaces[0].Name,
		Asked: true,
	}}
	f.Internet = offline()
}

func offline() []node.Dialled {
	return []node.Dialled{
		{Address: "1.1.1.1:443", Problem: "timeout"},
		{Address: "8.8.8.8:53", Problem: "timeout"},
		{Address: "223.5.5.5:53", Problem: "timeout"},
	}
}

func cidrs(list ...string) scalar.CIDRs {
	var c scalar.CIDRs
	for _, one := range list {
		c = append(c, netip.MustParsePrefix(one))
	}
	return c
}

// existing is good with a registry and an etcd of the user's, and a load balancer, all of which answer.
func existing(t *testing.T) precheck.Input {
	t.Helper()
	in := rich(t)
	c := in.Cluster
	c.ControlPlaneEndpoint = manifest.Endpoint{Type: "external", Address: "lb.site.example"}
	c.ImageRegistry = manifest.ImageRegistry{Type: "existing", Address: "registry.site.example/k8s"}
	c.Etcd = manifest.Etcd{
		Type: "provided", Endpoints: []string{"https://10.0.0.50:2379"}, CA: "ca.crt",
		Cert: "client.crt", Key: "client.key",
	}
	for _, h := range in.Hosts {
		for _, address := range []string{"lb.site.example:6443", "registry.site.example:443", "10.0.0.50:2379"} {
			h.Facts.Internet = append(h.Facts.Internet, node.Dialled{Address: address, OK: true})
		}
	}
	now := time.Unix(0, in.Hosts[0].Facts.Clock)
	ca, cert := newCertificate(now, now.Add(365*24*time.Hour), x509.ExtKeyUsageClientAuth)
	in.Etcd = &precheck.ProvidedEtcd{
		CA: ca, Cert: cert, Now: now,
		Versions: []precheck.EtcdVersion{{Endpoint: "https://10.0.0.50:2379", Version: "3.6.5"}},
	}
	return in
}

// newCertificate makes an authority and a certificate of it.
func newCertificate(from, until time.Time, usage x509.ExtKeyUsage) (ca, cert []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // it cannot fail
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd"}, NotBefore: from,
		NotAfter: until.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	client := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "client"}, NotBefore: from,
		NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	var list [][]byte
	for _, c := range []*x509.Certificate{authority, client} {
		der, err := x509.CreateCertificate(rand.Reader, c, authority, key.Public(), key)
		if err != nil {
			panic(err)
		}
		list = append(list, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	return list[0], list[1]
}

// A mutation changes one thing.
type mutation struct {
	name   string
	base   func(*testing.T) precheck.Input
	change func(*precheck.Input)
	want   []string // what fails then and has not failed before, as host/id, or /id for the cluster
}

// on changes the facts of the hosts with a name.
func on(name string, f func(*node.Facts)) func(*precheck.Input) {
	return func(in *precheck.Input) {
		for _, h := range in.Hosts {
			if h.Name == name {
				f(h.Facts)
			}
		}
	}
}

func cp(f func(*node.Facts)) func(*precheck.Input) { return on("cp1", f) }
func w(f func(*node.Facts)) func(*precheck.Input)  { return on("w1", f) }

// of changes the cluster.
func of(f func(*manifest.Cluster)) func(*precheck.Input) {
	return func(in *precheck.Input) { f(in.Cluster) }
}

// withCluster is a base with another cluster.
func withCluster(base func(*testing.T) precheck.Input, f func(*manifest.Cluster)) func(*testing.T) precheck.Input {
	return func(t *testing.T) precheck.Input {
		t.Helper()
		in := base(t)
		f(in.Cluster)
		return in
	}
}

// hybridnet gives the cluster the network Hybridnet, which knows one family.
func hybridnet(c *manifest.Cluster) {
	c.CNI.Type = manifest.NetworkHybridnet
	c.Kubernetes.PodCIDR, c.Kubernetes.ServiceCIDR = cidrs("10.233.64.0/18"), cidrs("10.233.0.0/18")
}

func setPath(f *node.Facts, p node.Path) {
	i := slices.IndexFunc(f.Paths, func(o node.Path) bool { return o.Path == p.Path })
	f.Paths[i] = p
}

func setUnit(f *node.Facts, name, active string) {
	i := slices.IndexFunc(f.Systemd.Units, func(u node.Unit) bool { return u.Name == name })
	f.Systemd.Units[i].Load, f.Systemd.Units[i].Active = "loaded", active
}

func setProgram(f *node.Facts, name, version string) {
	f.Programs = slices.DeleteFunc(f.Programs, func(p node.Program) bool { return p.Name == name })
	f.Programs = append(f.Programs, node.Program{Name: name, Path: "/usr/bin/" + name, Version: version})
}

func busy(f *node.Facts, port int, by string) {
	for i := range f.Ports {
		if f.Ports[i].Port == port {
			f.Ports[i].Free, f.Ports[i].By = false, by
		}
	}
}

// shared is good with nodes that take layers from each other.
func shared(t *testing.T) precheck.Input {
	t.Helper()
	in := good(t)
	in.Cluster.ImageDistribution.Peers = manifest.PeersSpegel
	for _, h := range in.Hosts {
		for _, port := range []int{manifest.PeersHostPort, manifest.PeersNodePort} {
			h.Facts.Ports = append(h.Facts.Ports, node.Port{Network: "tcp", Port: port, Free: true})
		}
	}
	return in
}

// cached is good with a DNS cache on nodes, whose ports are free.
func cached(t *testing.T) precheck.Input {
	t.Helper()
	in := good(t)
	in.Cluster.DNS.NodeLocal = true
	for _, h := range in.Hosts {
		h.Facts.Modules["dummy"] = node.ModuleAvailable
		for _, network := range []string{"tcp", "udp"} {
			h.Facts.Ports = append(h.Facts.Ports, node.Port{
				Network: network, Port: 53,
				Address: netip.MustParseAddr(manifest.NodeDNSAddress), Free: true,
			})
		}
	}
	return in
}

func ours(f *node.Facts) {
	setPath(f, node.Path{Path: precheck.MarkerDir, Type: "dir", Entries: []string{"registry"}})
}

func dial(f *node.Facts, address string, ok bool) {
	for i := range f.Internet {
		if f.Internet[i].Address == address {
			f.Internet[i].OK = ok
			f.Internet[i].Problem = map[bool]string{false: "connection refused"}[ok]
		}
	}
}

// withoutRole takes a role from a host.
func withoutRole(name string, role manifest.Role) func(*precheck.Input) {
	return func(in *precheck.Input) {
		for i := range in.Hosts {
			if h := &in.Hosts[i]; name == "" || h.Name == name {
				h.Roles = slices.DeleteFunc(slices.Clone(h.Roles), func(r manifest.Role) bool { return r == role })
			}
		}
	}
}

// each says that something fails on each of these hosts.
func each(id string, hosts ...string) []string {
	var list []string
	for _, h := range hosts {
		list = append(list, h+"/"+id)
	}
	return list
}

func mutations() []mutation {
	return slices.Concat(machineMutations(), kernelMutations(), hostMutations(), networkMutations(), clusterMutations(),
		etcdMutations(), programMutations(), installedMutations(), restMutations())
}

// TestTwoEtcdsLeft has a cluster that has lost one of three hosts of etcd, and one that would begin with two.
func TestTwoEtcdsLeft(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]precheck.Level{
		"": precheck.Block, "member": precheck.Warn,
		"etcd-member": precheck.Warn,
	} {
		in := rich(t)
		withoutRole("cp3", manifest.RoleEtcd)(&in)
		if mark != "" {
			cp(func(f *node.Facts) {
				setPath(f, node.Path{Path: precheck.MarkerDir, Type: "dir", Entries: []string{mark}})
			})(&in)
		}
		results := precheck.Evaluate(in).Results
		i := slices.IndexFunc(results, func(r precheck.Result) bool { return r.ID == "etcd-odd" })
		if i < 0 || results[i].OK || results[i].Level != want {
			t.Errorf("%q: %+v, want %s", mark, results[max(i, 0)], want)
		}
	}
}

// TestHostsThatAreNotLookedAt has a run that is about some hosts: how many there are of a kind is for the inventory
// to say.
func TestHostsThatAreNotLookedAt(t *testing.T) {
	t.Parallel()
	in := good(t)
	if err := settle(&in, twoHosts("", "")); err != nil {
		t.Fatal(err)
	}
	in.Hosts = in.Hosts[1:]
	for _, r := range precheck.Evaluate(in).Results {
		if (r.ID == "control-plane" || r.ID == "etcd-odd") && !r.OK {
			t.Errorf("%+v", r)
		}
	}
}

// TestEachCheck changes one thing, and exactly what it is about fails. Each check passes somewhere, and has a mutation
// that makes it fail alone.
func TestEachCheck(t *testing.T) {
	t.Parallel()
	passed, alone := map[string]bool{}, map[string]bool{}
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			before := precheck.Evaluate(m.base(t))
			in := m.base(t)
			m.change(&in)
			after := precheck.Evaluate(in)
			was := failed(before)
			now := slices.DeleteFunc(failed(after), func(one string) bool { return slices.Contains(was, one) })
			if diff := cmp.Diff(m.want, now, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("failed checks (-want +got):\n%s", diff)
			}
			for _, r := range slices.Concat(before.Results, after.Results) {
				if r.OK {
					passed[r.ID] = true
				}
			}
		})
		ids := map[string]bool{}
		for _, one := range m.want {
			_, id, _ := strings.Cut(one, "/")
			ids[id] = true
		}
		if len(ids) == 1 {
			maps.Copy(alone, ids)
		}
	}
	for _, c := range precheck.Checks() {
		if !alone[c.ID] {
			t.Errorf("check %s: no mutation makes it fail alone", c.ID)
		}
		if !passed[c.ID] {
			t.Errorf("check %s has never passed", c.ID)
		}
	}
}
