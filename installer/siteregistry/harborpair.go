package installer

import (
	"context"
	"errors"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/harbor"
)

// harborCopiesTask makes two Harbors copy to each other what is pushed later, to whichever of them. The bundle's images are pushed to
// both before.
func harborCopiesTask() Task {
	return Task{
		Name:  "harbor-copies",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Where: Reached,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			all := true
			err := t.eachOtherHarbor(func(c *harbor.Client, to harbor.Remote) error {
				ok, err := c.Copies(ctx, to)
				if !ok {
					all = false
					because(ctx, "Harbor does not copy to %s", to.Name)
				}
				return err
			})
			if err != nil && t.run.DryRun { // it is not there yet
				return false, nil
			}
			return all, err
		},
		Do: func(ctx context.Context, t *Target) error {
			return t.eachOtherHarbor(func(c *harbor.Client, to harbor.Remote) error { return c.CopyTo(ctx, to) })
		},
	}
}

// eachOtherHarbor calls do with this host's Harbor and each of the others, which all have the same administrator's password.
func (t *Target) eachOtherHarbor(do func(c *harbor.Client, to harbor.Remote) error) error {
	client, connections, err := t.harborClient()
	if err != nil {
		return err
	}
	defer connections.CloseIdleConnections()
	own, err := t.ownRegistry()
	if err != nil {
		return err
	}
	var errs []error
	for _, other := range t.run.registryHosts() {
		if other == t {
			continue
		}
		errs = append(errs, do(client, harbor.Remote{
			Name: "kkbundle-" + other.Name, URL: "https://" + t.run.registryAddress(other.IP),
			Username: own.username, Password: own.password, CA: string(own.ca),
		}))
	}
	return errors.Join(errs...)
}
