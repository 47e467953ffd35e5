package siteregistry

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// harborReplicationTask makes both Harbors replicate later pushes to each other, and what they could not while the
// other was away. The bundle's images are pushed to both.
func harborReplicationTask() task.Task {
	return task.Task{
		Name:  "harbor-copies",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			all := true
			err := forEachPeer(t, func(c *harbor.Client, to harbor.Remote, reached bool) error {
				ok, err := c.Copies(ctx, to)
				if err != nil || !ok {
					all = false
					task.Because(ctx, "Harbor does not replicate to %s", to.Name)
					return err
				}
				missed, err := c.Missed(ctx, to)
				if missed && reached {
					all = false
					task.Because(ctx, "a replication to %s failed", to.Name)
				}
				return err
			})
			if err != nil && t.Site.DryRun { // Harbor is not installed yet
				return false, nil
			}
			return all, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return forEachPeer(t, func(c *harbor.Client, to harbor.Remote, _ bool) error { return c.CopyTo(ctx, to) })
		},
	}
}

// forEachPeer calls do with this host's Harbor and each of the others, and whether this run reached the other's host.
// All have the same administrator's password.
func forEachPeer(t *task.Host, do func(c *harbor.Client, to harbor.Remote, reached bool) error) error {
	client, connections, err := HarborClient(t)
	if err != nil {
		return err
	}
	defer connections.CloseIdleConnections()
	own, err := pushAccess(t)
	if err != nil {
		return err
	}
	var errs []error
	for _, other := range t.Site.RegistryHosts() {
		if other == t {
			continue
		}
		errs = append(errs, do(client, harbor.Remote{
			Name: "kkbundle-" + other.Name, URL: "https://" + addressWithPort(t.Site, other.IP),
			Username: own.Username, Password: own.Password, CA: string(own.CA),
		}, other.Conn != nil))
	}
	return errors.Join(errs...)
}
