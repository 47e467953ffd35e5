// Package rpm reads repositories of RPM packages: repodata, and the packages' dependencies.
package rpm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

const maxSignature = 1 << 20 // bytes

// A Repository is a directory with repodata.
type Repository struct {
	URL  string
	Arch string // in rpm's spelling
	// Keys must have signed its metadata or, if the metadata has no signature, each package; nil accepts an unsigned
	// repository.
	Keys *signature.Keys
	// Base reports whether every system has the package.
	Base func(name string) bool

	documents map[string]document
}

// String returns its address.
func (r *Repository) String() string { return r.URL }

// Load adds the repository's packages for its architecture to a universe, and returns remarks.
func (r *Repository) Load(ctx context.Context, files packages.Files, u *packages.Universe,
	now time.Time,
) (notes []string, err error) {
	if notes, err = r.load(ctx, files, u, now); err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	return notes, nil
}

func (r *Repository) base() string { return strings.TrimSuffix(r.URL, "/") }

func (r *Repository) load(ctx context.Context, files packages.Files, u *packages.Universe,
	now time.Time,
) (notes []string, err error) {
	data, err := files.Get(ctx, r.base()+"/repodata/repomd.xml", maxRepomd)
	if err != nil {
		return nil, err
	}
	signed, err := r.signed(ctx, files, data, now)
	if err != nil {
		return nil, fmt.Errorf("repomd.xml.asc: %w", err)
	}
	switch {
	case r.Keys == nil:
		notes = append(notes, r.URL+" is unsigned")
	case !signed:
		notes = append(notes, r.URL+
			" has no repomd.xml.asc: the selected packages are downloaded, and each must be signed itself")
	}
	if r.documents, err = parseRepomd(data); err != nil {
		return nil, fmt.Errorf("repomd.xml: %w", err)
	}
	if _, modular := r.documents["modules"]; modular {
		notes = append(notes, r.URL+" has modules: their packages are used only if there is no other")
	}
	return notes, r.document(ctx, files, "primary", func(in io.Reader) error {
		return readPrimary(in, r.Arch, r.base(), r.isBase, func(p *packages.Package) error {
			if p.Unsigned = r.Keys == nil; !signed {
				p.Keys = r.Keys
			}
			u.Add(p)
			return ctx.Err()
		})
	})
}

// signed reports whether one of the keys signed the metadata. A signature that is not valid is an error; a missing one
// is not.
func (r *Repository) signed(ctx context.Context, files packages.Files, repomd []byte, now time.Time) (bool, error) {
	if r.Keys == nil {
		return false, nil
	}
	sig, err := files.Get(ctx, r.base()+"/repodata/repomd.xml.asc", maxSignature)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = r.Keys.Detached(repomd, sig, now)
	}
	return err == nil, err
}

func (r *Repository) isBase(name string) bool { return r.Base != nil && r.Base(name) }

// LoadFiles makes wanted paths capabilities of their packages. It reads the long list of all files; call Load first.
func (r *Repository) LoadFiles(ctx context.Context, files packages.Files, u *packages.Universe,
	wanted map[string]bool,
) error {
	if _, ok := r.documents["filelists"]; !ok {
		return nil
	}
	byID := map[[3]string]*packages.Package{}
	u.All(func(p *packages.Package) { byID[[3]string{p.Name, p.Version, p.Arch}] = p })
	err := r.document(ctx, files, "filelists", func(in io.Reader) error {
		return readFilelists(in, func(path string) bool { return wanted[path] },
			func(name, version, arch, path string) {
				if p := byID[[3]string{name, version, arch}]; p != nil {
					u.Provide(p, packages.Relation{Name: path})
				}
			})
	})
	if err != nil {
		return fmt.Errorf("%s: %w", r, err)
	}
	return nil
}

func (r *Repository) document(ctx context.Context, files packages.Files, kind string,
	read func(io.Reader) error,
) (err error) {
	d, ok := r.documents[kind]
	if !ok {
		return fmt.Errorf("repomd.xml has no %s list in XML; it names %s", kind,
			strings.Join(slices.Sorted(maps.Keys(r.documents)), ", "))
	}
	if err := d.check(); err != nil {
		return err
	}
	sum, _ := d.Checksum.sum()
	address, err := d.Location.address(r.base())
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	raw, err := files.Open(ctx, address, d.Size, sum)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	in, err := packages.Unpack(d.Location.Href, raw)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := read(in); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}
