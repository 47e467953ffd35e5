package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// Two registry hosts have the same images, because each is seeded from the bundle, and share an address that keepalived gives to
// one whose registry answers. It is a keepalived of our own: the host's, if it has one, keeps its configuration and its addresses.
const (
	registryAddressUnit = "kkbundle-registry-address.service"
	registryAddressDir  = configDir + "/registry-address"
	registryAddressCA   = registryAddressDir + "/ca.crt"
	// registryMoves is how long the address may take until somebody has it: keepalived waits for three adverts, a second each,
	// and for the first check.
	registryMoves = 30 * time.Second
)

// registryHosts are where the registry is installed.
func (r *Site) registryHosts() []*Target { return r.withRole(manifest.RoleRegistry) }

// isRegistry tells whether the registry is installed on a host.
func (r *Site) isRegistry(t *Target) bool {
	return t == firstOf(r.registryHosts()) || r.isPair() && slices.Contains(r.registryHosts(), t)
}

// isPair tells whether two registry hosts share an address.
func (r *Site) isPair() bool { return isPaired(r.cluster) }

func isPaired(c *manifest.Cluster) bool { return c.ImageRegistry.VIP != "" }

// sharedAddress is where hosts reach the registry: the address that two hosts share, or that of the only one.
func (r *Site) sharedAddress() netip.Addr {
	if vip, err := netip.ParseAddr(r.cluster.ImageRegistry.VIP); err == nil {
		return vip
	}
	if t := firstOf(r.registryHosts()); t != nil {
		return t.IP
	}
	return netip.Addr{}
}

// registryAddress is an address of the registry with its port.
func (r *Site) registryAddress(a netip.Addr) string {
	own := siteRegistryOf(r.cluster)
	switch {
	case own.standard && a.Is6():
		return "[" + a.String() + "]"
	case own.standard:
		return a.String()
	}
	return net.JoinHostPort(a.String(), strconv.Itoa(own.port))
}

// ownRegistry says how the registry on this very host is reached by those who push, whoever has the address that two share. For a
// host without one it is how all hosts reach it.
func (t *Target) ownRegistry() (registryAccess, error) {
	access, err := t.run.access()
	if err != nil || !t.run.isRegistry(t) {
		return access, err
	}
	access.address = t.run.registryAddress(t.IP)
	s, err := t.run.secrets()
	if err != nil {
		return access, err
	}
	access.registryLogin = siteRegistryOf(t.run.cluster).pusher(s)
	return access, nil
}

// registryAddressTask lets two registry hosts share an address.
func registryAddressTask() Task {
	return settle(Task{
		Name:     "registry-address",
		Roles:    []manifest.Role{manifest.RoleRegistry},
		Where:    Reached,
		Packages: []string{"keepalived"},
		Leaves:   Leaves{Units: []string{registryAddressUnit}, Undo: dropRegistryAddress},
	}, registryAddressSetting)
}

func registryAddressSetting(ctx context.Context, t *Target) (setting, error) {
	access, err := t.ownRegistry()
	if err != nil {
		return setting{}, err
	}
	config, err := t.keepalivedConfig(ctx, net.JoinHostPort(t.IP.String(), strconv.Itoa(siteRegistryOf(t.run.cluster).port)))
	if err != nil {
		return setting{}, err
	}
	return setting{
		files: []textFile{
			{registryAddressDir + "/keepalived.conf", 0o600, config},
			{registryAddressCA, 0o644, access.ca},
			{"/etc/systemd/system/" + registryAddressUnit, 0o644, []byte(registryAddressUnitText)},
		},
		apply: func(ctx context.Context, t *Target) error { return t.hasKeepalived(ctx) },
		units: []string{registryAddressUnit},
	}, nil
}

// keepalivedBinary is where Debian's and Red Hat's packages put it.
const keepalivedBinary = "/usr/sbin/keepalived"

// A PackageMissingError says that a host lacks a program of its operating system.
type PackageMissingError struct {
	Host, Program, Package string
}

// Error names the host and the program.
func (e *PackageMissingError) Error() string {
	return fmt.Sprintf("%s has no %s", e.Host, e.Program)
}

// Hint says what to do about it.
func (e *PackageMissingError) Hint() string {
	return "build the bundle with packages for the host's distribution (packages: in the manifest), or install the package " + e.Package + " there"
}

func (t *Target) hasKeepalived(ctx context.Context) error {
	there, err := t.test(ctx, "test", "-x", keepalivedBinary)
	if err != nil || there {
		return err
	}
	return &PackageMissingError{t.Name, keepalivedBinary, "keepalived"}
}

