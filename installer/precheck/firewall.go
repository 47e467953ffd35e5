package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// hasNoFirewall finds the firewalls that drop packets of the cluster. Those of nftables.service cannot be judged.
func hasNoFirewall(s *Subject) Finding {
	var closed []string
	for _, name := range s.Facts.Firewalls {
		switch lacks, known := firewallLacks(s, name); {
		case !known:
			closed = append(closed, name)
		case len(lacks) > 0:
			closed = append(closed, name+" does not have "+some(lacks))
		}
	}
	if len(closed) == 0 && len(s.Facts.Firewalls) > 0 {
		return pass(strings.Join(s.Facts.Firewalls, ", ") + ", open for the cluster")
	}
	return none(closed, "none")
}

// firewallLacks returns the networks, interfaces and ports of the cluster that a firewall does not let pass (for ufw
// the missing rules), and whether its rules are known.
func firewallLacks(s *Subject, name string) (lacks []string, known bool) {
	switch name {
	case "firewalld":
		gap := firewalldGap(s)
		return slices.Concat(gap.sources, gap.interfaces, gap.ports), s.Facts.FirewallZones != nil
	case "ufw":
		return ufwGap(s), s.Facts.UFWRules != nil
	}
	return nil, false
}

// firewallFix returns commands that open the host's firewalls for the cluster.
func firewallFix(s *Subject) string {
	var list []string
	for _, name := range s.Facts.Firewalls {
		lacks, known := firewallLacks(s, name)
		switch {
		case known && len(lacks) == 0:
		case name == "firewalld":
			list = append(list, firewalldFix(s)...)
		case name == "ufw":
			for _, rule := range lacks {
				list = append(list, "ufw "+rule)
			}
		default:
			list = append(list, fmt.Sprintf(
				"accept %s in the chains input and forward of %s, and the ports %s between the hosts",
				strings.Join(networkTexts(s), ", "), name, strings.Join(portTexts(s), ", ")))
		}
	}
	return strings.Join(append(list, "or switch the firewall off"), "; ")
}

// A gap is what firewalld does not let pass.
type gap struct {
	sources, interfaces []string // to trust
	zone                string   // of the host's interface; "" for the default
	ports               []string // to open in it
}

// firewalldGap compares the needs of the cluster with firewalld's zones. Without these it returns all needs.
func firewalldGap(s *Subject) gap {
	need := gap{sources: networkTexts(s), interfaces: networkInterfaces(s), ports: portTexts(s)}
	link, _, _ := interfaceOf(s.Facts, s.address)
	var own node.FirewallZone
	for _, z := range s.Facts.FirewallZones {
		if isOwn := slices.Contains(z.Interfaces, link.Name); isOwn || z.Default && own.Name == "" {
			own = z
		}
		if z.Target == "ACCEPT" {
			need.sources = slices.DeleteFunc(need.sources,
				func(network string) bool { return isWithin(network, z.Sources) })
			need.interfaces = slices.DeleteFunc(need.interfaces,
				func(name string) bool { return slices.Contains(z.Interfaces, name) })
		}
	}
	if !own.Default && isZoneName(own.Name) {
		need.zone = own.Name
	}
	need.ports = slices.DeleteFunc(need.ports,
		func(p string) bool { return own.Target == "ACCEPT" || isPortOf(p, own.Ports) })
	return need
}

// isZoneName reports whether a name from a host can be one of firewalld's (letters, digits, "_", "-", "/") and so
// part of a command.
func isZoneName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-/", r))
	})
}

// isWithin reports whether a network is part of one of others.
func isWithin(network string, others []string) bool {
	inner, err := netip.ParsePrefix(network)
	return err == nil && slices.ContainsFunc(others, func(other string) bool {
		outer, err := netip.ParsePrefix(other)
		return err == nil && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
	})
}

// isPortOf reports whether a port, as 6443/tcp, is in a list of ports and ranges, as 6000-7000/tcp.
func isPortOf(port string, list []string) bool {
	number, network, _ := strings.Cut(port, "/")
	n, err := strconv.Atoi(number)
	return err == nil && slices.ContainsFunc(list, func(one string) bool {
		numbers, other, _ := strings.Cut(one, "/")
		first, last, isRange := strings.Cut(numbers, "-")
		if !isRange {
			last = first
		}
		least, errLeast := strconv.Atoi(first)
		most, errMost := strconv.Atoi(last)
		return errLeast == nil && errMost == nil && other == network && least <= n && n <= most
	})
}

// firewalldFix trusts the networks and interfaces of pods: the zone trusted also lets forwarded packets pass, which
// open ports do not. Each kind of setting has a command of its own, because firewall-cmd refuses several.
func firewalldFix(s *Subject) []string {
	const permanent = "firewall-cmd --permanent"
	gap := firewalldGap(s)
	var list []string
	add := func(zone, option string, values []string) {
		if len(values) == 0 {
			return
		}
		command := permanent
		if zone != "" {
			command += " --zone=" + zone
		}
		for _, value := range values {
			command += " " + option + value
		}
		list = append(list, command)
	}
	add("trusted", "--add-source=", gap.sources)
	add("trusted", "--add-interface=", gap.interfaces)
	add(gap.zone, "--add-port=", gap.ports)
	return append(list, "firewall-cmd --reload")
}

// ufwGap returns the rules that ufw does not have, as arguments of ufw: the networks of pods as sources and for
// forwarding, which ufw denies by default, and ports.
func ufwGap(s *Subject) []string {
	var list []string
	for _, network := range networkTexts(s) {
		list = append(list, "allow from "+network, "route allow from "+network, "route allow to "+network)
	}
	for _, p := range portTexts(s) {
		list = append(list, "allow "+p)
	}
	return slices.DeleteFunc(list, func(rule string) bool {
		number, _, isPort := strings.Cut(rule, "/")
		return slices.Contains(s.Facts.UFWRules, rule) || isPort && slices.Contains(s.Facts.UFWRules, number)
	})
}

// networkTexts returns the networks of pods and services.
func networkTexts(s *Subject) []string {
	var list []string
	for _, of := range clusterNetworks(s.Cluster) {
		list = append(list, of.Prefix.String())
	}
	return list
}

// portTexts returns the ports of the host's roles that others use, as number/protocol.
func portTexts(s *Subject) []string {
	var list []string
	for _, p := range portsOf(s.Cluster, s.networks(), s.Host.Host) {
		if !p.local {
			list = append(list, fmt.Sprintf("%d/%s", p.number, p.network))
		}
	}
	if s.Host.Is(manifest.RoleCluster) {
		for _, n := range s.networks() {
			for _, p := range n.Ports {
				if p.Some {
					list = append(list, fmt.Sprintf("%d/%s", p.Number, p.Protocol))
				}
			}
		}
	}
	if s.Cluster.Storage.NFS && s.Host.Is(manifest.RoleNFS) {
		list = append(list, "2049/tcp")
	}
	return list
}

// networkInterfaces returns the interfaces of the pod network as firewalld writes them: "+" stands for any end of a
// name.
func networkInterfaces(s *Subject) []string {
	var list []string
	for _, n := range s.networks() {
		for _, name := range n.Carrying() {
			list = append(list, strings.ReplaceAll(name, "*", "+"))
		}
	}
	return list
}
