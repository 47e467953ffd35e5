package fetch

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A Program is kkbundle's own program on this machine.
type Program struct {
	Path     string
	Platform scalar.Platform
}

// orRunning returns the program that runs in the place of an empty one.
func (p Program) orRunning() (Program, error) {
	if p.Path != "" {
		return p, nil
	}
	path, err := os.Executable()
	if err != nil {
		return p, fmt.Errorf("the file of this kkbundle is not known; write path or url under self: %w", err)
	}
	p.Platform, err = scalar.PlatformString(runtime.GOOS + "/" + runtime.GOARCH)
	return Program{path, p.Platform}, err
}

// programEntries returns kkbundle's own programs of a manifest.
func (s *session) programEntries(b *manifest.Bundle) (list []entry) {
	for _, p := range b.Programs() {
		list = append(list, entry{
			manifest.ItemTool, p.Ref(), p.Platform,
			func(ctx context.Context) ([]manifest.Pin, error) { return alone(s.files.resolveProgram(ctx, p)) },
		})
	}
	return list
}

// resolveProgram pins kkbundle's own program. A lock does not name the file of the one that builds.
func (f *files) resolveProgram(ctx context.Context, p manifest.Program) (manifest.Pin, error) {
	if !p.Builds {
		pin, err := f.resolve(ctx, p.File, p.Platform)
		pin.Kind = manifest.ItemTool
		if err != nil {
			return pin, err
		}
		return pin, f.checkCached(ctx, pin)
	}
	pin := manifest.Pin{
		Kind: manifest.ItemTool, Ref: p.Ref(), Name: manifest.ProgramName, Platform: p.Platform, Mode: programMode,
	}
	own, err := f.self.orRunning()
	if err != nil {
		return pin, err
	}
	if own.Platform != p.Platform {
		return pin, fmt.Errorf("this kkbundle is for %s: write self: {url: https://…{arch}} of a release, or path of a program, for %s",
			own.Platform, p.Platform)
	}
	desc, err := f.local.store(ctx, own.Path, "", false)
	pin.Digest, pin.Size, pin.Verified = desc.Digest, desc.Size, manifest.VerifiedFirstUse
	return pin, err
}

// checkCached is checkProgram for a file that the store has.
func (f *files) checkCached(ctx context.Context, pin manifest.Pin) error {
	_, ok, err := f.cache.Store.Stat(ctx, pin.Digest)
	if err != nil {
		return &upstream.StoreError{Cause: err}
	}
	if !ok {
		return nil
	}
	return f.checkProgram(ctx, pin)
}

// checkProgram refuses a file that is no program, or one for another platform. The program that builds is neither.
func (f *files) checkProgram(ctx context.Context, pin manifest.Pin) error {
	if pin.URL == "" && strings.HasPrefix(pin.Ref, localPrefix) {
		return nil
	}
	head, err := f.cache.Head(ctx, pin.Digest, content.MaxHead)
	if err != nil {
		return err
	}
	address := cmp.Or(pin.URL, pin.Ref)
	doubt, err := content.Check(head, pin, address, false)
	if doubt != "" {
		err = fmt.Errorf("%s", doubt)
	}
	runs := func(p string) bool { return strings.HasPrefix(pin.Platform+"/", p+"/") }
	if is := content.Platforms(head); err == nil && len(is) > 0 && !slices.ContainsFunc(is, runs) {
		err = fmt.Errorf("%s is a program for %s and not for %s: name the one for it; {os} and {arch} in url and path stand for each platform's",
			address, strings.Join(is, " and "), pin.Platform)
	}
	return err
}

// planProgram returns the plan of kkbundle's own program, whose content is checked before it is carried.
func (f *files) planProgram(ctx context.Context, pin manifest.Pin) (*plan, error) {
	if err := f.checkCached(ctx, pin); err != nil {
		return nil, err
	}
	p, err := f.plan(pin)
	if err != nil {
		return nil, err
	}
	for i, b := range p.blobs {
		p.blobs[i].fetch = func(ctx context.Context) error {
			if err := b.fetch(ctx); err != nil {
				return err
			}
			return f.checkProgram(ctx, pin)
		}
	}
	return p, nil
}

const programMode = 0o755
