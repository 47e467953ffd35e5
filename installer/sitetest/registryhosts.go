//go:build linux

package sitetest

import (
	"context"
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

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A pairSite has the registry hosts reg1 and reg2, addresses of this machine's loopback network. Their registries are
// real; the test plays systemd and keepalived: the address is had by whoever the test says, and leads there.
type pairSite struct {
	*Site
	R       *engine.Run
	mu      sync.Mutex
	holders []string
}

// PairVIP is the address that two registries share.
const PairVIP = "127.0.0.4"

// NewPairSite makes a site with two registries.
func NewPairSite(t *testing.T) *pairSite {
	t.Helper()
	p := &pairSite{Site: NewSite(t, "cp1", "reg1", "reg2"), holders: []string{"reg1"}}
	inv, err := manifest.ParseInventory("i", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.5}, reg1: {address: 10.0.0.2}, reg2: {address: 10.0.0.3}}
groups: {kube_control_plane: [cp1], image_registry: [reg1, reg2]}
`))
	if err != nil {
		t.Fatal(err)
	}
	p.Options.Inventory = inv
	p.Options.Cluster = tasktest.Cluster(t, "imageRegistry: {vip: 10.0.0.8}")
	p.Options.Cluster.ImageRegistry.VIP = PairVIP // an address of this machine, which no cluster file can have
	p.relay(t)
	for _, name := range []string{"reg1", "reg2"} {
		h := p.Hosts[name]
		h.Put(t, siteregistry.KeepalivedBinary, "")
		if err := os.Chmod(filepath.Join(h.Root, siteregistry.KeepalivedBinary), 0o755); err != nil {
			t.Fatal(err)
		}
		h.Answer("ip", func(_ context.Context, cmd host.Cmd) error { return p.ip(name, cmd) })
		leadPushes(h, p.push(), p.pushOf(name))
		h.Answer("systemctl", func(ctx context.Context, cmd host.Cmd) error {
			switch {
			case cmd.Args[1] != "restart":
			case cmd.Args[2] == siteregistry.PushUnit:
				runRegistry(ctx, t, registryText(t, h, PushConfigFile, p.push(), p.pushOf(name)))
			// each registry gets its host's address of the port that it wants all of
			case cmd.Args[2] == siteregistry.Unit:
				runRegistry(ctx, t, registryText(t, h, ConfigFile,
					fmt.Sprintf(":%d", p.Options.Cluster.ImageRegistry.Port), p.address(name)))
			}
			return nil
		})
	}
	p.R = p.Run(t, ClusterBundle(t, p.Options.Cluster))
	for _, target := range p.R.Hosts { // addresses of this machine, which no inventory can have
		last := target.IP.As4()
		target.IP = netip.AddrFrom4([4]byte{127, 0, 0, last[3]})
	}
	return p
}

func (p *pairSite) address(name string) string {
	last := strings.TrimPrefix(name, "reg") // reg1 has 127.0.0.2
	return "127.0.0." + map[string]string{"1": "2", "2": "3"}[last] + ":" +
		strconv.Itoa(p.Options.Cluster.ImageRegistry.Port)
}

// push is the address of pushes on every host, and pushOf where a host's registry listens instead: both hosts are
// this machine.
func (p *pairSite) push() string {
	return "127.0.0.1:" + strconv.Itoa(p.Options.Cluster.ImageRegistry.PushPort())
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
		text += "2: eth0    inet " + PairVIP + "/32 scope global eth0\n"
	}
	_, err := io.WriteString(cmd.Stdout, text)
	return err
}

// Hold gives the shared address to hosts.
func (p *pairSite) Hold(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holders = names
}

// relay is where the shared address leads. Its port, which nobody else can have meanwhile, is the registry's.
func (p *pairSite) relay(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", PairVIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	p.Options.Cluster.ImageRegistry.Port = l.Addr().(*net.TCPAddr).Port
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

// Phases returns the tasks of the registry.
func (p *pairSite) Phases() []task.Phase {
	tasks := append([]task.Task{siteregistry.CertificatesTask()}, plan.RegistryTasks(p.R.Cluster)...)
	return []task.Phase{{Name: "install", Tasks: append(tasks, health.VerifyRegistryTask())}}
}
