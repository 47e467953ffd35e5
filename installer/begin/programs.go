package begin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/node/transfer"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// bundledPrograms examines the programs that the installation sends to hosts. Each file of the bundle is read once,
// as a stream.
func bundledPrograms(ctx context.Context, r *engine.Run) ([]precheck.Program, error) {
	if r.Bundle == nil || !r.Options.Selection.ReadsPrograms() {
		return nil, nil
	}
	var files []*programFile
	for _, step := range plan.Tasks(r.Cluster) {
		for _, place := range step.Files {
			var err error
			if files, err = addPrograms(ctx, r, files, step, place); err != nil {
				return nil, err
			}
		}
	}
	readers, ctx := errgroup.WithContext(ctx)
	readers.SetLimit(runtime.GOMAXPROCS(0)) // archives are unpacked
	for _, f := range files {
		readers.Go(func() error {
			if err := f.examine(ctx, r.Site); err != nil {
				return fmt.Errorf("read the programs of %s in the bundle: %w", f.programs[0].Component, err)
			}
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	var all []precheck.Program
	for _, f := range files {
		for _, p := range f.programs {
			all = append(all, p.Program)
		}
	}
	return all, nil
}

// A programFile is a file of the bundle with programs.
type programFile struct {
	digest   digest.Digest
	programs []*bundledProgram
}

// A bundledProgram is a program in a file of the bundle.
type bundledProgram struct {
	precheck.Program
	member transfer.Member // without a name, the program is the whole file
}

// addPrograms adds a task's program for each architecture of its hosts. Missing files are left out: checkBundle reports
// them.
func addPrograms(ctx context.Context, r *engine.Run, files []*programFile, step task.Task,
	place task.Place,
) ([]*programFile, error) {
	need := manifest.Need{Kind: manifest.ItemFile, Name: place.Component}
	on := Platforms(r, step, need)
	slices.Sort(on)
	for _, platform := range slices.Compact(on) {
		item, err := r.Component(need, platform)
		if _, lacks := errors.AsType[*task.MissingError](err); lacks {
			continue
		}
		if err != nil {
			return nil, err
		}
		content, err := r.Bundle.ContentOf(ctx, item)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(files, func(f *programFile) bool { return f.digest == content.Digest })
		if i < 0 {
			i = len(files)
			files = append(files, &programFile{digest: content.Digest})
		}
		files[i].programs = append(files[i].programs, &bundledProgram{
			Program: precheck.Program{
				Path: place.Path, Component: place.Component, For: strings.TrimPrefix(platform, "linux/"),
				Roles: step.Roles,
			},
			member: transfer.Member{Name: place.Member},
		})
	}
	return files, nil
}

// examine reads the requirements of the file's programs.
func (f *programFile) examine(ctx context.Context, s *task.Site) error {
	blob, err := s.Bundle.Blob(ctx, f.digest, 0)
	if err != nil {
		return err
	}
	defer func() { _ = blob.Close() }() // only read
	if f.programs[0].member.Name == "" {
		l, err := readLinkage(blob)
		for _, p := range f.programs {
			p.Linkage = l
		}
		return err
	}
	archive, err := transfer.Untar(blob)
	if err != nil {
		return err
	}
	left := slices.Clone(f.programs)
	for len(left) > 0 {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil // the transfer reports missing members
		}
		if err != nil {
			return err
		}
		matches := func(p *bundledProgram) bool { return p.member.Names(header.Name) }
		if !header.FileInfo().Mode().IsRegular() || !slices.ContainsFunc(left, matches) {
			continue
		}
		l, err := readLinkage(archive)
		if err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
		left = slices.DeleteFunc(left, func(p *bundledProgram) bool {
			if matches(p) {
				p.Linkage = l
			}
			return matches(p)
		})
	}
	return nil
}
