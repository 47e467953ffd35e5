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

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Several registry hosts are all seeded from the bundle, and share an address. A separate keepalived assigns it to a
// host whose registry serves; the host's own keepalived keeps its configuration and addresses.
const (
	AddressUnit = "kkbundle-registry-address.service"
	AddressDir  = task.ConfigDir + "/registry-address"
	addressCA   = AddressDir + "/ca.crt"
	// failoverWait limits the address's move: keepalived waits for three adverts of a second each, and for the first
	// check.
	failoverWait = 30 * time.Second
)

// sharedAddress returns the hosts' address for the registry: the shared one of several hosts, or that of the only host.
func sharedAddress(s *task.Site) netip.Addr {
	if vip, err := netip.ParseAddr(s.Cluster.ImageRegistry.VIP); err == nil {
		return vip
	}
	if t := task.FirstOf(s.RegistryHosts()); t != nil {
		return t.IP
	}
	return netip.Addr{}
}

// addressWithPort returns an address of the registry with its port.
func addressWithPort(s *task.Site, a netip.Addr) string {
	own := Of(s.Cluster)
	switch {
	case own.standard && a.Is6():
		return "[" + a.String() + "]"
	case own.standard:
		return a.String()
	}
	return net.JoinHostPort(a.String(), strconv.Itoa(own.port))
}

// localAccess returns the hosts' access, but to the registry on this host regardless of the shared address. For other
// hosts it is the hosts' access.
func localAccess(t *task.Host) (task.RegistryAccess, error) {
	access, err := t.Site.Access()
	if err != nil || !t.Site.IsRegistry(t) {
		return access, err
	}
	access.Address = addressWithPort(t.Site, t.IP)
	return access, nil
}

// readAccess returns the access for comparing the registry on this host with the bundle: the hosts' login, unless it
// cannot see missing repositories.
func readAccess(t *task.Host) (task.RegistryAccess, error) {
	if Of(t.Site.Cluster).hides {
		return pushAccess(t)
	}
	return localAccess(t)
}

// pushAccess returns the access for pushes to the registry on this host. For other hosts it is the hosts' access.
func pushAccess(t *task.Host) (task.RegistryAccess, error) {
	access, err := localAccess(t)
	if err != nil || !t.Site.IsRegistry(t) {
		return access, err
	}
	s, err := Credentials(t.Site)
	if err != nil {
		return access, err
	}
	access.Login = s.push
	if port := Of(t.Site.Cluster).pushPort; port != 0 {
		access.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	return access, nil
}

// AddressTask makes registry hosts share an address.
func AddressTask() task.Task {
	return task.Settle(task.Task{
		Name:     "registry-address",
		Roles:    []manifest.Role{manifest.RoleRegistry},
		Where:    task.Reached,
		Packages: []string{"keepalived"},
		Leaves:   task.Leaves{Units: []string{AddressUnit}, Undo: removeAddress},
	}, addressSetting)
}

func addressSetting(ctx context.Context, t *task.Host) (task.Setting, error) {
	access, err := localAccess(t)
	if err != nil {
		return task.Setting{}, err
	}
	config, err := keepalivedConfig(ctx, t, net.JoinHostPort(t.IP.String(), strconv.Itoa(Of(t.Site.Cluster).port)))
	if err != nil {
		return task.Setting{}, err
	}
	return task.Setting{
		Files: []task.File{
			{Path: AddressDir + "/keepalived.conf", Mode: 0o600, Data: config},
			{Path: addressCA, Mode: 0o644, Data: access.CA},
			{Path: "/etc/systemd/system/" + AddressUnit, Mode: 0o644, Data: []byte(AddressUnitText)},
		},
		Apply: checkKeepalived,
		Units: []string{AddressUnit},
	}, nil
}

// KeepalivedBinary is the path in the packages of Debian and Red Hat.
const KeepalivedBinary = "/usr/sbin/keepalived"

func checkKeepalived(ctx context.Context, t *task.Host) error {
	there, err := t.Test(ctx, "test", "-x", KeepalivedBinary)
	if err != nil || there {
		return err
	}
	return plain.Advise(fmt.Errorf("%s has no %s", t.Name, KeepalivedBinary),
		"build the bundle with packages for the host's distribution (packages: in the manifest), or install the package keepalived there")
}

// keepalivedConfig returns keepalived's configuration for one of the hosts.
//
// Adverts are unicast, because switches and clouds drop multicast. There is no VRRP password: it would be clear text
// and was removed from the protocol (RFC 3768, section 10). Adverts are only accepted from the peer's address.
// Different priorities decide a simultaneous start. The address moves only if its host or registry fails, because each
// move interrupts pulls.
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
		"priority": highestPriority - slices.Index(all, t),
		"check":    strings.Join([]string{host.HelperPath, "serves", own, addressCA}, " "),
	})
	return []byte(b.String()), err
}

// highestPriority is the first host's; 255 is reserved for the address's owner (RFC 5798, section 5.2.4).
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

// AddressUnitText is the unit of keepalived.
const AddressUnitText = hostfile.Mark + `
[Unit]
Description=Address that this cluster's registry hosts share (keepalived)
Documentation=https://www.keepalived.org/manpage.html
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=` + KeepalivedBinary + ` --dont-fork --vrrp --use-file=` + AddressDir + `/keepalived.conf --pid=/run/kkbundle-registry-address.pid --vrrp_pid=/run/kkbundle-registry-address.vrrp.pid
KillMode=process
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
`

// removeAddress removes the address from the interface if keepalived was killed.
func removeAddress(ctx context.Context, t *task.Host) error {
	if err := t.RemoveUnit(ctx, AddressUnit); err != nil {
		return err
	}
	vip, err := netip.ParseAddr(t.Site.Cluster.ImageRegistry.VIP)
	if err != nil || !t.Is(manifest.RoleRegistry) {
		return nil //nolint:nilerr // what is no address was never announced
	}
	return t.DropAddress(ctx, vip)
}

// AnswersTask checks the shared address with CheckSharedAddress, and that the registry answers there.
func AnswersTask() task.Task {
	return task.Task{
		Name:  "registry-answers",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Do: func(ctx context.Context, t *task.Host) error {
			access, err := t.Site.Access()
			if err != nil {
				return err
			}
			return task.Eventually(ctx, failoverWait, func(ctx context.Context) error {
				if err := CheckSharedAddress(ctx, t.Site); err != nil {
					return err
				}
				return checkServes(ctx, t, access)
			})
		},
	}
}

// CheckSharedAddress checks that no two registry hosts have the shared address, and that one has it if all are
// connected.
func CheckSharedAddress(ctx context.Context, s *task.Site) error {
	vip := sharedAddress(s)
	hosts := s.Connected(manifest.RoleRegistry)
	holds := make([]bool, len(hosts))
	err := s.OnAll(hosts, func(i int, t *task.Host) error {
		out, err := t.Output(ctx, "ip", "-oneline", "address", "show", "to",
			netip.PrefixFrom(vip, vip.BitLen()).String())
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
	switch all := len(hosts) == len(s.RegistryHosts()); {
	case len(names) > 1:
		return plain.Advise(
			fmt.Errorf("%s have the address %s at once: they do not receive each other's VRRP adverts",
				strings.Join(names, " and "), vip),
			"allow VRRP (IP protocol 112) between them, in both directions: firewall-cmd --permanent --add-rich-rule='rule protocol value=vrrp accept', then firewall-cmd --reload, or your firewall's equivalent")
	case len(names) == 0 && all:
		return fmt.Errorf("no registry host has the address %s: see journalctl --unit=%s on them", vip, AddressUnit)
	}
	return nil
}
