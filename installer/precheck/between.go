package precheck

import (
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// linkChecks evaluate connection attempts between hosts. Without attempts there is no result.
func linkChecks(known network.Table) []Check {
	return []Check{
		{
			ID: "links", Groups: []string{GroupNetwork}, Level: Block,
			Title: "the host reaches the others on the ports of their roles", Rule: reachesOthers,
			LevelOf: linkLevel, Varies: "warns if only ports are closed that not every setting of the pod network uses, such as " + maybePorts(known),
			Why:    "nodes could not join, or pods not reach each other",
			Fix:    "open these ports in the firewalls between the hosts and on them, both ways",
			Source: "Kubernetes: ports and protocols; ports of the pod network; tried between the hosts",
		},
		{
			ID: "path-mtu", Groups: []string{GroupNetwork}, Level: Warn,
			Title: "packets of full size get through to the others", Rule: sendsFullSize,
			Why:    "large answers are lost on the way while small ones come: TLS connections hang",
			Fix:    "raise the MTU of the network between the hosts, or lower that of their interfaces to the size that gets through",
			Source: "tried between the hosts with packets that must not be split",
		},
	}
}

// maybePorts names the ports that not every setting of a pod network uses.
func maybePorts(known network.Table) string {
	var list []string
	for _, n := range known {
		for _, p := range n.Ports {
			if p.Maybe {
				list = append(list, fmt.Sprintf("%s's %d", n.Title, p.Number))
			}
		}
	}
	return strings.Join(list, ", ")
}

// linkLevel is the level of the worst closed link.
func linkLevel(s *Subject) Level {
	var optional bool
	for _, l := range s.fleet.links[s.Host.Name] {
		switch {
		case l.OK || l.Skipped != "":
		case !l.Maybe:
			return Block
		default:
			optional = true
		}
	}
	if optional {
		return Warn
	}
	return Block
}

func reachesOthers(s *Subject) Finding {
	all := s.fleet.links[s.Host.Name]
	if len(all) == 0 {
		return skip()
	}
	var closed, untold []string
	used := 0
	for _, l := range all {
		name := fmt.Sprintf("%s %d/%s", l.To, l.Port, l.Network)
		switch {
		case l.Skipped != "" && l.Service:
			used++ // normal in a working cluster; the check of ports reports foreign programs
		case l.Skipped != "":
			untold = append(untold, name+" ("+l.Skipped+")")
		case !l.OK:
			closed = append(closed, name+" ("+l.Error+")")
		}
	}
	switch {
	case len(closed) > 0:
		return fail("it does not reach " + some(closed))
	case len(untold) > 0:
		return unknown("not tried: " + some(untold))
	default:
		return pass(plain.Count(len(all)-used, "way"))
	}
}

func sendsFullSize(s *Subject) Finding {
	var small []string
	tried := 0
	for _, l := range s.fleet.links[s.Host.Name] {
		if l.Want == 0 {
			continue
		}
		tried++
		if l.MTU < l.Want {
			small = append(small, fmt.Sprintf("%s: %d of %d bytes", l.To, l.MTU, l.Want))
		}
	}
	switch {
	case tried == 0:
		return skip()
	case len(small) > 0:
		return fail(some(small))
	default:
		return pass(fmt.Sprintf("to %s", plain.Count(tried, "host")))
	}
}
