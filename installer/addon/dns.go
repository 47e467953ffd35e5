package addon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// DNSTask makes CoreDNS work without external name servers. kubeadm makes CoreDNS forward external names to the name
// servers of its host, and CoreDNS ends if there are none or the host asks itself. Without forwarding, queries for
// external names fail at once. Forwarding is put back when every node that CoreDNS can run on has a name server.
func DNSTask() task.Task {
	return task.Task{
		Name:  "cluster-dns",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			is, want, why, err := corefiles(ctx, t)
			if err == nil && is != want {
				task.Because(ctx, "%s", why)
			}
			return is == want, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			is, want, _, err := corefiles(ctx, t)
			if err != nil || is == want {
				return err
			}
			if forwardsToHost(want) {
				// A pod keeps the name servers that its host had when the pod was started. The configuration comes
				// afterwards, so that an interrupted run starts here again.
				if _, err := t.Kubectl(ctx, "rollout", "restart", "deployment/coredns", "--namespace="+
					kube.SystemNamespace); err != nil {
					return err
				}
			}
			return t.Kube().PatchConfigMap(ctx, kube.SystemNamespace, "coredns", "Corefile", want)
		},
	}
}

// corefiles returns CoreDNS's configuration as it is and as it should be, and why they differ.
func corefiles(ctx context.Context, t *task.Host) (is, want, why string, err error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "coredns")
	if err != nil {
		return "", "", "", err
	}
	is = config.Data["Corefile"]
	nodes, err := t.Kube().Nodes(ctx)
	if err != nil {
		return "", "", "", err
	}
	asked := 0
	for _, h := range t.Site.Connected(manifest.RoleCluster) {
		n := kube.FindNode(nodes, h.Name)
		if n == nil || !canRunDNS(n.Spec.Taints) {
			continue
		}
		has, err := HasNameserver(ctx, h)
		if err != nil {
			return "", "", "", err
		}
		if !has {
			return is, withoutForward(is), "CoreDNS forwards to its host's name servers, and " + h.Name +
				" has none that pods can reach", nil
		}
		asked++
	}
	if asked < len(slices.DeleteFunc(nodes, func(n corev1.Node) bool { return !canRunDNS(n.Spec.Taints) })) {
		return is, is, "", nil // a node that was not asked may have no name server
	}
	return is, withForward(is), "every node that CoreDNS can run on has a name server again", nil
}

// canRunDNS reports whether taints let CoreDNS' pods run. Taints of Kubernetes itself (node.kubernetes.io/) pass, and
// kubeadm's Deployment tolerates two more:
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/cmd/kubeadm/app/phases/addons/dns/manifests.go
func canRunDNS(taints []corev1.Taint) bool {
	return !slices.ContainsFunc(taints, func(t corev1.Taint) bool {
		tolerated := t.Key == kube.ControlPlaneLabel || t.Key == "CriticalAddonsOnly" ||
			strings.HasPrefix(t.Key, "node.kubernetes.io/")
		return !tolerated && t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// CheckNameservers refuses new hosts that would end the forwarding of external names for the whole cluster. t is a
// control plane.
func CheckNameservers(ctx context.Context, t *task.Host, fresh []*task.Host) error {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "coredns", "--ignore-not-found")
	if err != nil || !forwardsToHost(config.Data["Corefile"]) {
		return err
	}
	for _, h := range fresh {
		var taints []corev1.Taint
		for _, one := range h.Taints {
			taints = append(taints, corev1.Taint{
				Key: one.Key, Value: one.Value,
				Effect: corev1.TaintEffect(one.Effect),
			})
		}
		if !h.Is(manifest.RoleCluster) || !canRunDNS(taints) {
			continue
		}
		has, err := HasNameserver(ctx, h)
		if err != nil {
			return err
		}
		if !has {
			return plain.Advise(fmt.Errorf(
				"%s: no nameserver that pods can reach: CoreDNS can run on the host and would forward no name outside the cluster any more", h.Name),
				"name the site's nameserver in /etc/resolv.conf of "+h.Name+
					" (addresses of the host and of the cluster do not count), or give the host a taint that keeps CoreDNS away")
		}
	}
	return nil
}

// Forwards reports whether CoreDNS forwards names outside the cluster to its host's name servers.
func Forwards(ctx context.Context, t *task.Host) (bool, error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "coredns", "--ignore-not-found")
	return forwardsToHost(config.Data["Corefile"]), err
}

// HasNameserver reports whether the host has an external name server that CoreDNS can ask. An address of the host or
// of the cluster does not count: CoreDNS would ask itself, and ends when it detects the loop
// (https://coredns.io/plugins/loop/).
func HasNameserver(ctx context.Context, t *task.Host) (bool, error) {
	list, err := nameservers(ctx, t)
	return len(list) > 0 && !slices.ContainsFunc(list, t.Site.Cluster.AsksItself), err
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

// A removed line of a Corefile stays as a comment that begins with this.
const removedLine = "#kkbundle: "

const removedNote = "# Removed while a node has no nameserver that pods can reach. The next install with one on every node puts it back.\n"

// beginsForward reports whether a line of a Corefile begins forwarding to the host's name servers.
func beginsForward(line string) bool {
	return strings.Join(strings.Fields(strings.TrimRight(line, " {\r\n")), " ") == "forward . /etc/resolv.conf"
}

// forwardsToHost reports whether a Corefile forwards to the host's name servers.
func forwardsToHost(corefile string) bool { return withoutForward(corefile) != corefile }

// withoutForward turns forwarding to the host's name servers into comments. Other forwarding stays.
func withoutForward(corefile string) string {
	var b strings.Builder
	depth := 0 // of braces inside the removed block
	for line := range strings.Lines(corefile) {
		begins := depth == 0 && beginsForward(line)
		if begins {
			b.WriteString(removedNote)
		}
		if begins || depth > 0 {
			depth += strings.Count(line, "{") - strings.Count(line, "}")
			b.WriteString(removedLine)
		}
		b.WriteString(line)
	}
	return b.String()
}

// withForward puts back the lines that withoutForward removed.
func withForward(corefile string) string {
	var b strings.Builder
	for line := range strings.Lines(corefile) {
		if line != removedNote {
			b.WriteString(strings.TrimPrefix(line, removedLine))
		}
	}
	return b.String()
}