// keepalivedConfig is what one of the hosts announces the address by.
//
// Adverts go from host to host, because switches and clouds drop multicast. There is no VRRP password: it would travel in clear text
// and was taken out of the protocol (RFC 3768, section 10); adverts of others than the peer are refused by their sender instead.
// Priorities differ, so that two hosts that begin at once agree; the address stays where it is until that host or its registry
// fails, because each move cuts pulls.
// https://www.keepalived.org/manpage.html
func (t *Target) keepalivedConfig(ctx context.Context, own string) ([]byte, error) {
	vip := t.run.sharedAddress()
	out, err := t.output(ctx, "ip", "-oneline", "address", "show")
	if err != nil {
		return nil, err
	}
	link := interfaceWith(string(out), vip)
	if link == "" {
		return nil, fmt.Errorf("no interface of %s has a network with the address %s: choose an imageRegistry.vip of the registry hosts' network", t.Name, vip)
	}
	all := t.run.registryHosts()
	var peers []netip.Addr
	for _, one := range all {
		if one != t {
			peers = append(peers, one.IP)
		}
	}
	var b strings.Builder
	err = keepalivedTemplate().Execute(&b, map[string]any{
		"name": t.Name, "interface": link, "own": t.IP, "peers": peers, "vip": netip.PrefixFrom(vip, vip.BitLen()),
		"priority": highestPriority - slices.Index(all, t), "check": strings.Join([]string{host.HelperPath, "serves", own, registryAddressCA}, " "),
	})
	return []byte(b.String()), err
}

// highestPriority is the first host's; 255 would mean that the address is the host's own (RFC 5798, section 5.2.4).
const highestPriority = 150

func keepalivedTemplate() *template.Template {
	return template.Must(template.New("keepalived").Parse(hostfile.Mark + `
global_defs {
  router_id {{.name}}
  script_user root
  enable_script_security
  vrrp_check_unicast_src
}

vrrp_script registry {
  script "{{.check}}"
  interval 2
  timeout 3
  fall 2
  rise 2
}

vrrp_instance registry {
  state BACKUP
  nopreempt
  interface {{.interface}}
  virtual_router_id 31
  priority {{.priority}}
  advert_int 1
  unicast_src_ip {{.own}}
  unicast_peer {
{{- range .peers}}
    {{.}}
{{- end}}
  }
  virtual_ipaddress {
    {{.vip}} dev {{.interface}}
  }
  track_script {
    registry
  }
}
`))
}

const registryAddressUnitText = hostfile.Mark + `
[Unit]
Description=Address that this cluster's registry hosts share (keepalived)
Documentation=https://www.keepalived.org/manpage.html
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=` + keepalivedBinary + ` --dont-fork --vrrp --use-file=` + registryAddressDir + `/keepalived.conf --pid=/run/kkbundle-registry-address.pid --vrrp_pid=/run/kkbundle-registry-address.vrrp.pid
KillMode=process
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
`

// dropRegistryAddress takes the address off the interface where keepalived was ended before it could.
func dropRegistryAddress(ctx context.Context, t *Target) error {
	if err := t.removeUnit(ctx, registryAddressUnit); err != nil {
		return err
	}
	vip, err := netip.ParseAddr(t.run.cluster.ImageRegistry.VIP)
	if err != nil || !t.Is(manifest.RoleRegistry) {
		return nil //nolint:nilerr // what is no address was never announced
	}
	return t.dropAddress(ctx, vip)
}

// registryHoldersTask checks that one of the registry hosts has the address, and that the registry answers there.
func registryHoldersTask() Task {
	return Task{
		Name:  "registry-answers",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Do: func(ctx context.Context, t *Target) error {
			access, err := t.run.access()
			if err != nil {
				return err
			}
			return eventually(ctx, registryMoves, func(ctx context.Context) error {
				if err := t.run.oneHolds(ctx); err != nil {
					return err
				}
				return t.registryServes(ctx, access)
			})
		},
	}
}

// oneHolds looks who has the address that the registry hosts share.
func (r *Site) oneHolds(ctx context.Context) error {
	vip := r.sharedAddress()
	hosts := r.connected(manifest.RoleRegistry)
	holds := make([]bool, len(hosts))
	err := r.onAll(hosts, func(i int, t *Target) error {
		out, err := t.output(ctx, "ip", "-oneline", "address", "show", "to", netip.PrefixFrom(vip, vip.BitLen()).String())
		holds[i] = len(strings.TrimSpace(string(out))) > 0
		return err
	})
	if err != nil {
		return err
	}
	var names []string
	for i, t := range hosts {
		if holds[i] {
			names = append(names, t.Name)
		}
	}
	switch all := len(hosts) == len(r.registryHosts()); {
	case len(names) > 1:
		return &SharedError{Address: vip.String(), Hosts: names}
	case len(names) == 0 && all:
		return fmt.Errorf("no registry host has the address %s: see journalctl --unit=%s on them", vip, registryAddressUnit)
	}
	return nil
}

// A SharedError says that more than one registry host has the address that one of them should have.
type SharedError struct {
	Address string
	Hosts   []string
}

// Error names the address and the hosts.
func (e *SharedError) Error() string {
	return fmt.Sprintf("%s have the address %s at once: they do not hear each other", strings.Join(e.Hosts, " and "), e.Address)
}

// Hint says what to do about it.
func (e *SharedError) Hint() string {
	return "let VRRP (IP protocol 112) through between them, in both directions: firewall-cmd --add-rich-rule='rule protocol value=vrrp accept', or what your firewall has for it"
}

// verifyRegistryTask holds each registry host against the bundle.
func verifyRegistryTask() Task {
	return Task{
		Name:  lookRegistryImages,
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Do: func(ctx context.Context, t *Target) error {
			ok, err := t.seeded(ctx)
			if err == nil && !ok {
				err = errors.New("the registry on this host lacks images or charts of the bundle: run install again")
			}
			return err
		},
	}
}
