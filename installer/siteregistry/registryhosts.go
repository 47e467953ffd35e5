package siteregistry

import (
	"context"
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
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Two registry hosts have the same images, because each is seeded from the bundle, and share an address that keepalived gives to
// one whose registry answers. It is a keepalived of our own: the host's, if it has one, keeps its configuration and its addresses.
const (
	RegistryAddressUnit = "kkbundle-registry-address.service"
	RegistryAddressDir  = task.ConfigDir + "/registry-address"
	registryAddressCA   = RegistryAddressDir + "/ca.crt"
	// registryMoves is how long the address may take until somebody has it: keepalived waits for three adverts, a second each,
	// and for the first check.
	registryMoves = 30 * time.Second
)

// sharedAddress is where hosts reach the registry: the address that two hosts share, or that of the only one.
func sharedAddress(r *task.Site) netip.Addr {
	if vip, err := netip.ParseAddr(r.Cluster.ImageRegistry.VIP); err == nil {
		return vip
	}
	if t := task.FirstOf(r.RegistryHosts()); t != nil {
		return t.IP
	}
	return netip.Addr{}
}

// registryAddress is an address of the registry with its port.
func registryAddress(r *task.Site, a netip.Addr) string {
	own := RegistryOf(r.Cluster)
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
func ownRegistry(t *task.Host) (task.RegistryAccess, error) {
	access, err := t.Site.Access()
	if err != nil || !t.Site.IsRegistry(t) {
		return access, err
	}
	access.Address = registryAddress(t.Site, t.IP)
	s, err := Secrets(t.Site)
	if err != nil {
		return access, err
	}
	access.Login = RegistryOf(t.Site.Cluster).pusher(s)
	return access, nil
}

// RegistryAddressTask lets two registry hosts share an address.
func RegistryAddressTask() task.Task {
	return task.Settle(task.Task{
		Name:     "registry-address",
		Roles:    []manifest.Role{manifest.RoleRegistry},
		Where:    task.Reached,
		Packages: []string{"keepalived"},
		Leaves:   task.Leaves{Units: []string{RegistryAddressUnit}, Undo: dropRegistryAddress},
	}, registryAddressSetting)
}

func registryAddressSetting(ctx context.Context, t *task.Host) (task.Setting, error) {
	access, err := ownRegistry(t)
	if err != nil {
		return task.Setting{}, err
	}
	config, err := keepalivedConfig(ctx, t, net.JoinHostPort(t.IP.String(), strconv.Itoa(RegistryOf(t.Site.Cluster).port)))
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		Files: []task.File{
			{Path: RegistryAddressDir + "/keepalived.conf", Mode: 0o600, Data: config},
			{Path: registryAddressCA, Mode: 0o644, Data: access.CA},
			{Path: "/etc/systemd/system/" + RegistryAddressUnit, Mode: 0o644, Data: []byte(RegistryAddressUnitText)},
		},
		Apply: func(ctx context.Context, t *task.Host) error { return hasKeepalived(ctx, t) },
		Units: []string{RegistryAddressUnit},
	}, nil
}

// KeepalivedBinary is where Debian's and Red Hat's packages put it.
const KeepalivedBinary = "/usr/sbin/keepalived"

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

func hasKeepalived(ctx context.Context, t *task.Host) error {
	there, err := t.Test(ctx, "test", "-x", KeepalivedBinary)
	if err != nil || there {
		return err
	}
	return &PackageMissingError{t.Name, KeepalivedBinary, "keepalived"}
}

// keepalivedConfig is what one of the hosts announces the address by.
//
// Adverts go from host to host, because switches and clouds drop multicast. There is no VRRP password: it would travel in clear text
// and was taken out of the protocol (RFC 3768, section 10); adverts of others than the peer are refused by their sender instead.
// Priorities differ, so that two hosts that begin at once agree; the address stays where it is until that host or its registry
// fails, because each move cuts pulls.
// https://www.keepalived.org/manpage.html
func keepalivedConfig(ctx context.Context, t *task.Host, own string) ([]byte, error) {
	vip := sharedAddress(t.Site)
	out, err := t.Output(ctx, "ip", "-oneline", "address", "show")
	if err != nil {
		return nil, err
	}
	link := task.InterfaceWith(string(out), vip)
	if link == "" {
		return nil, fmt.Errorf("no interface of %s has a network with the address %s: choose an imageRegistry.vip of the registry hosts' network", t.Name, vip)
	}
	all := t.Site.RegistryHosts()
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

const RegistryAddressUnitText = hostfile.Mark + `
[Unit]
Description=Address that this cluster's registry hosts share (keepalived)
Documentation=https://www.keepalived.org/manpage.html
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=` + KeepalivedBinary + ` --dont-fork --vrrp --use-file=` + RegistryAddressDir + `/keepalived.conf --pid=/run/kkbundle-registry-address.pid --vrrp_pid=/run/kkbundle-registry-address.vrrp.pid
KillMode=process
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
`

// dropRegistryAddress takes the address off the interface where keepalived was ended before it could.
func dropRegistryAddress(ctx context.Context, t *task.Host) error {
	if err := t.RemoveUnit(ctx, RegistryAddressUnit); err != nil {
		return err
	}
	vip, err := netip.ParseAddr(t.Site.Cluster.ImageRegistry.VIP)
	if err != nil || !t.Is(manifest.RoleRegistry) {
		return nil //nolint:nilerr // what is no address was never announced
	}
	return t.DropAddress(ctx, vip)
}

// RegistryHoldersTask checks that one of the registry hosts has the address, and that the registry answers there.
func RegistryHoldersTask() task.Task {
	return task.Task{
		Name:  "registry-answers",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Do: func(ctx context.Context, t *task.Host) error {
			access, err := t.Site.Access()
			if err != nil {
				return err
			}
			return task.Eventually(ctx, registryMoves, func(ctx context.Context) error {
				if err := OneHolds(ctx, t.Site); err != nil {
					return err
				}
				return registryServes(ctx, t, access)
			})
		},
	}
}

// OneHolds looks who has the address that the registry hosts share.
func OneHolds(ctx context.Context, r *task.Site) error {
	vip := sharedAddress(r)
	hosts := r.Connected(manifest.RoleRegistry)
	holds := make([]bool, len(hosts))
	err := r.OnAll(hosts, func(i int, t *task.Host) error {
		out, err := t.Output(ctx, "ip", "-oneline", "address", "show", "to", netip.PrefixFrom(vip, vip.BitLen()).String())
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
	switch all := len(hosts) == len(r.RegistryHosts()); {
	case len(names) > 1:
		return &SharedError{Address: vip.String(), Hosts: names}
	case len(names) == 0 && all:
		return fmt.Errorf("no registry host has the address %s: see journalctl --unit=%s on them", vip, RegistryAddressUnit)
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
