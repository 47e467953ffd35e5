package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

// managesEtcd reports whether install adds and removes etcd members.
func managesEtcd(c *manifest.Cluster) bool {
	return c.Etcd.Type != manifest.EtcdProvided && !c.Kubernetes.Distribution.RunsEtcd()
}

// ManagesMember reports whether the inventory makes the host a member of an etcd that install manages.
func ManagesMember(r *task.Site, t *task.Host) bool {
	return managesEtcd(r.Cluster) && t.Is(manifest.RoleEtcd)
}

// speaker returns the host to run etcdctl on: the first control plane, or an etcd host that this run does not change.
func speaker(r *task.Site) (*task.Host, error) {
	if r.Cluster.Etcd.Type == manifest.EtcdInternal {
		return r.FirstControlPlane(), nil
	}
	for _, t := range r.Connected(manifest.RoleEtcd) {
		if t.Err == nil && !slices.Contains(r.Scope.Changing, t.Name) {
			return t, nil
		}
	}
	return nil, errors.New("no remaining etcd host can be reached")
}

// Members lists the members of the cluster's etcd.
func Members(ctx context.Context, r *task.Site) ([]Member, error) {
	t, err := speaker(r)
	if err != nil {
		return nil, err
	}
	return listMembers(ctx, t, Endpoint(t))
}

// IsMember reports whether etcd has a member with this name.
func IsMember(ctx context.Context, r *task.Site, name string) (bool, error) {
	if !managesEtcd(r.Cluster) || name == "" { // members that were never started have no name
		return false, nil
	}
	members, err := Members(ctx, r)
	return slices.ContainsFunc(members, func(m Member) bool { return m.Name == name }), err
}

// RemoveMember removes a member from the cluster's etcd.
func RemoveMember(ctx context.Context, r *task.Site, m Member) error {
	t, err := speaker(r)
	if err != nil {
		return err
	}
	_, err = etcdctl(ctx, t, []string{Endpoint(t)}, "member", "remove", m.HexID())
	return err
}

// HealthyMembers returns the healthy members of the list. etcdctl fails if one is unhealthy, but still lists all.
func HealthyMembers(ctx context.Context, r *task.Site, members []Member) ([]Member, error) {
	t, err := speaker(r)
	if err != nil {
		return nil, err
	}
	out, err := etcdctl(ctx, t, []string{Endpoint(t)}, "endpoint", "health", "--cluster", "--write-out=json")
	var list []struct {
		Endpoint string `json:"endpoint"`
		Health   bool   `json:"health"`
	}
	if jsonErr := capped.JSON(out, capped.MaxValues, &list); jsonErr != nil {
		return nil, errors.Join(err, fmt.Errorf("health of etcd: %w", jsonErr))
	}
	works := map[string]bool{}
	for _, one := range list {
		works[one.Endpoint] = one.Health
	}
	isIll := func(m Member) bool {
		return !slices.ContainsFunc(m.ClientURLs, func(url string) bool { return works[url] })
	}
	return slices.DeleteFunc(slices.Clone(members), isIll), nil
}

// QuorumWithout returns an error if removing hosts would leave etcd without a healthy majority: it would refuse writes.
func QuorumWithout(ctx context.Context, r *task.Site, going []*task.Host) error {
	known := func(t *task.Host) bool { return r.HostNamed(t.Name) != nil && !ManagesMember(r, t) }
	if !managesEtcd(r.Cluster) || !slices.ContainsFunc(going, func(t *task.Host) bool { return !known(t) }) {
		return nil
	}
	members, err := Members(ctx, r)
	if err != nil {
		return err
	}
	leaves := func(m Member) bool {
		return slices.ContainsFunc(going, func(t *task.Host) bool { return t.Name == m.Name })
	}
	if !slices.ContainsFunc(members, leaves) {
		return nil
	}
	left := slices.DeleteFunc(members, func(m Member) bool { return leaves(m) || m.Learner })
	healthy, err := HealthyMembers(ctx, r, left)
	if err != nil || len(healthy) > len(left)/2 {
		return err
	}
	var ill []string
	for _, m := range left {
		if !slices.ContainsFunc(healthy, func(h Member) bool { return h.ID == m.ID }) {
			ill = append(ill, m.Name)
		}
	}
	return QuorumLoss(going[0], len(left), ill)
}

// QuorumLoss returns the error for a removal that leaves too few healthy members; ill names the unhealthy ones.
func QuorumLoss(t *task.Host, left int, ill []string) error {
	return &task.KeepError{
		Host:   t.Name,
		Reason: fmt.Sprintf("only %d of the %d remaining etcd members would be healthy, more than half must be (not healthy: %s)", left-len(ill), left, strings.Join(ill, ", ")),
		Advice: "repair these members, or delete their nodes first, with --unreachable if their hosts are gone",
	}
}

// LeaveTask removes the host's member from etcd. Reset does that for external etcd, unless the host is gone.
func LeaveTask(gone bool) task.Task {
	its := func(ctx context.Context, t *task.Host) ([]Member, error) {
		if !managesEtcd(t.Site.Cluster) || t.Site.Cluster.Etcd.Type == manifest.EtcdExternal && !gone {
			return nil, nil
		}
		members, err := Members(ctx, t.Site)
		return slices.DeleteFunc(members, func(m Member) bool { return m.Name != t.Name }), err
	}
	return task.Task{
		Name: "etcd-member",
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			members, err := its(ctx, t)
			if len(members) > 0 {
				task.Because(ctx, "the host is a member of etcd")
			}
			return len(members) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := t.Site.Distribution.QuorumWithout(ctx, t.Site, []*task.Host{t}); err != nil {
				return err
			}
			members, err := its(ctx, t)
			for _, m := range members {
				err = errors.Join(err, RemoveMember(ctx, t.Site, m))
			}
			return err
		},
	}
}
