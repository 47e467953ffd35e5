package installer

import (
	"context"
	_ "embed" // scripts
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// managedLinks match the interfaces that the cluster makes, which the host's own network management is to leave alone.
func managedLinks(c *manifest.Cluster, network []string) []string {
	list := slices.Clone(network)
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
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
func linksTask(c *manifest.Cluster, network []string) Task {
	return settle(Task{
		Name:   "pod-links",
		Apart:  true,
		Roles:  []manifest.Role{manifest.RoleCluster},
		Leaves: Leaves{Undo: forgetLinks},
	}, func(ctx context.Context, t *Target) (setting, error) {
		patterns := managedLinks(c, network)
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
		if there, err := t.hasCommands(ctx, "ipset"); err != nil || !there {
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

//go:embed scripts/remove-bpf.sh
var removeBPFScript string

// removeBPF takes away what Cilium has pinned in the BPF file system, which others use, too, and its mount of control groups.
func removeBPF(ctx context.Context, t *Target) error {
	if err := t.unmount(ctx, "/run/cilium/", "/var/run/cilium/"); err != nil {
		return err
	}
	return t.command(ctx, host.Script("remove-bpf.sh", removeBPFScript)...)
}

// ownChains are what chains and rules begin with that Kubernetes and the pod networks make, or a comment of theirs does.
func ownChains() []string {
	return []string{
		"KUBE-", "CNI-", "FLANNEL-", "cali-", `"cali:`, "CILIUM_", "OLD_CILIUM_", "OVN-", "HYBRIDNET-", `"NodeLocal`,
	}
}
