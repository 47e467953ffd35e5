// Package packages chooses operating system packages: the named ones and all their dependencies, from a distribution's
// repositories. It knows no format and opens no connection: deb and rpm read metadata, Universe.Solve chooses.
package packages

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

// Files are the files of a repository. Addresses are URLs, or paths in a disk image.
type Files interface {
	// Get returns a small file of at most limit bytes. The error for a missing one is fs.ErrNotExist.
	Get(ctx context.Context, address string, limit int64) ([]byte, error)
	// Open returns a file of the given size, -1 for an unknown one, already checked against its sum. The error for a
	// missing one is fs.ErrNotExist. The caller closes the file.
	Open(ctx context.Context, address string, size int64, sum Sum) (io.ReadCloser, error)
}

// A Package is a package of a repository.
type Package struct {
	Name, Version, Arch string // Arch in the distribution's spelling
	Address             string // of its file
	Size                int64  // bytes of its file
	Sum                 Sum    // of its file
	// Base marks a package of every system.
	Base bool
	// Provides are capabilities besides its own name.
	Provides []Relation
	// Requires, Recommends and Conflicts are in the format's syntax, parsed on first use.
	Requires, Recommends, Conflicts string
	// Keys must have signed the package itself, since its list is unsigned; nil if its own signature is not needed.
	Keys *signature.Keys
	// Unsigned marks a package that is accepted without any signature.
	Unsigned bool
	// Rank orders packages to be chosen only as a last resort: those with the higher rank.
	Rank int
	// Unusable is why the package cannot be chosen, nil if it can: a list may have odd entries that nobody wants.
	Unusable error
}

// File returns the name of its file: the last part of its address.
func (p *Package) File() string {
	name := p.Address[strings.LastIndexByte(p.Address, '/')+1:]
	if plain, err := url.PathUnescape(name); err == nil && strings.Contains(p.Address, "://") {
		return plain
	}
	return name
}

// Check makes a package unusable that lacks the facts needed to fetch it, and leaves out what no package can require.
// It reports whether it has a name and a version: without them it cannot be asked for, and others of its list can.
func (p *Package) Check() bool {
	if !isWord(p.Name) || !isWord(p.Version) {
		return false
	}
	p.Provides = slices.DeleteFunc(p.Provides, func(r Relation) bool { return !IsCapability(r.Name) })
	switch {
	case p.Unusable != nil:
	case p.Sum == Sum{}:
		p.Unusable = fmt.Errorf("package %s has no SHA256 or SHA512 in its list, and no other sum is accepted", p.Name)
	case p.Size <= 0:
		p.Unusable = fmt.Errorf("package %s has no size in its list", p.Name)
	case !isWord(p.File()) || strings.HasPrefix(p.File(), "."):
		p.Unusable = fmt.Errorf("package %s has an invalid file name %.60q in its list", p.Name, p.File())
	}
	return true
}

