package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// keepsEtcd reports whether install adds and removes the members of the cluster's etcd.
func keepsEtcd(c *manifest.Cluster) bool {
	return c.Etcd.Type != manifest.EtcdProvided && !c.Kubernetes.Distribution.RunsEtcd()
}

// HasMember tells whether the host, as far as the inventory says, has a member of the cluster's etcd.
func HasMember(r *task.Site, t *task.Host) bool {
	return keepsEtcd(r.Cluster) && t.Is(manifest.RoleEtcd)
}

// etcdSpeaker is the host that etcd is asked on: the control plane that speaks for the cluster, or a host of etcd that stays.
func etcdSpeaker(r *task.Site) (*task.Host, error) {
	if r.Cluster.Etcd.Type == manifest.EtcdInternal {
		return r.FirstControlPlane(), nil
	}
	for _, t := range r.Connected(manifest.RoleEtcd) {
		if t.Err == nil && !slices.Contains(r.Scope.Changing, t.Name) {
			return t, nil
		}
	}
	return nil, errors.New("no host of etcd that stays can be reached")
}

// MembersOfEtcd lists the members of the cluster's etcd.
func MembersOfEtcd(ctx context.Context, r *task.Site) ([]Member, error) {
	t, err := etcdSpeaker(r)
	if err != nil {
		return nil, err
	}
	return etcdMembers(ctx, t, Endpoint(t))
}

// IsInEtcd tells whether the cluster's etcd has a member of that name.
func IsInEtcd(ctx context.Context, r *task.Site, name string) (bool, error) {
	if !keepsEtcd(r.Cluster) || name == "" { // members that were never started have no name
		return false, nil
	}
	members, err := MembersOfEtcd(ctx, r)
	return slices.ContainsFunc(members, func(m Member) bool { return m.Name == name }), err
}

// RemoveMember takes a member out of the cluster's etcd.
func RemoveMember(ctx context.Context, r *task.Site, m Member) error {
	t, err := etcdSpeaker(r)
	if err != nil {
		return err
	}
	_, err = etcdctl(ctx, t, []string{Endpoint(t)}, "member", "remove", m.HexID())
	return err
}

// HealthyOf asks each member by itself, and returns those of the list that work. etcdctl fails where one is ill, and says which all the
// same.
func HealthyOf(ctx context.Context, r *task.Site, members []Member) ([]Member, error) {
	t, err := etcdSpeaker(r)
	if err != nil {
		return nil, err
	}
	out, err := etcdctl(ctx, t, []string{Endpoint(t)}, "endpoint", "health", "--cluster", "--write-out=json")
	var list []struct {
		Endpoint string `json:"endpoint"`
		Health   bool   `json:"health"`
	}
	if jsonErr := json.Unmarshal(out, &list); jsonErr != nil {
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

// QuorumWithout refuses to take members out of etcd if those that are left and healthy are not more than half of them:
// etcd would take no more changes.
func QuorumWithout(ctx context.Context, r *task.Site, going []*task.Host) error {
	return r.Distribution.QuorumWithout(ctx, r, going)
}

// Without is quorumWithout for an etcd whose members install adds and removes.
func Without(ctx context.Context, r *task.Site, going []*task.Host) error {
	known := func(t *task.Host) bool { return r.HostNamed(t.Name) != nil && !HasMember(r, t) }
	if !keepsEtcd(r.Cluster) || !slices.ContainsFunc(going, func(t *task.Host) bool { return !known(t) }) {
		return nil
	}
	members, err := MembersOfEtcd(ctx, r)
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
	healthy, err := HealthyOf(ctx, r, left)
	if err != nil || len(healthy) > len(left)/2 {
		return err
	}
	var ill []string
	for _, m := range left {
		if !slices.ContainsFunc(healthy, func(h Member) bool { return h.ID == m.ID }) {
			ill = append(ill, m.Name)
		}
	}
	return TooFewLeft(going[0], len(left), ill)
}

// TooFewLeft is why a member of etcd cannot go: of those that would be left, these do not work.
func TooFewLeft(t *task.Host, left int, ill []string) error {
	return &task.KeepError{
		Host:   t.Name,
		Reason: fmt.Sprintf("of the %d members of etcd that would be left, %d would be healthy, and more than half must be (not healthy: %s)", left, left-len(ill), strings.Join(ill, ", ")),
		Advice: "bring these members back, or delete their nodes first, with --unreachable if their hosts are gone",
	}
}

// LeaveTask removes the host's member from etcd, if it has one. A host of an etcd beside the cluster takes itself out when it is
// reset, unless it is gone.
func LeaveTask(gone bool) task.Task {
	its := func(ctx context.Context, t *task.Host) ([]Member, error) {
		if !keepsEtcd(t.Site.Cluster) || t.Site.Cluster.Etcd.Type == manifest.EtcdExternal && !gone {
			return nil, nil
		}
		members, err := MembersOfEtcd(ctx, t.Site)
		return slices.DeleteFunc(members, func(m Member) bool { return m.Name != t.Name }), err
	}
	return task.Task{
		Name: "etcd-member",
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			members, err := its(ctx, t)
			if len(members) > 0 {
				task.Because(ctx, "it is a member of etcd")
			}
			return len(members) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := QuorumWithout(ctx, t.Site, []*task.Host{t}); err != nil {
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
