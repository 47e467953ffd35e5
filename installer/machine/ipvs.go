package machine

import (
	"context"
	"net/netip"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// ipvsLink is the interface that kube-proxy gives the services' addresses to.
const ipvsLink = "kube-ipvs0"

// ipvsLeaves is what kube-proxy leaves of its mode ipvs.
func ipvsLeaves(c *manifest.Cluster) task.Leaves {
	if c.Kubernetes.ProxyMode != manifest.ProxyIPVS {
		return task.Leaves{}
	}
	return task.Leaves{Undo: removeVirtualServers, Links: []string{ipvsLink}}
}

// removeVirtualServers takes Kubernetes' virtual servers and sets away, and leaves those of others, such as keepalived's.
// What belongs to kube-proxy has an address of its interface, or a NodePort.
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
	sets, err := t.Output(ctx, "ipset", "list", "-name")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(sets)) {
		if strings.HasPrefix(name, "KUBE-") {
			// Rules that use a set keep it; they go with Kubernetes' chains, and a set without rules does nothing.
			if _, err := t.Test(ctx, "ipset", "destroy", name); err != nil {
				return err
			}
		}
	}
	return nil
}

// The ports of services of type NodePort, unless the API server is told others.
const firstNodePort, lastNodePort = 30000, 32767

// virtualServers returns how ipvsadm names those of kube-proxy, from what it saves and the addresses of the interface.
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
