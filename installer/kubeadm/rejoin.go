package kubeadm

import (
	"context"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A TakenError says that a host cannot join, because a member of etcd works in its place.
type TakenError struct{ Host, Member, Peer string }

// Error names the host and the member.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%s is no node, and etcd has the member %s at %s, which works: another machine has the host's name or address", e.Host, e.Member, e.Peer)
}

// Hint says what to do about it.
func (e *TakenError) Hint() string {
	return "correct the inventory, or take that machine out of the cluster first: kkbundle nodes delete " + e.Member
}

// forgetMember takes what a host was of the etcd that kubeadm runs out of it, before the host joins (again). An interrupted
// join leaves a member, and so does a control plane that came back with an empty disk. kubeadm adds none where there is one with the
// host's address, and etcd does not start as a member that it knows to have data, without them.
func forgetMember(ctx context.Context, t *task.Host) error {
	if t.Site.Cluster.Etcd.Type != manifest.EtcdInternal || !t.Is(manifest.RoleControlPlane) {
		return nil
	}
	begun, err := StopKubeadm(ctx, t, member.BegunPath)
	if err != nil {
		return err
	}
	members, err := etcd.MembersOfEtcd(ctx, t.Site)
	if err != nil {
		return err
	}
	peer := etcd.PeerURL(t)
	was := slices.DeleteFunc(members, func(m etcd.Member) bool { return m.Name != t.Name && !slices.Contains(m.PeerURLs, peer) })
	if len(was) == 0 {
		return nil
	}
	healthy, err := etcd.HealthyOf(ctx, t.Site, was)
	if err != nil {
		return err
	}
	if len(healthy) > 0 && !begun {
		return &TakenError{Host: t.Name, Member: healthy[0].Name, Peer: peer}
	}
	for _, m := range was {
		if err := etcd.RemoveMember(ctx, t.Site, m); err != nil {
			return fmt.Errorf("take what %s was out of etcd: %w", t.Name, err)
		}
	}
	return nil
}
