// Package deb reads repositories of Debian packages: their signed lists, and the packages' dependencies.
package deb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

const (
	maxRelease  = 16 << 20 // bytes; Debian's largest has 200 KB
	maxUnlisted = 64 << 20 // bytes of a list without a Release, which is read as a whole
)

// A Repository is one suite of an archive.
type Repository struct {
	URL        string   // of the archive, such as https://deb.debian.org/debian
	Suite      string   // such as bookworm; a suite that ends in a slash is a flat repository in that directory
	Components []string // empty means all
	Arch       string   // in Debian's spelling
	// Keys must have signed it; nil accepts an unsigned repository.
	Keys *signature.Keys
	// AllowExpired accepts expired metadata.
	AllowExpired bool
}

func isFlat(suite string) bool { return strings.HasSuffix(suite, "/") }

// String names the suite.
func (r Repository) String() string { return r.URL + " " + r.Suite }

// Load adds the repository's packages for its architecture to a universe, and returns remarks. It keeps only the fields
// needed to choose.
func (r Repository) Load(ctx context.Context, files packages.Files, u *packages.Universe,
	now time.Time,
) (notes []string, err error) {
	if err := r.load(ctx, files, u, now); err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	if r.Keys == nil {
		notes = append(notes, r.String()+" is unsigned")
	}
	return notes, nil
}

func (r Repository) load(ctx context.Context, files packages.Files, u *packages.Universe, now time.Time) error {
	base := strings.TrimSuffix(r.URL, "/")
	dir := base + "/dists/" + strings.Trim(r.Suite, "/")
	if isFlat(r.Suite) {
		dir = strings.TrimSuffix(base+"/"+strings.Trim(strings.TrimPrefix(r.Suite, "./"), "/"), "/")
	}
	rel, err := r.release(ctx, files, dir, now)
	if errors.Is(err, errNoRelease) && r.Keys == nil {
		return r.unlisted(ctx, files, u, dir, base)
	}
	if err != nil {
		return err
	}
	lists, err := r.lists(rel)
	if err != nil {
		return err
	}
	for _, name := range lists {
		if err := r.readList(ctx, files, u, rel, listFile{dir: dir, name: name, base: base}); err != nil {
			return err
		}
	}
	return nil
}

// readList reads the best form of a list that the server has. Mirrors lack some of those that a Release names.
func (r Repository) readList(ctx context.Context, files packages.Files, u *packages.Universe, rel *release,
	l listFile,
) error {
	name, err := l.name, fmt.Errorf("the Release has no %s", l.name)
	for _, form := range packages.ListForms() {
		s, ok := rel.sums[name+form]
		if !ok {
			continue
		}
		l.name = name + form
		addresses := []string{l.dir + "/" + l.name}
		if rel.byHash {
			addresses = append([]string{l.dir + "/" + path.Join(path.Dir(l.name), "by-hash", s.sum.Kind(), s.sum.String())},
				addresses...)
		}
		for _, address := range addresses {
			err = r.read(ctx, u, l, func() (io.ReadCloser, error) { return files.Open(ctx, address, s.size, s.sum) })
			if !errors.Is(err, fs.ErrNotExist) {
				return wrap(l.name, err)
			}
		}
	}
	return wrap(l.name, err)
}

