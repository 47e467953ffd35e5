package machine

import (
	"context"
	"net/netip"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// ipvsLink is kube-proxy's interface with the services' addresses.
const ipvsLink = "kube-ipvs0"

// ipvsLeaves returns the remains of kube-proxy's mode ipvs.
func ipvsLeaves(c *manifest.Cluster) task.Leaves {
	if c.Kubernetes.ProxyMode != manifest.ProxyIPVS {
		return task.Leaves{}
	}
	return task.Leaves{Undo: removeVirtualServers, Links: []string{ipvsLink}}
}

// removeVirtualServers removes kube-proxy's virtual servers and sets, and keeps others, such as keepalived's.
// kube-proxy's servers have an address of its interface or a NodePort.
func removeVirtualServers(ctx context.Context, t *task.Host) error {
	there, err := t.Test(ctx, "test", "-e", "/sys/class/net/"+ipvsLink)
	if err != nil || !there {
		return err
	}
	addresses, err := t.Output(ctx, "ip", "-oneline", "address", "show", "dev", ipvsLink)
	if err != nil {
		return err
	}
	servers, err := t.Output(ctx, "ipvsadm", "--save", "--numeric")
	if err != nil {
		return err
	}
	for _, args := range virtualServers(string(servers), string(addresses)) {
		if err := t.Run(ctx, append([]string{"ipvsadm", "--delete-service"}, args...)...); err != nil {
			return err
		}
	}
	return destroySets(ctx, t, "KUBE-") // Kubernetes' chains are removed later; a set without rules has no effect
}

// The API server's default range of NodePorts.
const firstNodePort, lastNodePort = 30000, 32767

// virtualServers returns ipvsadm's arguments for kube-proxy's servers, from ipvsadm --save and the interface's
// addresses.
func virtualServers(saved, addresses string) [][]string {
	own := map[netip.Addr]bool{}
	for line := range strings.Lines(addresses) {
		for _, word := range strings.Fields(line) {
			if p, err := netip.ParsePrefix(word); err == nil {
				own[p.Addr()] = true
			}
		}
	}
	var list [][]string
	for line := range strings.Lines(saved) {
		words := strings.Fields(line) // -A -t ADDRESS:PORT -s rr …
		if len(words) < 3 || words[0] != "-A" {
			continue
		}
		at, err := netip.ParseAddrPort(words[2])
		if err == nil && (own[at.Addr()] || at.Port() >= firstNodePort && at.Port() <= lastNodePort) {
			list = append(list, []string{words[1], at.String()})
		}
	}
	return list
}
