// Package deb reads repositories of Debian packages: their signed lists, and the packages' dependencies.
package deb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

const maxRelease = 16 << 20 // bytes; Debian's largest has 200 KB

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
func (r Repository) Load(ctx context.Context, files packages.Files, u *packages.Universe, now time.Time) (notes []string, err error) {
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
	if err != nil {
		return err
	}
	lists, err := r.lists(rel)
	if err != nil {
		return err
	}
	for _, name := range lists {
		list, s, ok := rel.list(name)
		if !ok {
			return fmt.Errorf("the Release has no %s", name)
		}
		address := dir + "/" + list
		if rel.byHash {
			address = dir + "/" + path.Join(path.Dir(list), "by-hash/SHA256", s.sha256)
		}
		if err := r.read(ctx, files, u, listFile{address, list, s, base}); err != nil {
			return fmt.Errorf("%s: %w", list, err)
		}
	}
	return nil
}

func (r Repository) release(ctx context.Context, files packages.Files, dir string, now time.Time) (*release, error) {
	text, name := []byte(nil), "InRelease"
	var err error
	if r.Keys != nil {
		if text, err = files.Get(ctx, dir+"/InRelease", maxRelease); err == nil {
			text, err = signedText(text, r.Keys, now)
		}
	} else {
		name = "Release"
		text, err = files.Get(ctx, dir+"/Release", maxRelease)
	}
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
		name := c + "/binary-" + r.Arch + "/Packages"
		if _, _, ok := rel.list(name); !ok {
			return nil, fmt.Errorf("there is no component %s for %s; the components are %s", c, r.Arch, strings.Join(rel.components, ", "))
		}
		all = append(all, name)
		name = c + "/binary-all/Packages"
		if _, _, ok := rel.list(name); ok && rel.hasAll() {
			all = append(all, name)
		}
	}
	return all, nil
}

// A listFile is one list of packages.
type listFile struct {
	address, name string
	sum           sum
	base          string // base of the packages' paths
}

func (r Repository) read(ctx context.Context, files packages.Files, u *packages.Universe, l listFile) (err error) {
	raw, err := files.Open(ctx, l.address, l.sum.size, l.sum.sha256)
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
		"Package", "Version", "Architecture", "Essential", "Priority", "Filename", "Size", "SHA256",
		"Depends", "Pre-Depends", "Recommends", "Conflicts", "Breaks", "Provides",
	}, func(f map[string]string) error {
		if a := f["Architecture"]; a != arch && a != "all" {
			return nil
		}
		size, err := strconv.ParseInt(f["Size"], 10, 64)
		file := path.Clean("/" + f["Filename"])[1:]
		p := &packages.Package{
			Name: f["Package"], Version: f["Version"], Arch: share(f["Architecture"]), Size: size, SHA256: strings.ToLower(f["SHA256"]),
			Address:  packages.Join(base, file),
			Base:     f["Essential"] == "yes" || f["Priority"] == "required",
			Requires: share(join(f["Pre-Depends"], f["Depends"])), Recommends: share(f["Recommends"]), Conflicts: share(join(f["Conflicts"], f["Breaks"])),
		}
		if err != nil || !strings.HasSuffix(file, ".deb") {
			return fmt.Errorf("package %.60q has an invalid size %.20q or file %.60q", p.Name, f["Size"], f["Filename"])
		}
		provides, err := Format{Arch: arch}.relations(f["Provides"])
		if err != nil {
			return fmt.Errorf("package %s: %w", p.Name, err)
		}
		for _, d := range provides {
			p.Provides = append(p.Provides, d.AnyOf...)
		}
		if err := p.Check(); err != nil {
			return err
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
