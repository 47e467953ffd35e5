package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// counters counts, on the bridge, what a host sent anywhere else than to the lab's subnet: addresses outside,
// broadcasts to everywhere, multicasts beyond the link. ARP requests for foreign addresses are counted apart: they
// ask, and don't leave.
const counters = `table bridge lab {
	counter left4 { }
	counter left6 { }
	counter asked { }
	chain from-hosts {
		type filter hook prerouting priority -300; policy accept;
		ether type ip ip daddr ` + Subnet + ` return
		ether type arp arp daddr ip ` + Subnet + ` return
		ether type ip6 ip6 daddr { fe80::/10, ff02::/16, ` + Subnet6 + ` } return
		ether type ip counter name left4
		ether type ip6 counter name left6
		ether type arp counter name asked
	}
}
`

// networkUp makes the switch that all hosts hang on, in the network namespace from which they are installed. It has no
// way to the machine's own network.
func (l *Lab) networkUp(ctx context.Context) error {
	n := l.netns()
	for _, args := range [][]string{
		{"ip", "netns", "add", n},
		{"ip", "-n", n, "link", "set", "lo", "up"},
		{"ip", "-n", n, "link", "add", Bridge, "type", "bridge"},
		{"ip", "-n", n, "addr", "add", AdminAddress + "/24", "dev", Bridge},
		{"ip", "-n", n, "addr", "add", AdminAddress6 + "/64", "dev", Bridge, "nodad"},
		{"ip", "-n", n, "link", "set", Bridge, "up"},
	} {
		if err := run(ctx, args...); err != nil {
			return fmt.Errorf("network of the lab: %w", err)
		}
	}
	cmd := l.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(counters)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("packet counters of the lab: %w: %s", err, out)
	}
	return nil
}

// Link plugs a host's network cable in or out.
func (l *Lab) Link(ctx context.Context, h Host, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return run(ctx, "ip", "-n", l.netns(), "link", "set", l.Port(h), state)
}

// Slow lets a host receive this many Mbit/s at most.
func (l *Lab) Slow(ctx context.Context, h Host, mbit int) error {
	return run(ctx, "tc", "-n", l.netns(), "qdisc", "replace", "dev", l.Port(h), "root", "tbf",
		"rate", fmt.Sprintf("%dmbit", mbit), "burst", "256kb", "latency", "50ms")
}

// Packets is what the hosts sent since the lab came up.
type Packets struct {
	Left  int64 // IPv4 and IPv6 packets to anywhere but the lab's subnet and the link itself
	Asked int64 // ARP requests for addresses outside the subnet
	NoWay int64 // what hosts' kernels refused since the hosts were switched on, having no route: attempts to get out
}

// LeftPackets returns how many packets of the hosts were on their way out of the lab since it came up.
func (l *Lab) LeftPackets(ctx context.Context) (int64, error) {
	p, err := l.Packets(ctx)
	return p.Left, err
}

// Packets reads the counters.
func (l *Lab) Packets(ctx context.Context) (p Packets, err error) {
	out, err := l.Command(ctx, "nft", "-j", "list", "counters", "table", "bridge", "lab").Output()
	if err != nil {
		return p, fmt.Errorf("packet counters of the lab: %w", err)
	}
	var answer struct {
		Nftables []struct {
			Counter *struct {
				Name    string
				Packets int64
			}
		}
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return p, fmt.Errorf("packet counters of the lab: %w", err)
	}
	found := 0
	for _, o := range answer.Nftables {
		if o.Counter == nil {
			continue
		}
		found++
		if o.Counter.Name == "asked" {
			p.Asked += o.Counter.Packets
		} else {
			p.Left += o.Counter.Packets
		}
	}
	if found != 3 {
		return p, fmt.Errorf("packet counters of the lab: %d of 3 found", found)
	}
	for _, h := range l.Hosts {
		n, err := l.refused(ctx, h)
		if err != nil {
			return p, err
		}
		p.NoWay += n
	}
	return p, nil
}

// refused sums the counters of packets without a route; a host that is off has none.
func (l *Lab) refused(ctx context.Context, h Host) (int64, error) {
	netns := fmt.Sprintf("%s-h%d", l.Name, h.Number)
	if exec.CommandContext(ctx, "ip", "-n", netns, "link", "show", "lo").Run() != nil {
		return 0, ctx.Err()
	}
	out, err := exec.CommandContext(ctx, "ip", "netns", "exec", netns, "cat", "/proc/net/snmp",
		"/proc/net/netstat").Output()
	if err != nil {
		return 0, fmt.Errorf("counters of %s: %w", h.Name, err)
	}
	var sum int64
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(names) != len(fields) || names[0] != fields[0] {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "OutNoRoutes" || name == "InNoRoutes" {
				n, _ := strconv.ParseInt(fields[i], 10, 64)
				sum += n
			}
		}
		names = nil
	}
	return sum, nil
}
