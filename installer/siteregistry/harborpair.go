package siteregistry

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// harborCopiesTask makes two Harbors copy to each other what is pushed later, to whichever of them. The bundle's images are pushed to
// both before.
func harborCopiesTask() task.Task {
	return task.Task{
		Name:  "harbor-copies",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: task.Reached,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			all := true
			err := eachOtherHarbor(t, func(c *harbor.Client, to harbor.Remote) error {
				ok, err := c.Copies(ctx, to)
				if !ok {
					all = false
					task.Because(ctx, "Harbor does not copy to %s", to.Name)
				}
				return err
			})
			if err != nil && t.Site.DryRun { // it is not there yet
				return false, nil
			}
			return all, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return eachOtherHarbor(t, func(c *harbor.Client, to harbor.Remote) error { return c.CopyTo(ctx, to) })
		},
	}
}

// eachOtherHarbor calls do with this host's Harbor and each of the others, which all have the same administrator's password.
func eachOtherHarbor(t *task.Host, do func(c *harbor.Client, to harbor.Remote) error) error {
	client, connections, err := HarborClient(t)
	if err != nil {
		return err
	}
	defer connections.CloseIdleConnections()
	own, err := ownRegistry(t)
	if err != nil {
		return err
	}
	var errs []error
	for _, other := range t.Site.RegistryHosts() {
		if other == t {
			continue
		}
		errs = append(errs, do(client, harbor.Remote{
			Name: "kkbundle-" + other.Name, URL: "https://" + registryAddress(t.Site, other.IP),
			Username: own.Username, Password: own.Password, CA: string(own.CA),
		}))
	}
	return errors.Join(errs...)
}
