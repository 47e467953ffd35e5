package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// keepsEtcd reports whether install adds and removes the members of the cluster's etcd.
func keepsEtcd(c *manifest.Cluster) bool {
	return c.Etcd.Type != manifest.EtcdProvided && !c.Kubernetes.Distribution.RunsEtcd()
}

// hasMember tells whether the host, as far as the inventory says, has a member of the cluster's etcd.
func (r *Site) hasMember(t *Target) bool { return keepsEtcd(r.cluster) && t.Is(manifest.RoleEtcd) }

// etcdSpeaker is the host that etcd is asked on: the control plane that speaks for the cluster, or a host of etcd that stays.
func (r *Site) etcdSpeaker() (*Target, error) {
	if r.cluster.Etcd.Type == manifest.EtcdInternal {
		return r.firstControlPlane(), nil
	}
	for _, t := range r.connected(manifest.RoleEtcd) {
		if t.failure == nil && !slices.Contains(r.scope.Changing, t.Name) {
			return t, nil
		}
	}
	return nil, errors.New("no host of etcd that stays can be reached")
}

// membersOfEtcd lists the members of the cluster's etcd.
func (r *Site) membersOfEtcd(ctx context.Context) ([]etcdMember, error) {
	t, err := r.etcdSpeaker()
	if err != nil {
		return nil, err
	}
	return t.etcdMembers(ctx, t.etcdEndpoint())
}

// isInEtcd tells whether the cluster's etcd has a member of that name.
func (r *Site) isInEtcd(ctx context.Context, name string) (bool, error) {
	if !keepsEtcd(r.cluster) || name == "" { // members that were never started have no name
		return false, nil
	}
	members, err := r.membersOfEtcd(ctx)
	return slices.ContainsFunc(members, func(m etcdMember) bool { return m.Name == name }), err
}

// removeMember takes a member out of the cluster's etcd.
func (r *Site) removeMember(ctx context.Context, m etcdMember) error {
	t, err := r.etcdSpeaker()
	if err != nil {
		return err
	}
	_, err = t.etcdctl(ctx, []string{t.etcdEndpoint()}, "member", "remove", m.hexID())
	return err
}

// healthyOf asks each member by itself, and returns those of the list that work. etcdctl fails where one is ill, and says which all the
// same.
func (r *Site) healthyOf(ctx context.Context, members []etcdMember) ([]etcdMember, error) {
	t, err := r.etcdSpeaker()
	if err != nil {
		return nil, err
	}
	out, err := t.etcdctl(ctx, []string{t.etcdEndpoint()}, "endpoint", "health", "--cluster", "--write-out=json")
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
	isIll := func(m etcdMember) bool {
		return !slices.ContainsFunc(m.ClientURLs, func(url string) bool { return works[url] })
	}
	return slices.DeleteFunc(slices.Clone(members), isIll), nil
}

// quorumWithout refuses to take members out of etcd if those that are left and healthy are not more than half of them:
// etcd would take no more changes.
func (r *Site) quorumWithout(ctx context.Context, going []*Target) error {
	return r.distribution.quorumWithout(ctx, r, going)
}

// etcdWithout is quorumWithout for an etcd whose members install adds and removes.
func etcdWithout(ctx context.Context, r *Site, going []*Target) error {
	known := func(t *Target) bool { return r.target(t.Name) != nil && !r.hasMember(t) }
	if !keepsEtcd(r.cluster) || !slices.ContainsFunc(going, func(t *Target) bool { return !known(t) }) {
		return nil
	}
	members, err := r.membersOfEtcd(ctx)
	if err != nil {
		return err
	}
	leaves := func(m etcdMember) bool {
		return slices.ContainsFunc(going, func(t *Target) bool { return t.Name == m.Name })
	}
	if !slices.ContainsFunc(members, leaves) {
		return nil
	}
	left := slices.DeleteFunc(members, func(m etcdMember) bool { return leaves(m) || m.Learner })
	healthy, err := r.healthyOf(ctx, left)
	if err != nil || len(healthy) > len(left)/2 {
		return err
	}
	var ill []string
	for _, m := range left {
		if !slices.ContainsFunc(healthy, func(h etcdMember) bool { return h.ID == m.ID }) {
			ill = append(ill, m.Name)
		}
	}
	return tooFewLeft(going[0], len(left), ill)
}

// tooFewLeft is why a member of etcd cannot go: of those that would be left, these do not work.
func tooFewLeft(t *Target, left int, ill []string) error {
	return &KeepError{
		t.Name,
		fmt.Sprintf("of the %d members of etcd that would be left, %d would be healthy, and more than half must be (not healthy: %s)", left, left-len(ill), strings.Join(ill, ", ")),
		"bring these members back, or delete their nodes first, with --unreachable if their hosts are gone",
	}
}

// etcdLeaveTask removes the host's member from etcd, if it has one. A host of an etcd beside the cluster takes itself out when it is
// reset, unless it is gone.
func etcdLeaveTask(gone bool) Task {
	its := func(ctx context.Context, t *Target) ([]etcdMember, error) {
		if !keepsEtcd(t.run.cluster) || t.run.cluster.Etcd.Type == manifest.EtcdExternal && !gone {
			return nil, nil
		}
		members, err := t.run.membersOfEtcd(ctx)
		return slices.DeleteFunc(members, func(m etcdMember) bool { return m.Name != t.Name }), err
	}
	return Task{
		Name: "etcd-member",
		Done: func(ctx context.Context, t *Target) (bool, error) {
			members, err := its(ctx, t)
			if len(members) > 0 {
				because(ctx, "it is a member of etcd")
			}
			return len(members) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			if err := t.run.quorumWithout(ctx, []*Target{t}); err != nil {
				return err
			}
			members, err := its(ctx, t)
			for _, m := range members {
				err = errors.Join(err, t.run.removeMember(ctx, m))
			}
			return err
		},
	}
}
