//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

// A pairSite has the registry hosts reg1 and reg2, addresses of this machine's loopback network. Their registries are real; the
// test plays systemd and keepalived: the address is had by whoever the test says, and leads there.
type pairSite struct {
	*site
	r       *engine.Run
	mu      sync.Mutex
	holders []string
}

const pairVIP = "127.0.0.4"

func newPairSite(t *testing.T) *pairSite {
	t.Helper()
	p := &pairSite{site: newSite(t, "cp1", "reg1", "reg2"), holders: []string{"reg1"}}
	inv, err := manifest.ParseInventory("i", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.5}, reg1: {address: 10.0.0.2}, reg2: {address: 10.0.0.3}}
groups: {kube_control_plane: [cp1], image_registry: [reg1, reg2]}
`))
	if err != nil {
		t.Fatal(err)
	}
	p.options.Inventory = inv
	p.options.Cluster = tasktest.Cluster(t, "imageRegistry: {vip: 10.0.0.8}")
	p.options.Cluster.ImageRegistry.VIP = pairVIP // an address of this machine, which no cluster file can have
	p.relay(t)
	for _, name := range []string{"reg1", "reg2"} {
		h := p.hosts[name]
		h.put(t, siteregistry.KeepalivedBinary, "")
		if err := os.Chmod(filepath.Join(h.root, siteregistry.KeepalivedBinary), 0o755); err != nil {
			t.Fatal(err)
		}
		h.answer("ip", func(_ context.Context, cmd host.Cmd) error { return p.ip(name, cmd) })
		leadPushes(h, p.push(), p.pushOf(name))
		h.answer("systemctl", func(ctx context.Context, cmd host.Cmd) error {
			switch {
			case cmd.Args[1] != "restart":
			case cmd.Args[2] == siteregistry.PushUnit:
				runRegistry(ctx, t, registryText(t, h, pushConfigFile, p.push(), p.pushOf(name)))
			case cmd.Args[2] == siteregistry.Unit: // each registry gets its host's address of the port that it wants all of
				runRegistry(ctx, t, registryText(t, h, configFile, fmt.Sprintf(":%d", p.options.Cluster.ImageRegistry.Port), p.address(name)))
			}
			return nil
		})
	}
	p.r = p.run(t, clusterBundle(t, p.options.Cluster))
	for _, target := range p.r.Hosts { // addresses of this machine, which no inventory can have
		last := target.IP.As4()
		target.IP = netip.AddrFrom4([4]byte{127, 0, 0, last[3]})
	}
	return p
}

func (p *pairSite) address(name string) string {
	last := strings.TrimPrefix(name, "reg") // reg1 has 127.0.0.2
	return "127.0.0." + map[string]string{"1": "2", "2": "3"}[last] + ":" + strconv.Itoa(p.options.Cluster.ImageRegistry.Port)
}

// push is the address of pushes on every host, and pushOf where a host's registry listens instead: both hosts are this machine.
func (p *pairSite) push() string {
	return "127.0.0.1:" + strconv.Itoa(p.options.Cluster.ImageRegistry.PushPort())
}

func (p *pairSite) pushOf(name string) string {
	host, port, _ := net.SplitHostPort(p.address(name))
	return strings.Replace(host, "127.0.0.", "127.0.1.", 1) + ":" + port
}

// ip says where the shared address is.
func (p *pairSite) ip(name string, cmd host.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := "2: eth0    inet 127.0.0.2/8 brd 127.255.255.255 scope global eth0\n"
	if slices.Contains(cmd.Args, "to") {
		text = ""
	}
	if slices.Contains(p.holders, name) {
		text += "2: eth0    inet " + pairVIP + "/32 scope global eth0\n"
	}
	_, err := io.WriteString(cmd.Stdout, text)
	return err
}

func (p *pairSite) hold(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holders = names
}

// relay is where the shared address leads. Its port, which nobody else can have meanwhile, is the registry's.
func (p *pairSite) relay(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", pairVIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	p.options.Cluster.ImageRegistry.Port = l.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			to, err := net.Dial("tcp", p.address(p.holders[0]))
			p.mu.Unlock()
			if err != nil {
				_ = from.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					_, _ = way[0].Close(), way[1].Close()
				}()
			}
		}
	}()
}

func (p *pairSite) phases() []task.Phase {
	tasks := append([]task.Task{siteregistry.CertificatesTask()}, registryTasks(p.r.Cluster)...)
	return []task.Phase{{Name: "install", Tasks: append(tasks, health.VerifyRegistryTask())}}
}

func TestRegistryPair(t *testing.T) {
	t.Parallel()
	p := newPairSite(t)
	if err := p.r.Phases(t.Context(), p.phases()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"certificates@ changed", "registry-address@reg1 changed", "registry-address@reg2 changed", "registry-answers@reg1 done", "registry-answers@reg2 done",
		"registry@reg1 changed", "registry@reg2 changed", "seed-registry@reg1 changed", "seed-registry@reg2 changed", "verify-registry@reg1 done", "verify-registry@reg2 done",
	}
	if diff := cmp.Diff(p.states(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	port := fmt.Sprint(p.options.Cluster.ImageRegistry.Port)
	for _, name := range []string{"reg1", "reg2"} {
		tasktest.Golden(t, "keepalived-"+name+".conf", []byte(strings.ReplaceAll(p.hosts[name].content(siteregistry.AddressDir+"/keepalived.conf"), ":"+port, ":5000")))
	}
	cert, err := pki.ParseCertificate([]byte(p.hosts["reg2"].content(siteregistry.ConfigDir + "/tls.crt")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"reg1", "reg2", "localhost", "127.0.0.2", "127.0.0.3", pairVIP} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if got := mustAccess(t, p.r).Address; got != pairVIP+":"+port {
		t.Errorf("nodes pull from %s", got)
	}
	if err := p.r.Phases(t.Context(), p.phases()); err != nil {
		t.Fatal(err)
	}
	for _, state := range p.states() {
		if !strings.HasSuffix(state, " done") {
			t.Error("a second time:", state)
		}
	}
	// Missing content of one host is noticed and pushed there only.
	if err := os.RemoveAll(filepath.Join(p.hosts["reg2"].root, siteregistry.DataDir, "docker/registry/v2/repositories/registry.k8s.io/pause")); err != nil {
		t.Fatal(err)
	}
	if err := p.r.Phases(t.Context(), []task.Phase{{Name: "verify", Tasks: []task.Task{health.VerifyRegistryTask()}}}); err == nil || !strings.Contains(err.Error(), "reg2: verify verify-registry: the registry on this host lacks images") {
		t.Errorf("got %v", err)
	}
	p.states()
	p.r.Hosts[2].Failed = false
	if err := p.r.Phases(t.Context(), p.phases()); err != nil {
		t.Fatal(err)
	}
	if got := p.states(); !slices.Contains(got, "seed-registry@reg2 changed") || !slices.Contains(got, "seed-registry@reg1 done") {
		t.Errorf("got %q", got)
	}
}

// Hosts that do not hear each other both take the address: nodes would pull from either.
func TestRegistryAddressTwice(t *testing.T) {
	t.Parallel()
	p := newPairSite(t)
	p.hold("reg1", "reg2")
	var twice interface{ Hint() string }
	if err := siteregistry.CheckSharedAddress(t.Context(), p.r.Site); !errors.As(err, &twice) || !strings.Contains(err.Error(), "reg1 and reg2 have the address 127.0.0.4 at once") || !strings.Contains(twice.Hint(), "112") {
		t.Errorf("got %v", err)
	}
	p.hold()
	if err := siteregistry.CheckSharedAddress(t.Context(), p.r.Site); err == nil || !strings.Contains(err.Error(), "no registry host has the address 127.0.0.4") {
		t.Errorf("got %v", err)
	}
	p.r.Hosts[1].Err, p.r.Hosts[1].Conn = errors.New("lost"), nil // it may be there
	if err := siteregistry.CheckSharedAddress(t.Context(), p.r.Site); err != nil {
		t.Error(err)
	}
}

func TestRegistryAddressRefused(t *testing.T) {
	t.Parallel()
	p := newPairSite(t)
	task := siteregistry.AddressTask()
	if err := os.Remove(filepath.Join(p.hosts["reg1"].root, siteregistry.KeepalivedBinary)); err != nil {
		t.Fatal(err)
	}
	var missing interface{ Hint() string }
	if err := task.Do(t.Context(), p.r.Hosts[1]); !errors.As(err, &missing) || !strings.HasPrefix(err.Error(), "reg1 has no ") || !strings.Contains(missing.Hint(), "keepalived") {
		t.Errorf("without keepalived: %v", err)
	}
	p.hosts["reg1"].answer("ip", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "2: eth0    inet 10.0.0.3/24 brd 10.0.0.255 scope global eth0\n")
		return err
	})
	if err := task.Do(t.Context(), p.r.Hosts[1]); err == nil || !strings.Contains(err.Error(), "no interface of reg1 has a network with the address 127.0.0.4") {
		t.Errorf("in another network: %v", err)
	}
}

// A run that is not about the registry hosts needs one of them; one that is about all hosts needs both.
func TestRegistryLost(t *testing.T) {
	t.Parallel()
	lost := errors.New("reg1: no route to host")
	for name, tc := range map[string]struct {
		limit []string
		lost  []string
		want  string // the hosts that the registry's tasks run on; "" if the run does not begin
	}{
		"all hosts, one lost":        {lost: []string{"reg1"}},
		"other hosts, one lost":      {limit: []string{"cp1"}, lost: []string{"reg1"}, want: "reg2"},
		"other hosts, none lost":     {limit: []string{"cp1"}, want: "reg1 reg2"},
		"other hosts, both lost":     {limit: []string{"cp1"}, lost: []string{"reg1", "reg2"}},
		"the lost one itself":        {limit: []string{"reg1"}, lost: []string{"reg1"}},
		"the one that is there":      {limit: []string{"reg2"}, lost: []string{"reg1"}, want: "reg2"},
		"all hosts, and none is not": {want: "reg1 reg2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPairSite(t)
			p.options.Limit = tc.limit
			p.options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
			p.options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
				if slices.Contains(tc.lost, h.Name) {
					return nil, lost
				}
				return p.hosts[h.Name], nil
			}
			for _, h := range p.hosts {
				h.answer("uname", func(_ context.Context, cmd host.Cmd) error {
					_, err := io.WriteString(cmd.Stdout, "x86_64\n")
					return err
				})
			}
			r := p.run(t, p.r.Bundle)
			r.Hosts = nil
			err := r.Connect(t.Context())
			if tc.want == "" {
				if !errors.Is(err, lost) {
					t.Errorf("got %v, want that a host is lost", err)
				}
				return
			}
			if got := names(engine.TargetsOf(r.Site, siteregistry.SeedTask())); err != nil || got != tc.want {
				t.Errorf("got %s, %v; want %s", got, err, tc.want)
			}
		})
	}
}

// Reset takes the address and its unit away on registry hosts, and leaves what others have announced elsewhere.
func TestRegistryAddressReset(t *testing.T) {
	t.Parallel()
	p := newPairSite(t)
	for _, name := range []string{"cp1", "reg1"} {
		h := p.hosts[name]
		h.put(t, "/etc/systemd/system/"+siteregistry.AddressUnit, siteregistry.AddressUnitText)
		t0 := p.r.Hosts[slices.IndexFunc(p.r.Hosts, func(t *task.Host) bool { return t.Name == name })]
		h.said("")
		if err := removeLeaves(t.Context(), t0, siteregistry.AddressTask().Leaves); err != nil {
			t.Fatal(err)
		}
		if h.content("/etc/systemd/system/"+siteregistry.AddressUnit) != "" {
			t.Errorf("%s keeps the unit", name)
		}
		deletes := slices.Contains(h.said("ip"), "ip address delete 127.0.0.4/32 dev eth0")
		if deletes != (name == "reg1") {
			t.Errorf("%s: the address is deleted: %t", name, deletes)
		}
	}
}

func TestRegistryNamesOfOne(t *testing.T) {
	t.Parallel()
	r := newSite(t, "cp1", "node1").run(t, nil)
	want := pki.Names{Hosts: []string{"cp1", "localhost"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("127.0.0.1")}}
	if diff := cmp.Diff(siteregistry.CertificateNames(r.Site), want, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestRegistryServices(t *testing.T) {
	t.Parallel()
	p := newPairSite(t)
	for _, name := range []string{"reg1", "reg2"} {
		p.hosts[name].put(t, "/etc/systemd/system/"+siteregistry.Unit, "")
	}
	_, pair, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p.hosts["reg1"].put(t, siteregistry.CertificateFiles().Cert, string(pair.Cert))
	// The script looks at the host's own files: below its root they are, and systemctl is a program there.
	p.hosts["reg1"].answer("sh", func(ctx context.Context, cmd host.Cmd) error {
		if !slices.Contains(cmd.Args, siteregistry.Unit) {
			t.Errorf("asked for %q", cmd.Args)
		}
		_, err := io.WriteString(cmd.Stdout, siteregistry.Unit+"\n")
		return err
	})
	p.r.Hosts[2].Err = errors.New("reg2: no answer")
	s := health.Survey{Registries: health.SurveyRegistries(t.Context(), p.r.Site)}
	if all := s.Registries[0].Certificates; len(all) != 1 || all[0].Path != siteregistry.CertificateFiles().Cert {
		t.Errorf("certificates of reg1, which is no node: %+v", all)
	}
	var got []string
	for _, f := range s.JudgeRegistries() {
		got = append(got, f.ID+" "+f.Host+" "+string(f.State)+" "+f.Found)
	}
	want := []string{"registry-service reg1 failed kkbundle-registry.service does not run", "host-reachable reg2 failed reg2: no answer"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
