package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// A Family is the bundles of a manifest: one, or one for each of its variants.
type Family struct {
	File string
	// Projects are in the order of the manifest. Without variants there is one.
	Projects []*Project
}

// LoadFamily is LoadWith of every variant, or of the one that the options name. Errors name the variants that they are
// of; a problem of all variants is that of the manifest.
func LoadFamily(file string, o LoadOptions) (*Family, error) {
	data, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	names, err := VariantNames(file, data)
	if err != nil {
		return nil, err
	}
	if o.Variant != "" && !slices.Contains(names, o.Variant) {
		return nil, &InputError{fmt.Errorf("%s: %w", file, &manifest.VariantError{Name: o.Variant, Known: names})}
	}
	if o.Variant != "" || len(names) == 0 {
		names = []string{o.Variant}
	}
	f := &Family{File: file}
	var errs []error
	for _, name := range names {
		one := o
		one.Variant = name
		p, err := LoadWith(file, one)
		errs = append(errs, err)
		f.Projects = append(f.Projects, p)
	}
	if err := OfVariants(names, errs); err != nil {
		return nil, err
	}
	return f, f.unused()
}

// unused refuses values and groups that no variant uses. One variant alone may leave out what uses them.
func (f *Family) unused() error {
	if len(f.Projects) == 1 {
		return nil // without variants, load has said it
	}
	unused := f.Projects[0].unused
	for _, p := range f.Projects[1:] {
		unused = slices.DeleteFunc(slices.Clone(unused),
			func(one document.Problem) bool { return !slices.Contains(p.unused, one) })
	}
	return unused.Err()
}

// OfVariants joins the errors of variants. A line that is the same for all of them is said once, and the others name
// their variants.
func OfVariants(names []string, errs []error) error {
	joined := errors.Join(errs...)
	if joined == nil || len(names) == 1 && names[0] == "" {
		return joined
	}
	var lines []string
	of := map[string][]string{}
	for i, err := range errs {
		if err == nil {
			continue
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if of[line] == nil {
				lines = append(lines, line)
			}
			of[line] = append(of[line], names[i])
		}
	}
	for i, line := range lines {
		if len(of[line]) < len(names) || len(names) == 1 {
			lines[i] = "variant " + strings.Join(slices.Compact(of[line]), ", ") + ": " + line
		}
	}
	return &VariantsError{text: strings.Join(lines, "\n"), err: joined}
}

// A VariantsError is the problems of variants.
type VariantsError struct {
	text string
	err  error
}

// Error has a line for each problem, with its variants.
func (e *VariantsError) Error() string { return e.text }

// Unwrap returns the problems.
func (e *VariantsError) Unwrap() error { return e.err }

// Resolve makes a lock of the manifest, of all variants in one. What several variants ask for in the same way is looked
// up once, and each chart and file is searched once.
func (f *Family) Resolve(ctx context.Context, o Options) (l *manifest.Lock, err error) {
	if len(f.Projects) == 1 && f.Projects[0].Variant == "" {
		return f.Projects[0].Resolve(ctx, o)
	}
	s := newSession(f.Projects[0], o)
	if err := s.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.cache.Close()) }()
	s.memory = memoryDir(s.Cache)
	if !o.Update {
		s.keep = f.stale()
	}
	return cache.Mend(s.cache, s.dropped, func() (*manifest.Lock, error) { return f.resolve(ctx, s) })
}

// stale returns the lock beside the manifest if it can be read, and does not fit all variants; nil otherwise.
func (f *Family) stale() *manifest.Lock {
	fits := true
	for _, p := range f.Projects {
		l, err := p.Lock()
		if err != nil || l == nil {
			return nil
		}
		fits = fits && p.fits(l) == nil
	}
	if fits {
		return nil
	}
	return lockBeside(f.File, "")
}

// fits returns nil if a lock is that of the project as it is now.
func (p *Project) fits(l *manifest.Lock) error {
	stale := l.Covers(p.Manifest)
	if stale == nil {
		var err error
		if stale, err = p.checkInputs(l); err != nil {
			return err
		}
	}
	if stale != nil {
		return fmt.Errorf("%s: %w", LockFile(p.File), stale)
	}
	return nil
}

// Settle gives each variant its part of one lock: that beside the manifest if it fits all of them, else a new one. So
// all bundles of one run have the same content for the same tag. It does nothing for a single bundle.
func (f *Family) Settle(ctx context.Context, o Options) error {
	if len(f.Projects) == 1 {
		return nil
	}
	var names, stale []string
	var errs []error
	for _, p := range f.Projects {
		l, err := p.Lock()
		if err != nil {
			return err
		}
		if l == nil && o.Locked {
			return noLock(p.File)
		}
		names, errs = append(names, p.Variant), append(errs, nil)
		if l != nil {
			errs[len(errs)-1] = p.fits(l)
		}
		if l == nil || errs[len(errs)-1] != nil {
			stale = append(stale, p.Variant)
		}
	}
	if len(stale) == 0 || o.Locked {
		return OfVariants(names, errs)
	}
	if l := lockBeside(f.File, ""); len(l.Items) > 0 {
		newSession(f.Projects[0], o).note("%s does not fit variants %s, and is used for unchanged items only; run `kkbundle lock %s`",
			LockFile(f.File), strings.Join(stale, ", "), f.File)
	}
	joint, err := f.Resolve(ctx, o)
	if err != nil {
		return err
	}
	for _, p := range f.Projects {
		p.settled, _ = joint.Of(p.Variant)
	}
	return nil
}

// sources returns the sources of all variants, each once.
func (f *Family) sources() (list []sources.Source) {
	seen := map[string]bool{}
	for _, p := range f.Projects {
		for _, s := range p.Manifest.Sources {
			if id := identity(s); !seen[id] {
				seen[id] = true
				list = append(list, s)
			}
		}
	}
	return list
}

// NewFamilyQuestion is NewQuestionWith for all variants of a manifest: what any of them pins, each once.
func NewFamilyQuestion(file string, o LoadOptions) (*Question, error) {
	data, err := ReadLock(file)
	if err != nil {
		return nil, err
	}
	names, err := VariantNames(file, data)
	if manifest.IsLock(data) || err != nil || len(names) == 0 {
		return NewQuestionWith(file, o)
	}
	f, err := LoadFamily(file, o)
	if err != nil {
		return nil, err
	}
	q := &Question{Sources: f.sources()}
	seen := map[[3]string]bool{}
	for _, name := range names {
		o.Variant = name
		one, err := NewQuestionWith(file, o)
		if err != nil {
			return nil, fmt.Errorf("variant %s: %w", name, err)
		}
		for _, pin := range one.Pins {
			if id := [3]string{pin.Kind, pin.Ref, pin.Platform}; !seen[id] {
				seen[id] = true
				q.Pins = append(q.Pins, pin)
			}
		}
	}
	slices.SortFunc(q.Pins, func(a, b manifest.Pin) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Platform, b.Platform))
	})
	return q, nil
}
