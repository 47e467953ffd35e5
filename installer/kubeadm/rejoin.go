package kubeadm

import (
	"context"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A TakenError means that a host cannot join because a healthy etcd member already has its name or address.
type TakenError struct{ Host, Member, Peer string }

// Error names the host and the member.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%s is not a node, but etcd has the healthy member %s at %s: another machine has the host's name or address", e.Host, e.Member, e.Peer)
}

// Hint returns the remedy.
func (e *TakenError) Hint() string {
	return "correct the inventory, or remove that machine from the cluster first: kkbundle nodes delete " + e.Member
}

// removeOldMember removes the host's old member from kubeadm's etcd before the host joins. An interrupted join leaves
// one, and so does a control plane with a new disk. kubeadm does not add a second member with the host's address, and
// etcd does not start without the old member's data.
func removeOldMember(ctx context.Context, t *task.Host) error {
	if t.Site.Cluster.Etcd.Type != manifest.EtcdInternal || !t.Is(manifest.RoleControlPlane) {
		return nil
	}
	begun, err := Stop(ctx, t, marks.KubeadmBegun)
	if err != nil {
		return err
	}
	members, err := etcd.Members(ctx, t.Site)
	if err != nil {
		return err
	}
	peer := etcd.PeerURL(t)
	was := slices.DeleteFunc(members,
		func(m etcd.Member) bool { return m.Name != t.Name && !slices.Contains(m.PeerURLs, peer) })
	if len(was) == 0 {
		return nil
	}
	healthy, err := etcd.HealthyMembers(ctx, t.Site, was)
	if err != nil {
		return err
	}
	if len(healthy) > 0 && !begun {
		return &TakenError{Host: t.Name, Member: healthy[0].Name, Peer: peer}
	}
	for _, m := range was {
		if err := etcd.RemoveMember(ctx, t.Site, m); err != nil {
			return fmt.Errorf("remove the old etcd member of %s: %w", t.Name, err)
		}
	}
	return nil
}
