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

// DNSTask lets the cluster's DNS live without name servers outside. kubeadm makes CoreDNS forward what it does not know
// to those of the host it runs on, and CoreDNS does not stay up if there are none or the host is its own. Without forwarding, it answers at
// once that it does not know.
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
						task.Because(ctx, "the cluster's DNS forwards, and %s has no nameserver that pods can ask", node.Name)
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

// HasNameserver tells whether the host has somewhere to ask for names outside that CoreDNS can ask, too. One on the host itself
// is none: CoreDNS would ask itself, and ends when it notices (https://coredns.io/plugins/loop/).
func HasNameserver(ctx context.Context, t *task.Host) (bool, error) {
	list, err := nameservers(ctx, t)
	return len(list) > 0 && !slices.ContainsFunc(list, isOnHost), err
}

// nameservers reads the file that the kubelet gives to CoreDNS: kubeadm chooses systemd-resolved's if that runs.
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

// corefile returns CoreDNS's configuration without forwarding, and whether it has any.
func corefile(ctx context.Context, t *task.Host) (text string, forwards bool, err error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "coredns")
	if err != nil {
		return "", false, err
	}
	text, forwards = withoutForward(config.Data["Corefile"])
	return text, forwards, nil
}

// withoutForward takes forwarding to the host's name servers out of a Corefile. Forwarding that somebody has pointed
// elsewhere stays.
func withoutForward(corefile string) (text string, changed bool) {
	var b strings.Builder
	depth := 0 // of braces inside the block that is left out
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
