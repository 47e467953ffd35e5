package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// nameChecks check name resolution.
func nameChecks() []Check {
	return []Check{
		{
			ID: "dns", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "a nameserver is configured that pods can use", Rule: hasNameserver, Roles: cluster(),
			Why:    "CoreDNS forwards to the host's nameservers: without one it does not start, with one on the host itself it asks itself. Install therefore ends forwarding for the whole cluster while a host that CoreDNS can run on has none",
			Fix:    "name the site's nameserver in /etc/resolv.conf, or to systemd-resolved in /etc/systemd/resolved.conf; a later install puts forwarding back",
			Source: "Kubespray; CoreDNS plugins forward and loop",
		},
		{
			ID: "resolv-conf", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "/etc/resolv.conf fits into that of pods", Rule: hasSmallResolvConf, Roles: cluster(),
			Why:    "the kubelet drops the excess, so that names resolve on the host but not in pods",
			Fix:    "keep at most 3 nameservers, 29 search domains and 1,900 characters of search domains",
			Source: "kubelet: 3 nameservers, 32 search domains and 2048 characters, of which the cluster's own 3 domains take a part",
		},
		{
			ID: "hosts-file", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "/etc/hosts gives the hosts their addresses", Rule: hasTrueHosts,
			Why:    "the first line that has a name counts: the host would look for the others, or for itself, where they are not",
			Fix:    "correct or remove these lines",
			Source: "kkbundle",
		},
		{
			ID: "hostname-resolves", Groups: []string{GroupNetwork, GroupKubernetes}, Level: Warn,
			Title: "the host's own name becomes an address", Rule: resolvesItself, Roles: cluster(),
			Why:     "kubeadm warns, and programs that ask for their own address get none",
			Fix:     "add the host to /etc/hosts; an installation by kkbundle does so",
			Source:  "kubeadm Hostname",
			Kubeadm: []string{"Hostname"},
		},
	}
}

const resolvedStub = "127.0.0.53"

// hasNameserver accepts systemd-resolved's stub: kubeadm gives pods the real nameservers behind it.
func hasNameserver(s *Subject) Finding {
	dns := s.Facts.DNS
	list := dns.Nameservers
	if slices.Contains(list, resolvedStub) {
		if list = dns.Upstream; len(list) == 0 {
			return fail(resolvedStub + " is systemd-resolved, which has no nameserver to ask")
		}
	}
	if len(list) == 0 {
		return fail("none")
	}
	for _, n := range list {
		if a, err := netip.ParseAddr(n); err == nil && a.Unmap().IsLoopback() {
			return fail(n + " is the host itself")
		}
		if s.Cluster.AsksItself(n) {
			return fail(n + " is the cluster's own DNS, which would ask itself")
		}
	}
	return pass(some(list))
}

func hasSmallResolvConf(s *Subject) Finding {
	const servers, domains, characters = 3, 29, 1900
	dns := s.Facts.DNS
	search := strings.Join(dns.Search, " ")
	var wrong []string
	if n := len(dns.Nameservers); n > servers {
		wrong = append(wrong, plain.Count(n, "nameserver"))
	}
	if n := len(dns.Search); n > domains {
		wrong = append(wrong, plain.Count(n, "search domain"))
	}
	if n := len(search); n > characters {
		wrong = append(wrong, fmt.Sprintf("%d characters of search domains", n))
	}
	return none(wrong, "it does")
}

// hasTrueHosts compares with the inventory's addresses. The host's own name may have a loopback address.
func hasTrueHosts(s *Subject) Finding {
	var wrong []string
	first := map[string]bool{}
	for _, line := range s.Facts.Hosts {
		a, err := netip.ParseAddr(line.Address)
		if err != nil {
			continue
		}
		for _, name := range line.Names {
			want, known := s.fleet.named[name]
			if !known || !want.IsValid() || first[name] || want.Is4() != a.Is4() {
				continue
			}
			first[name] = true
			if a != want && !(a.IsLoopback() && name == s.Host.Name) {
				wrong = append(wrong, fmt.Sprintf("%s is %s there and %s in the inventory", name, a, want))
			}
		}
	}
	if len(wrong) > 0 {
		return fail(some(wrong))
	}
	return pass("it does, or has none of them")
}

// resolvesItself ignores kkbundle's own entries in /etc/hosts.
func resolvesItself(s *Subject) Finding {
	f := s.Facts
	switch {
	case s.Input.Install:
		return skip()
	case f.Hostname == "":
		return unknown("the host did not report its own name")
	case len(f.HostnameAddresses) > 0:
		return pass(f.Hostname + " is " + f.HostnameAddresses[0].String())
	case hasLine(f.Hosts, f.Hostname):
		return pass(f.Hostname + " is in /etc/hosts")
	default:
		return fail(f.Hostname + " does not")
	}
}

func hasLine(lines []node.HostsLine, name string) bool {
	return slices.ContainsFunc(lines, func(l node.HostsLine) bool { return slices.Contains(l.Names, name) })
}
