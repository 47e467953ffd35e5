package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const maxChains = 100

// packetFilter reads the chains of nftables, which iptables-nft uses as well, and of legacy iptables. Each is queried
// only if its modules are in the kernel: a query would load them.
func (c kernelCollector) packetFilter(ctx context.Context) {
	f := &c.facts.PacketFilter
	if c.facts.UID != 0 || c.root != "/" {
		return // only root may query the kernel
	}
	var errs []error
	if c.inKernel("nf_tables", "CONFIG_NF_TABLES") {
		chains, err := nftChains()
		errs = append(errs, err)
		for _, chain := range chains {
			f.add(chain.FilterChain, chain.drops)
		}
	}
	for _, old := range []struct{ names, family, program string }{
		{"/proc/net/ip_tables_names", "ip", "iptables"}, {"/proc/net/ip6_tables_names", "ip6", "ip6tables"},
	} {
		if !slices.Contains(strings.Fields(c.text(old.names)), "filter") {
			continue
		}
		program := old.program + "-legacy-save"
		if c.find(program) == "" {
			program = old.program + "-save"
		}
		out, err := c.run(ctx, program, "-t", "filter")
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", program, err))
		}
		f.legacy(old.family, string(out))
	}
	if err := errors.Join(errs...); err != nil {
		c.problem("packet filter", err)
		*f = PacketFilter{}
		return
	}
	slices.Sort(f.Foreign)
	f.Foreign = slices.Compact(f.Foreign)
	f.Foreign = f.Foreign[:min(len(f.Foreign), maxChains)]
	f.Known = true
}

// inKernel reports whether a module is loaded or built in.
func (c kernelCollector) inKernel(module, option string) bool {
	found := false
	c.scan("/proc/modules", func(line string) {
		name, _, _ := strings.Cut(line, " ")
		found = found || name == module
	})
	c.scan("/lib/modules/"+c.facts.Kernel+"/modules.builtin",
		func(line string) { found = found || moduleName(line) == module })
	return found || c.readAnyConfig([]string{option})[option] == "y"
}

// clusterChain matches the chains of Kubernetes and of its networks.
//
//nolint:gochecknoglobals // a compiled regular expression
var clusterChain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(KUBE-|cali-|CILIUM_|OLD_CILIUM_|FLANNEL-|FLANNEL_|CNI-|WEAVE|OVN-)`)
})

func (f *PacketFilter) add(chain FilterChain, drops bool) {
	const most = 1000 // kube-proxy creates chains for each service
	if drops && len(f.Drops) < maxChains {
		f.Drops = append(f.Drops, chain)
	}
	if len(f.Foreign) < most && clusterChain().MatchString(chain.Name) {
		f.Foreign = append(f.Foreign, chain.Name)
	}
}

// legacy parses iptables-save's output for a table: a line ":INPUT DROP [0:0]" for each chain.
func (f *PacketFilter) legacy(family, text string) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || !strings.HasPrefix(words[0], ":") {
			continue
		}
		name := words[0][1:]
		f.add(FilterChain{Family: family, Table: "filter", Name: name, Hook: strings.ToLower(name)}, words[1] == "DROP")
	}
}

type nftChain struct {
	FilterChain
	drops bool
}

// Attributes of a chain (linux/netfilter/nf_tables.h).
const (
	nftChainTable, nftChainName, nftChainHook, nftChainPolicy = 1, 3, 4, 5
	nftHookNumber                                             = 1
	nfDrop                                                    = 0
)

// nftChains reads all chains of this network namespace from the kernel.
func nftChains() (chains []nftChain, err error) {
	err = askNetfilter(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, nil,
		func(family byte, attributes []byte) { chains = append(chains, chain(family, attributes)) })
	return chains, err
}

func chain(family byte, attributes []byte) nftChain {
	families := map[byte]string{
		unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_ARP: "arp",
		unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_IPV6: "ip6",
	}
	one := nftChain{FilterChain: FilterChain{
		Family: families[family], Table: cString(attribute(attributes, nftChainTable)),
		Name: cString(attribute(attributes, nftChainName)),
	}}
	hooks := []string{"prerouting", "input", "forward", "output", "postrouting"}
	number := attribute(attribute(attributes, nftChainHook), nftHookNumber)
	if policy := attribute(attributes, nftChainPolicy); len(number) == 4 && len(policy) == 4 {
		if n := binary.BigEndian.Uint32(number); int(n) < len(hooks) {
			one.Hook = hooks[n]
		}
		one.drops = binary.BigEndian.Uint32(policy) == nfDrop
	}
	return one
}