func wrap(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// unlisted reads the lists of a repository without a Release, as dpkg-scanpackages makes them. It has no signature and
// no sums.
func (r Repository) unlisted(ctx context.Context, files packages.Files, u *packages.Universe, dir, base string) error {
	names := []string{"Packages"}
	if !isFlat(r.Suite) {
		names = nil
		for _, c := range r.Components {
			names = append(names, c+"/binary-"+r.Arch+"/Packages", c+"/binary-all/Packages")
		}
	}
	found := false
	for _, name := range names {
		for _, form := range packages.ListForms() {
			data, err := files.Get(ctx, dir+"/"+name+form, maxUnlisted)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = r.read(ctx, u, listFile{name: name + form, base: base},
					func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
			}
			if err != nil {
				return wrap(name+form, err)
			}
			found = true
			break
		}
	}
	if !found {
		return errors.New("there is neither a Release nor a list of packages (Packages): check the address and the suite")
	}
	return nil
}

// errNoRelease means that a repository has neither InRelease nor Release.
var errNoRelease = errors.New(
	"there is neither InRelease nor Release with Release.gpg, so nothing is signed: check the address and the suite; " +
		"allowUnsigned: true reads a repository without")

func (r Repository) release(ctx context.Context, files packages.Files, dir string, now time.Time) (*release, error) {
	text, name, err := r.releaseText(ctx, files, dir, now)
	var rel *release
	if err == nil {
		rel, err = parseRelease(text)
	}
	if err == nil {
		rel.allowExpired, rel.signed = r.AllowExpired, r.Keys != nil
		err = rel.check(r.Suite, now)
	}
	if err == nil {
		err = rel.architecture(r.Arch)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return rel, nil
}

// releaseText returns the text of a Release: of InRelease, else of Release, which Release.gpg signs. An unsigned
// repository may have either.
func (r Repository) releaseText(ctx context.Context, files packages.Files, dir string,
	now time.Time,
) (text []byte, name string, err error) {
	names := []string{"InRelease", "Release"}
	if r.Keys == nil {
		slices.Reverse(names)
	}
	for _, name = range names {
		if text, err = files.Get(ctx, dir+"/"+name, maxRelease); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, name, fmt.Errorf("%w: %w", errNoRelease, err)
	case err != nil:
		return nil, name, err
	case name == "InRelease" && r.Keys == nil:
		text, err = signature.Unverified(text)
	case name == "InRelease":
		text, err = r.Keys.Clear(text, now)
	case r.Keys != nil:
		var sig []byte
		if sig, err = files.Get(ctx, dir+"/Release.gpg", maxRelease); err != nil {
			return nil, "Release.gpg", err
		}
		name, err = "Release.gpg", r.Keys.Detached(text, sig, now)
	}
	return text, name, explained(err)
}

// lists returns the lists of packages for this architecture.
func (r Repository) lists(rel *release) ([]string, error) {
	if isFlat(r.Suite) {
		return []string{"Packages"}, nil
	}
	components := r.Components
	if len(components) == 0 {
		components = rel.components
	}
	var all []string
	for _, c := range components {
		own, common := c+"/binary-"+r.Arch+"/Packages", c+"/binary-all/Packages"
		if rel.has(own) {
			all = append(all, own)
		}
		if rel.has(common) && (rel.hasAll() || !rel.has(own)) {
			all = append(all, common)
		}
		if !rel.has(own) && !rel.has(common) {
			return nil, fmt.Errorf("there is no component %s for %s; the components are %s", c, r.Arch,
				strings.Join(rel.components, ", "))
		}
	}
	return all, nil
}

// A listFile is one list of packages.
type listFile struct {
	dir  string // of the Release
	name string // from there
	base string // base of the packages' paths
}

func (r Repository) read(ctx context.Context, u *packages.Universe, l listFile,
	open func() (io.ReadCloser, error),
) (err error) {
	raw, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	in, err := packages.Unpack(l.name, raw)
	if err != nil {
		return err
	}
	defer in.Close()
	return Read(in, r.Arch, l.base, func(p *packages.Package) error {
		p.Unsigned = r.Keys == nil
		u.Add(p)
		return ctx.Err()
	})
}

// Read reads a list of packages (Packages) and adds those of one architecture. Their paths are relative to base.
func Read(in io.Reader, arch, base string, add func(*packages.Package) error) error {
	known := map[string]string{} // texts shared by many packages
	share := func(s string) string {
		if have, ok := known[s]; ok {
			return have
		}
		known[s] = s
		return s
	}
	return paragraphs(in, []string{
		"Package", "Version", "Architecture", "Essential", "Priority", "Filename", "Size", "SHA256", "SHA512",
		"Depends", "Pre-Depends", "Recommends", "Conflicts", "Breaks", "Provides",
	}, func(f map[string]string) error {
		if a := f["Architecture"]; a != arch && a != "all" {
			return nil
		}
		size, err := strconv.ParseInt(f["Size"], 10, 64)
		file := path.Clean("/" + f["Filename"])[1:]
		p := &packages.Package{
			Name: f["Package"], Version: f["Version"], Arch: share(f["Architecture"]), Size: size,
			Address:  packages.Join(base, file),
			Base:     f["Essential"] == "yes" || f["Priority"] == "required",
			Requires: share(join(f["Pre-Depends"], f["Depends"])), Recommends: share(f["Recommends"]),
			Conflicts: share(join(f["Conflicts"], f["Breaks"])),
		}
		for _, kind := range []string{"SHA512", "SHA256"} { // locks have SHA256
			if s, ok := packages.ParseSum(f[kind]); ok && s.Kind() == kind {
				p.Sum = s
			}
		}
		if err != nil || !strings.HasSuffix(file, ".deb") {
			p.Unusable = fmt.Errorf("package %.60q has an invalid size %.20q or file %.60q", p.Name, f["Size"],
				f["Filename"])
		}
		provides, err := Format{Arch: arch}.relations(f["Provides"])
		if err != nil {
			p.Unusable = fmt.Errorf("package %.60q: %w", p.Name, err)
		}
		for _, d := range provides {
			p.Provides = append(p.Provides, d.AnyOf...)
		}
		if !p.Check() {
			return nil
		}
		return add(p)
	})
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}
