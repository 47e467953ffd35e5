package installer

import (
	"context"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// linksOf are the interfaces that a pod network makes on hosts: those that Reset removes by name, and patterns of all of them,
// which who manages the host's interfaces is to leave alone.
func linksOf(network string) (names, patterns []string) {
	switch network {
	case flannel:
		return []string{"flannel.1", "flannel-v6.1"}, []string{"cni0", "flannel*", "veth*"}
	case calico:
		names = []string{"vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali"}
		return names, append([]string{"cali*", "tunl*"}, names...)
	case cilium:
		return []string{"cilium_host", "cilium_vxlan", "cilium_geneve", "cilium_wg0"}, []string{"cilium*", "lxc*"} // cilium_net is the other end
	case hybridnet:
		return nil, []string{"*.vxlan*", "h_*"}
	case kubeOVN:
		return []string{"ovn0", "ovs-system", "br-int", "genev_sys_6081", "vxlan_sys_4789", "mirror0"}, []string{"ovn0", "ovs-system", "br-int", "genev_sys_*", "vxlan_sys_*", "mirror0", "*_h"}
	}
	return nil, nil
}

// managedLinks are the patterns of what the pods' network of the cluster makes.
func managedLinks(c *manifest.Cluster) []string {
	var list []string
	for _, name := range []string{c.CNI.Type, c.CNI.With} {
		_, patterns := linksOf(name)
		list = append(list, patterns...)
	}
	if c.Kubernetes.ProxyMode == "ipvs" {
		list = append(list, "kube-ipvs0")
	}
	if c.DNS.NodeLocal {
		list = append(list, nodeDNSLink)
	}
	return list
}

// Where those who manage a host's interfaces read what is not theirs.
const (
	networkManagerFile = "/etc/NetworkManager/conf.d/kkbundle.conf"
	networkdFile       = "/etc/systemd/network/10-kkbundle.network"
)

// linksTask keeps NetworkManager and systemd-networkd, where they run, away from the pods' interfaces: they would take addresses
// and routes from them that they did not give (https://docs.tigera.io/calico/latest/operations/troubleshoot/troubleshooting).
func linksTask(c *manifest.Cluster) Task {
	return settle(Task{
		Name:   "pod-links",
		Apart:  true,
		Roles:  []manifest.Role{manifest.RoleCluster},
		Leaves: Leaves{Undo: forgetLinks},
	}, func(ctx context.Context, t *Target) (setting, error) {
		patterns := managedLinks(c)
		if len(patterns) == 0 {
			return setting{}, nil
		}
		var s setting
		var reload [][]string
		if runs, err := t.test(ctx, "systemctl", "is-active", "--quiet", "NetworkManager.service"); err != nil {
			return s, err
		} else if runs {
			text := hostfile.Author + ": the pods' interfaces.\n[keyfile]\nunmanaged-devices=interface-name:" + strings.Join(patterns, ";interface-name:") + "\n"
			s.files = append(s.files, textFile{networkManagerFile, 0o644, []byte(text)})
			reload = append(reload, []string{"systemctl", "reload", "NetworkManager.service"})
		}
		if runs, err := t.test(ctx, "systemctl", "is-active", "--quiet", "systemd-networkd.service"); err != nil {
			return s, err
		} else if runs {
			text := hostfile.Author + ": the pods' interfaces.\n[Match]\nName=" + strings.Join(patterns, " ") + "\n\n[Link]\nUnmanaged=yes\n"
			s.files = append(s.files, textFile{networkdFile, 0o644, []byte(text)})
			reload = append(reload, []string{"networkctl", "reload"})
		}
		s.apply = func(ctx context.Context, t *Target) error {
			for _, args := range reload {
				// systemd before 244 cannot reload; it reads the file when it starts again, and there are no such interfaces yet.
				if _, err := t.test(ctx, args...); err != nil {
					return err
				}
			}
			return nil
		}
		return s, nil
	})
}

func forgetLinks(ctx context.Context, t *Target) error {
	for _, one := range []struct {
		file   string
		reload []string
	}{{networkManagerFile, []string{"systemctl", "reload", "NetworkManager.service"}}, {networkdFile, []string{"networkctl", "reload"}}} {
		there, err := t.test(ctx, "test", "-e", one.file)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if err := t.command(ctx, "rm", "-f", one.file); err != nil {
			return err
		}
		if _, err := t.test(ctx, one.reload...); err != nil {
			return err
		}
	}
	return nil
}

// networkLeaves are what a pod network's own pods make on hosts. Their packet filter chains go with Kubernetes' own.
func networkLeaves(network string) Leaves {
	names, _ := linksOf(network)
	l := Leaves{Links: names}
	switch network {
	case calico:
		l.Paths = []string{"/var/lib/calico", "/var/run/calico", "/var/log/calico", "/opt/cni/bin/calico", "/opt/cni/bin/calico-ipam", "/etc/calico"}
		l.Undo = undoAll(dropTables("calico"), dropSets("cali"))
	case cilium:
		l.Paths = []string{"/var/run/cilium", "/var/lib/cilium", "/opt/cni/bin/cilium-cni"}
		l.Undo = removeBPF
	case hybridnet:
		l.Paths = []string{"/var/run/hybridnet", "/opt/cni/bin/hybridnet"}
		l.Undo = undoAll(dropSets("hybr"), dropSets("cali"))
	case kubeOVN:
		l.Paths = []string{
			"/var/run/openvswitch", "/var/run/ovn", "/etc/openvswitch", "/var/log/openvswitch", "/var/log/ovn", "/var/log/kube-ovn",
			"/etc/origin/openvswitch", "/etc/origin/ovn", "/etc/origin/ovs_ipsec_keys", "/opt/cni/bin/kube-ovn",
		}
		l.Undo = dropSets("ovn")
	}
	return l
}

func undoAll(each ...func(ctx context.Context, t *Target) error) func(ctx context.Context, t *Target) error {
	return func(ctx context.Context, t *Target) error {
		for _, undo := range each {
			if err := undo(ctx, t); err != nil {
				return err
			}
		}
		return nil
	}
}

// dropTables removes nftables' tables of a name.
func dropTables(name string) func(ctx context.Context, t *Target) error {
	return func(ctx context.Context, t *Target) error {
		for _, family := range []string{"ip", "ip6"} {
			if _, err := t.test(ctx, "nft", "delete", "table", family, name); err != nil {
				return err
			}
		}
		return nil
	}
}

// dropSets removes the sets of addresses whose names begin with a word. Rules that use one keep it: their chains are taken away
// first.
func dropSets(prefix string) func(ctx context.Context, t *Target) error {
	return func(ctx context.Context, t *Target) error {
		if there, err := t.test(ctx, "sh", "-c", "command -v ipset"); err != nil || !there {
			return err
		}
		if err := t.removeRules(ctx, isKubernetes); err != nil {
			return err
		}
		sets, err := t.output(ctx, "ipset", "list", "-name")
		if err != nil {
			return err
		}
		for _, name := range strings.Fields(string(sets)) {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			if _, err := t.test(ctx, "ipset", "destroy", name); err != nil {
				return err
			}
		}
		return nil
	}
}

// removeBPF takes away what Cilium has pinned in the BPF file system, which others use, too, and its mount of control groups.
func removeBPF(ctx context.Context, t *Target) error {
	if err := t.unmount(ctx, "/run/cilium/", "/var/run/cilium/"); err != nil {
		return err
	}
	const script = `for p in /sys/fs/bpf/cilium /sys/fs/bpf/tc/globals/cilium_*; do [ ! -e "$p" ] || rm -rf -- "$p" || exit 1; done`
	return t.command(ctx, "sh", "-c", script)
}

// ownChains are what chains and rules begin with that Kubernetes and the pod networks make, or a comment of theirs does.
func ownChains() []string {
	return []string{
		"KUBE-", "CNI-", "FLANNEL-", "cali-", `"cali:`, "CILIUM_", "OLD_CILIUM_", "OVN-", "HYBRIDNET-", `"NodeLocal`,
	}
}
