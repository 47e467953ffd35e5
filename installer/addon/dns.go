package addon

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// DNSTask makes CoreDNS work without external name servers. kubeadm makes CoreDNS forward external names to the name
// servers of its host, and CoreDNS ends if there are none or the host asks itself. Without forwarding, queries for
// external names fail at once.
func DNSTask() task.Task {
	return task.Task{
		Name:  "cluster-dns",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			for _, node := range t.Site.Connected(manifest.RoleCluster) {
				has, err := HasNameserver(ctx, node)
				if err != nil {
					return false, err
				}
				if !has {
					_, forwards, err := corefile(ctx, t)
					if forwards {
						task.Because(ctx, "CoreDNS forwards to its host's name servers, and %s has none that pods can reach", node.Name)
					}
					return !forwards, err
				}
			}
			return true, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			corefile, _, err := corefile(ctx, t)
			if err != nil {
				return err
			}
			return t.Kube().PatchConfigMap(ctx, kube.SystemNamespace, "coredns", "Corefile", corefile)
		},
	}
}

// HasNameserver reports whether the host has an external name server that CoreDNS can ask. A loopback address does not
// count: CoreDNS would ask itself, and ends when it detects the loop (https://coredns.io/plugins/loop/).
func HasNameserver(ctx context.Context, t *task.Host) (bool, error) {
	list, err := nameservers(ctx, t)
	return len(list) > 0 && !slices.ContainsFunc(list, isOnHost), err
}

// nameservers reads the resolv.conf that the kubelet passes to CoreDNS: kubeadm selects that of systemd-resolved if it
// runs.
func nameservers(ctx context.Context, t *task.Host) ([]string, error) {
	file := "/etc/resolv.conf"
	resolved, err := t.Test(ctx, "systemctl", "is-active", "--quiet", "systemd-resolved.service")
	if err != nil {
		return nil, err
	}
	if resolved {
		file = "/run/systemd/resolve/resolv.conf"
	}
	data, err := t.Read(ctx, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []string
	for line := range strings.Lines(string(data)) {
		const name, address = 0, 1
		if fields := strings.Fields(line); len(fields) > address && fields[name] == "nameserver" {
			list = append(list, fields[address])
		}
	}
	return list, err
}

func isOnHost(nameserver string) bool {
	a, err := netip.ParseAddr(nameserver)
	return err == nil && a.Unmap().IsLoopback()
}

// corefile returns CoreDNS's configuration without forwarding, and reports whether the current one forwards.
func corefile(ctx context.Context, t *task.Host) (text string, forwards bool, err error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "coredns")
	if err != nil {
		return "", false, err
	}
	text, forwards = withoutForward(config.Data["Corefile"])
	return text, forwards, nil
}

// withoutForward removes forwarding to the host's name servers from a Corefile. Other forwarding stays.
func withoutForward(corefile string) (text string, changed bool) {
	var b strings.Builder
	depth := 0 // of braces inside the removed block
	for line := range strings.Lines(corefile) {
		begins := depth == 0 && strings.Join(strings.Fields(strings.TrimRight(line, " {\r\n")), " ") == "forward . /etc/resolv.conf"
		if begins || depth > 0 {
			changed = true
			depth += strings.Count(line, "{") - strings.Count(line, "}")
			continue
		}
		b.WriteString(line)
	}
	return b.String(), changed
}
