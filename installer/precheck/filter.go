package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node"
)

// filterChecks check proxies and packet filters.
func filterChecks() []Check {
	return []Check{
		{
			ID: "proxy", Groups: []string{GroupNetwork}, Level: Warn, Title: "no proxy stands between the hosts",
			Rule:    hasNoProxy,
			Why:     "programs would ask the proxy for the registry, the API server, services and pods",
			Fix:     "remove the proxy from /etc/environment, the login scripts and the drop-ins of units that the finding names, or name the hosts' addresses and the networks of pods and services in NO_PROXY",
			Source:  "kubeadm HTTPProxy, HTTPProxyCIDR",
			Kubeadm: []string{"HTTPProxy", "HTTPProxyCIDR"},
		},
		{
			ID: "firewall", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "no firewall is active, or it is open for the cluster", Rule: hasNoFirewall,
			Why:     "hosts must reach each other on the ports of their roles, and pods each other through those of the pod network",
			Fix:     "trust the networks and interfaces of the pods and open the ports of the host's roles and pod network (a report names the commands for firewalld and ufw), or switch the firewall off",
			FixOf:   firewallFix,
			Source:  "kubeadm Firewalld; Cilium's, Calico's and Kube-OVN's requirements of the network",
			Kubeadm: []string{"Firewalld"},
		},
		{
			ID: "packet-filter", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "no rule drops all traffic that is not explicitly allowed", Rule: hasNoDrop, Roles: cluster(),
			Why:    "what comes for pods, or from them, is dropped although no firewall service is active",
			Fix:    "iptables -P FORWARD ACCEPT and the like, where the rules come from: often Docker, or a file of the site",
			Source: "kkbundle; Kubernetes with Docker's FORWARD policy",
		},
		{
			ID: "fapolicyd", Groups: []string{GroupOS}, Level: Warn,
			Title: "fapolicyd does not keep programs from running", Rule: hasNoPolicyDaemon,
			Why:    "it refuses to run programs that no package has brought, kubeadm and containerd among them",
			Fix:    "systemctl disable --now fapolicyd, or allow /usr/local/bin and /opt/cni in its rules",
			Source: "Kubespray switches it off",
		},
	}
}

// hasNoProxy finds the cluster traffic that would go to a proxy: everything missing from NO_PROXY. Programs have the
// proxies of the login, services those of their units.
func hasNoProxy(s *Subject) Finding {
	var exempted, wrong []string
	look := func(where string, proxies map[string]string) {
		var found []string
		for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
			if v := proxies[name]; v != "" {
				found = append(found, name+"="+v+where)
			}
		}
		if len(found) == 0 {
			return
		}
		through := s.proxied(strings.FieldsFunc(proxies["NO_PROXY"], func(r rune) bool { return r == ',' || r == ' ' }))
		if len(through) == 0 {
			exempted = append(exempted, found...)
			return
		}
		wrong = append(wrong, strings.Join(found, ", ")+"; NO_PROXY lacks "+some(through))
	}
	look("", s.Facts.Proxies)
	for _, u := range s.Facts.UnitProxies {
		look(fmt.Sprintf(" (%s, %s)", u.Unit, u.File), u.Proxies)
	}
	switch {
	case len(wrong) > 0:
		return fail(strings.Join(wrong, "; "))
	case len(exempted) > 0:
		return pass(strings.Join(exempted, ", ") + "; NO_PROXY exempts the cluster")
	}
	return pass("none")
}

// proxied lists the cluster's addresses that a NO_PROXY does not exempt: the host itself, and the networks, represented
// by their first address as in kubeadm.
func (s *Subject) proxied(exempt []string) []string {
	var list []string
	if s.address.IsValid() && !exempts(exempt, s.address) {
		list = append(list, s.address.String())
	}
	for _, of := range clusterNetworks(s.Cluster) {
		if !exempts(exempt, of.Addr().Next()) {
			list = append(list, of.String())
		}
	}
	return list
}

// exempts reports whether NO_PROXY contains an address: by *, the address, or a network, as Go's programs read it.
func exempts(list []string, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(one string) bool {
		if one == "*" || one == a.String() {
			return true
		}
		p, err := netip.ParsePrefix(one)
		return err == nil && p.Contains(a)
	})
}

// hasNoDrop ignores the chains of firewall services, which have their own check, and those of our clusters.
func hasNoDrop(s *Subject) Finding {
	filter := s.Facts.PacketFilter
	switch {
	case len(s.Facts.Firewalls) > 0:
		return skip()
	case !filter.Known:
		return unknown("the rules in the kernel could not be looked at")
	}
	var chains []string
	for _, c := range filter.Drops {
		if c.Hook == "input" || c.Hook == "forward" || c.Hook == "output" {
			chains = append(chains, chainName(c))
		}
	}
	if len(chains) > 0 {
		return fail("the policy is to drop: " + some(chains))
	}
	return pass("none")
}

func chainName(c node.FilterChain) string { return c.Family + " " + c.Table + " " + c.Name }

func hasNoPolicyDaemon(s *Subject) Finding {
	if s.Facts.Unit("fapolicyd.service").Active == "active" {
		return fail("it runs")
	}
	return pass("it does not run")
}
