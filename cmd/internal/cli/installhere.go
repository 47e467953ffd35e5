package cli

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/plain"
)

// agreeHere prints bundle and hosts, and asks for confirmation without --yes. It writes the inventory of this host for later
// commands, or to a temporary directory for a dry run, which asks nothing. Call done at the end.
func (g *globals) agreeHere(c *site.Here, o installOptions) (done func() error, err error) {
	done = func() error { return nil }
	g.Note("bundle: %s", plain.Line(c.Bundle))
	if c.Made == nil {
		g.Note("hosts:  those of %s", plain.Line(c.Inventory))
	} else {
		g.Note("hosts:  this one alone, as control plane, worker, etcd and image registry; there is no %s here", site.DefaultInventory)
		g.Note("        It takes containerd, the kubelet, a Kubernetes control plane and a registry with the bundle's images as services of this\n" +
			"        machine, turns swap off, and sets kernel parameters. kkbundle reset takes all of it away again.")
	}
	if !o.yes && !o.dryRun && !o.list {
		if err := g.Confirm("Install?"); err != nil {
			return done, err
		}
	}
	if c.Made == nil {
		return done, nil
	}
	if !o.dryRun && !o.list {
		f, err := os.OpenFile(c.Inventory, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return done, err
		}
		_, err = f.Write(c.Made)
		return done, errors.Join(err, f.Close())
	}
	dir, err := os.MkdirTemp("", "kkbundle-")
	if err != nil {
		return done, err
	}
	c.Inventory = filepath.Join(dir, site.DefaultInventory)
	return func() error { return os.RemoveAll(dir) }, os.WriteFile(c.Inventory, c.Made, 0o600)
}

// chooseInstall returns the bundle for install without arguments, and sets the inventory in o. Call done at the end.
func (g *globals) chooseInstall(o *installOptions) (bundle string, done func() error, err error) {
	c, err := site.FindHere(o.InventoryFile)
	if err != nil {
		return "", nil, err
	}
	if done, err = g.agreeHere(&c, *o); err != nil {
		return "", nil, errors.Join(err, done())
	}
	o.InventoryFile = c.Inventory
	return c.Bundle, done, nil
}
