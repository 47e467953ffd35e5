package node

import (
	"context"
	"net/netip"
	"slices"
	"strings"
)

// firewalld queries the running firewalld, whose rules may differ from its files.
func (c softwareCollector) firewalld(ctx context.Context) {
	if c.find("firewall-cmd") == "" {
		return
	}
	out, err := c.run(ctx, "firewall-cmd", "--list-all-zones")
	if err != nil {
		c.problem("firewall-cmd", err)
		return
	}
	standard := shellValues(c.text("/etc/firewalld/firewalld.conf"))["DefaultZone"]
	if standard == "" {
		standard = "public"
	}
	c.facts.FirewallZones = firewallZones(string(out), standard)
}

// firewallZones parses the output of firewall-cmd --list-all-zones: blocks of a line with the zone's name and its
// settings.
func firewallZones(text, standard string) []FirewallZone {
	const most = 100
	zones := []FirewallZone{}
	for block := range strings.SplitSeq(text, "\n\n") {
		var z FirewallZone
		for line := range strings.Lines(block) {
			key, value, isSetting := strings.Cut(strings.TrimSpace(line), ":")
			switch words := strings.Fields(value); {
			case z.Name == "":
				z.Name, _, _ = strings.Cut(strings.TrimSpace(line), " ") // "public (active)"
			case !isSetting:
			case key == "target":
				z.Target = strings.TrimSpace(value)
			case key == "interfaces":
				z.Interfaces = words
			case key == "sources":
				z.Sources = slices.DeleteFunc(words, func(source string) bool { // hardware addresses and sets
					_, err := netip.ParsePrefix(source)
					return err != nil
				})
			case key == "ports":
				z.Ports = words
			}
		}
		z.Default = z.Name == standard
		if z.Name != "" && (z.Default || len(z.Interfaces)+len(z.Sources) > 0) && len(zones) < most {
			zones = append(zones, z)
		}
	}
	return zones
}

// ufw reads the rules that were added to ufw.
func (c softwareCollector) ufw(ctx context.Context) {
	if c.find("ufw") == "" {
		return
	}
	out, err := c.run(ctx, "ufw", "show", "added")
	if err != nil {
		c.problem("ufw", err)
		return
	}
	c.facts.UFWRules = ufwRules(string(out))
}

// ufwRules parses the output of ufw show added: the command of each rule, below a headline.
func ufwRules(text string) []string {
	const most = 1000
	rules := []string{}
	for line := range strings.Lines(text) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "ufw "); ok && len(rules) < most {
			rules = append(rules, rule)
		}
	}
	return rules
}
