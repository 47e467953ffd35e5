package machine

import (
	"context"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// managedLinks returns patterns for the cluster's interfaces, which the host's network management must ignore.
func managedLinks(c *manifest.Cluster, podLinks []string) []string {
	list := slices.Clone(podLinks)
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		list = append(list, ipvsLink)
	}
	if c.DNS.NodeLocal {
		list = append(list, kube.NodeDNSLink)
	}
	return list
}

// Files that list the interfaces which NetworkManager and systemd-networkd ignore.
const (
	NetworkManagerFile = "/etc/NetworkManager/conf.d/kkbundle.conf"
	NetworkdFile       = "/etc/systemd/network/10-kkbundle.network"
)

// LinksTask makes NetworkManager and systemd-networkd ignore the pods' interfaces. They would remove addresses and
// routes that they did not add (https://docs.tigera.io/calico/latest/operations/troubleshoot/troubleshooting).
func LinksTask(c *manifest.Cluster, podLinks []string) task.Task {
	return task.Settle(task.Task{
		Name:        "pod-links",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Leaves:      task.Leaves{Undo: releaseLinks},
	}, func(ctx context.Context, t *task.Host) (task.Setting, error) {
		patterns := managedLinks(c, podLinks)
		if len(patterns) == 0 {
			return task.Setting{}, nil
		}
		var s task.Setting
		var reload [][]string
		if runs, err := t.Test(ctx, "systemctl", "is-active", "--quiet", "NetworkManager.service"); err != nil {
			return s, err
		} else if runs {
			s.Files = append(s.Files, task.File{
				Path: NetworkManagerFile, Mode: 0o644,
				Data: []byte(networkManagerText(patterns)),
			})
			reload = append(reload, []string{"systemctl", "reload", "NetworkManager.service"})
		}
		if runs, err := t.Test(ctx, "systemctl", "is-active", "--quiet", "systemd-networkd.service"); err != nil {
			return s, err
		} else if runs {
			text := hostfile.Author + ": the pods' interfaces.\n[Match]\nName=" + strings.Join(patterns, " ") +
				"\n\n[Link]\nUnmanaged=yes\n"
			s.Files = append(s.Files, task.File{Path: NetworkdFile, Mode: 0o644, Data: []byte(text)})
			reload = append(reload, []string{"networkctl", "reload"})
		}
		s.Apply = func(ctx context.Context, t *task.Host) error {
			for _, args := range reload {
				// systemd before 244 cannot reload; it reads the file at its next start, and the interfaces do not
				// exist yet.
				if _, err := t.Test(ctx, args...); err != nil {
					return err
				}
			}
			return nil
		}
		return s, nil
	})
}

// networkManagerText names the interfaces twice. An operator's list of unmanaged devices in a file that
// NetworkManager reads later replaces ours; the section of devices stays. The list is what NetworkManager of any
// version knows.
func networkManagerText(patterns []string) string {
	devices := "interface-name:" + strings.Join(patterns, ";interface-name:")
	return hostfile.Author + ": the pods' interfaces.\n[keyfile]\nunmanaged-devices+=" + devices +
		"\n\n[device-kkbundle]\nmatch-device=" + devices + "\nmanaged=0\n"
}

func releaseLinks(ctx context.Context, t *task.Host) error {
	for _, one := range []struct {
		file   string
		reload []string
	}{
		{NetworkManagerFile, []string{"systemctl", "reload", "NetworkManager.service"}},
		{NetworkdFile, []string{"networkctl", "reload"}},
	} {
		there, err := t.Test(ctx, "test", "-e", one.file)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if err := t.Run(ctx, "rm", "-f", one.file); err != nil {
			return err
		}
		if _, err := t.Test(ctx, one.reload...); err != nil {
			return err
		}
	}
	return nil
}

// UndoAll returns a function that calls all of them until one fails.
func UndoAll(each ...func(ctx context.Context, t *task.Host) error) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		for _, undo := range each {
			if err := undo(ctx, t); err != nil {
				return err
			}
		}
		return nil
	}
}

// DropTables removes nftables tables by name.
func DropTables(name string) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		for _, family := range []string{"ip", "ip6"} {
			if _, err := t.Test(ctx, "nft", "delete", "table", family, name); err != nil {
				return err
			}
		}
		return nil
	}
}

// DropSets destroys IP sets by prefix, after Kubernetes' chains: the kernel keeps a set that rules use.
func DropSets(prefix string) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		if err := t.RemoveRules(ctx, IsKubernetes); err != nil {
			return err
		}
		return destroySets(ctx, t, prefix)
	}
}

// destroySets destroys IP sets by prefix. The helper does it: the pods of a network and of kube-proxy have an ipset
// program, and most hosts do not.
func destroySets(ctx context.Context, t *task.Host, prefix string) error {
	return t.Run(ctx, host.HelperPath, "destroy-sets", prefix)
}

// IsKubernetes reports whether a word of a rule, a chain or a comment, belongs to Kubernetes or a pod network.
func IsKubernetes(word string) bool {
	own := slices.ContainsFunc([]string{"KUBE-", "CNI-", `"NodeLocal`},
		func(prefix string) bool { return strings.HasPrefix(word, prefix) })
	return own || network.All().IsRule(word)
}
