package packagesets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/rpm"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// errNoKeys means that no key is known for a repository whose signature the manifest does not waive.
var errNoKeys = errors.New(
	"no key checks its signature: set keyring to a file with its keys, or accept it without one with allowUnsigned: true")

// distributionKeys returns the keys of the known repositories: those of the manifest, else those on this machine; nil
// if the manifest accepts unsigned ones.
func (c *choice) distributionKeys() (*signature.Keys, error) {
	switch {
	case c.set.AllowUnsigned || len(c.known.Sources) == 0:
		return nil, nil
	case c.set.Keyring != "":
		return c.keys(c.set.Keyring)
	}
	for _, file := range c.known.Keyrings {
		if keys, err := c.keys(file); err == nil {
			return keys, nil
		}
	}
	return nil, fmt.Errorf("its keys are not on this machine: %s and set keyring to that file; allowUnsigned: true goes without signatures", c.known.Keys)
}

// repositoryKeys returns the keys of a repository of the manifest; nil if the manifest accepts an unsigned one.
func (c *choice) repositoryKeys(r manifest.Repository) (*signature.Keys, error) {
	switch {
	case r.Keyring != "":
		return c.keys(r.Keyring)
	case r.AllowUnsigned:
		return nil, nil
	}
	return nil, errNoKeys
}

// checkSignatures downloads the packages whose lists are unsigned and checks their own signatures. The error lists all
// problems.
func (c *choice) checkSignatures(ctx context.Context, chosen []*packages.Package) error {
	var (
		group errgroup.Group
		errs  = make([]error, len(chosen))
	)
	group.SetLimit(c.jobs)
	for i, p := range chosen {
		if p.Keys == nil {
			continue
		}
		group.Go(func() error {
			if errs[i] = context.Cause(ctx); errs[i] == nil {
				errs[i] = c.checkSignature(ctx, p)
			}
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

func (c *choice) checkSignature(ctx context.Context, p *packages.Package) (err error) {
	file, err := c.files.Open(ctx, p.Address, p.Size, p.Sum)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	err = rpm.CheckSignature(upstream.Stopping(ctx, file), p, time.Now())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, signature.ErrExpired):
		err = fmt.Errorf("%w: use the distribution's newer keys, or, for a snapshot, set allowExpired: true", err)
	default:
		err = fmt.Errorf("%w: add its publisher's key to keyring, or use another mirror", err)
	}
	return fmt.Errorf("package %s: %w", p.File(), err)
}

// verification returns what vouches for a package.
func (c *choice) verification(p *packages.Package) manifest.Verification {
	switch {
	case c.verified != "":
		return c.verified
	case p.Unsigned:
		return manifest.VerifiedUnsigned
	}
	return manifest.VerifiedSignature
}
