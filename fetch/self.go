package fetch

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/kkbundle/kkbundle/fetch/content"
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
		if err != nil || pin.Verified != manifest.VerifiedFirstUse {
			return pin, err
		}
		return pin, f.checkProgram(ctx, pin)
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

// checkProgram refuses a file that is no program.
func (f *files) checkProgram(ctx context.Context, pin manifest.Pin) error {
	head, err := f.cache.Head(ctx, pin.Digest, content.MaxHead)
	if err != nil {
		return err
	}
	doubt, err := content.Check(head, pin, cmp.Or(pin.URL, pin.Ref), false)
	if doubt != "" {
		err = fmt.Errorf("%s", doubt)
	}
	return err
}

const programMode = 0o755