// isWord reports whether s can be a name or a version: all formats use a subset of ASCII.
func isWord(s string) bool {
	return s != "" && len(s) <= 255 && !strings.ContainsFunc(s,
		func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/\?#<>|*"`, r) })
}

// IsCapability reports whether s can be a provided or required name, or a path.
func IsCapability(s string) bool { return s != "" && !strings.ContainsFunc(s, unicode.IsControl) }

// Join returns the address of a file of a repository: a URL if base is one, else a path.
func Join(base, file string) string {
	if isURL(base) {
		file = escaped(file)
	}
	return strings.TrimSuffix(base, "/") + "/" + file
}

// escaped returns a path for a URL. A plus is escaped, too, as apt does: to Amazon's S3 it is a blank.
func escaped(path string) string {
	return strings.ReplaceAll((&url.URL{Path: path}).EscapedPath(), "+", "%2B")
}

func isURL(address string) bool { return strings.Contains(address, "://") }

// Within returns the address of a file that a repository's own metadata name: by a path from base, which may lead to a
// directory beside it on the same server or disk image, or by a URL.
func Within(base, file string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || !isURL(base) {
		u = &url.URL{Path: "/" + base}
	}
	if isURL(file) && isURL(base) {
		other, err := url.Parse(file)
		if err != nil || other.Scheme != "http" && other.Scheme != "https" || other.Host == "" || other.User != nil {
			return "", fmt.Errorf("invalid address %.120q", file)
		}
		u, file = other, ""
	}
	// dnf sends such a path as it is, so that an escape in it is one.
	if plain, err := url.PathUnescape(file); err == nil && isURL(base) {
		file = plain
	}
	depth := 0
	for part := range strings.SplitSeq(u.Path+"/"+file, "/") {
		switch part {
		case "..":
			depth--
		case "", ".":
		default:
			depth++
		}
		if depth < 0 {
			return "", fmt.Errorf("path %.120q leads out of the repository's server", file)
		}
	}
	u = u.JoinPath(strings.Split(escaped("./"+file), "/")...)
	if !isURL(base) {
		return strings.TrimPrefix(u.Path, "/"), nil
	}
	return u.String(), nil
}

// A Relation is a capability: a package's name, a virtual name or a path, with versions.
type Relation struct {
	Name    string
	Op      string // "", "<", "<=", "=", ">=" or ">"
	Version string // "" if Op is ""
}

// String returns the relation in Debian's syntax.
func (r Relation) String() string {
	if r.Op == "" {
		return r.Name
	}
	return r.Name + " (" + r.Op + " " + r.Version + ")"
}

// A Dependency is met if one of its alternatives is.
type Dependency struct {
	AnyOf []Relation
	// If is a precondition: without this capability nothing is required; nil for none.
	If *Relation
}

// String returns the dependency in Debian's syntax.
func (d Dependency) String() string {
	var all []string
	for _, r := range d.AnyOf {
		all = append(all, r.String())
	}
	return strings.Join(all, " | ")
}

// Dependencies are a package's relations to others.
type Dependencies struct {
	Requires, Recommends []Dependency
	Conflicts            []Relation
	Notes                []string // parts that were not understood
}

// A Format is a package format.
type Format interface {
	// Compare orders versions.
	Compare(a, b string) int
	// Dependencies parses a package's dependencies.
	Dependencies(p *Package) (Dependencies, error)
}

// A Universe holds all packages of a distribution's repositories for one architecture. It is not safe for concurrent
// use while packages are added.
type Universe struct {
	format    Format
	packages  []*Package
	byName    map[string][]*Package
	providers map[string][]provider
	sorted    bool
}

type provider struct {
	pkg *Package
	as  Relation
}

// NewUniverse returns an empty universe.
func NewUniverse(f Format) *Universe {
	return &Universe{format: f, byName: map[string][]*Package{}, providers: map[string][]provider{}}
}

// Add adds a package, unless an earlier repository has the same one.
func (u *Universe) Add(p *Package) {
	for _, have := range u.byName[p.Name] {
		if have.Version == p.Version && have.Arch == p.Arch {
			return
		}
	}
	u.packages = append(u.packages, p)
	u.byName[p.Name] = append(u.byName[p.Name], p)
	for _, as := range p.Provides {
		u.Provide(p, as)
	}
	u.sorted = false
}

// Provide adds a capability of an added package, such as one of its files.
func (u *Universe) Provide(p *Package, as Relation) {
	u.providers[as.Name] = append(u.providers[as.Name], provider{p, as})
}

// Len is the number of packages.
func (u *Universe) Len() int { return len(u.packages) }

// All calls f for each package.
func (u *Universe) All(f func(*Package)) {
	for _, p := range u.packages {
		f(p)
	}
}

// sort puts the newest version of each package first.
func (u *Universe) sort() {
	if u.sorted {
		return
	}
	for _, list := range u.byName {
		slices.SortStableFunc(list, func(a, b *Package) int {
			return cmp.Or(cmp.Compare(a.Rank, b.Rank), u.format.Compare(b.Version, a.Version),
				cmp.Compare(a.Arch, b.Arch))
		})
	}
	u.sorted = true
}

// candidates returns the packages that meet a relation, the best one first: those of that name, newest first, then its
// providers, for each the newest matching version.
func (u *Universe) candidates(r Relation) []*Package {
	var list []*Package
	for _, p := range u.byName[r.Name] {
		if u.meets(r, Relation{p.Name, "=", p.Version}) {
			list = append(list, p)
		}
	}
	named := len(list)
	for _, v := range u.providers[r.Name] {
		if u.meets(r, v.as) && !slices.Contains(list, v.pkg) {
			list = append(list, v.pkg)
		}
	}
	slices.SortStableFunc(list[named:], func(a, b *Package) int {
		base := func(p *Package) int {
			if p.Base {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(base(a), base(b)), cmp.Compare(a.Rank, b.Rank), cmp.Compare(len(a.Name), len(b.Name)),
			cmp.Compare(a.Name, b.Name), u.format.Compare(b.Version, a.Version))
	})
	return list
}

// meets reports whether have satisfies want: some version is in both ranges. A capability without a version matches no
// particular version.
func (u *Universe) meets(want, have Relation) bool {
	if want.Name != have.Name {
		return false
	}
	if want.Op == "" {
		return true
	}
	if have.Op == "" {
		return false
	}
	c := u.format.Compare(have.Version, want.Version)
	up := func(op string) bool { return strings.HasPrefix(op, ">") }
	down := func(op string) bool { return strings.HasPrefix(op, "<") }
	switch {
	case c == 0:
		both := func(end string) bool { return strings.Contains(want.Op, end) && strings.Contains(have.Op, end) }
		return both("=") || both("<") || both(">")
	case c > 0:
		return up(want.Op) || down(have.Op)
	default:
		return down(want.Op) || up(have.Op)
	}
}

// UnknownPaths adds the required paths that no package is known to have.
func (u *Universe) UnknownPaths(to map[string]bool) {
	for _, p := range u.packages {
		d, err := u.format.Dependencies(p)
		if err != nil {
			continue // an error only if it is chosen
		}
		for _, need := range d.Requires {
			for _, r := range need.AnyOf {
				if strings.HasPrefix(r.Name, "/") && len(u.providers[r.Name]) == 0 {
					to[r.Name] = true
				}
			}
		}
	}
}
