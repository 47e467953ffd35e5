// Package packages chooses operating system packages: those that are named, and everything they depend on, out of what the
// repositories of a distribution have. It knows no format and opens no connection: deb and rpm read metadata, Universe.Solve
// chooses.
package packages

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// Files are those of a repository. Addresses are URLs, or paths in an image of a disk.
type Files interface {
	// Get returns a small file of at most limit bytes.
	Get(ctx context.Context, address string, limit int64) ([]byte, error)
	// Open returns a file of so many bytes whose content has this sha256, 64 hexadecimal digits: that was checked when it
	// returns. The caller closes it.
	Open(ctx context.Context, address string, size int64, sha256 string) (io.ReadCloser, error)
}

// A Package is one that a repository has.
type Package struct {
	Name, Version, Arch string // Arch is the distribution's name for it
	Address             string // where its file is
	Size                int64  // bytes of its file
	SHA256              string // of its file, 64 lower case hexadecimal digits
	// Base says that every system of the distribution has it.
	Base bool
	// Provides are capabilities besides its own name.
	Provides []Relation
	// Requires, Recommends and Conflicts are in the words of the format, which reads them once the package is looked at.
	Requires, Recommends, Conflicts string
	// Rank is for packages that are chosen only where there is no other: those with the higher rank.
	Rank int
}

// File is the name of its file: the last part of its address.
func (p *Package) File() string {
	name := p.Address[strings.LastIndexByte(p.Address, '/')+1:]
	if plain, err := url.PathUnescape(name); err == nil && strings.Contains(p.Address, "://") {
		return plain
	}
	return name
}

// Check refuses a package that lacks what it takes to fetch it, or whose names are none.
func (p *Package) Check() error {
	_, hash := hex.DecodeString(p.SHA256)
	switch {
	case !isWord(p.Name) || !isWord(p.Version):
		return fmt.Errorf("a package with the name %.60q and the version %.60q is none", p.Name, p.Version)
	case hash != nil || len(p.SHA256) != 64:
		return fmt.Errorf("package %s has no SHA256, and weaker sums are not enough", p.Name)
	case p.Size <= 0:
		return fmt.Errorf("package %s has no size", p.Name)
	case !isWord(p.File()) || strings.HasPrefix(p.File(), "."):
		return fmt.Errorf("package %s has no file name but %.60q", p.Name, p.File())
	}
	for _, r := range p.Provides {
		if !IsCapability(r.Name) {
			return fmt.Errorf("package %s provides %.60q", p.Name, r.Name)
		}
	}
	return nil
}

// isWord tells whether s can be a name or a version: all formats use a part of ASCII.
func isWord(s string) bool {
	return s != "" && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/\?#<>|*"`, r) })
}

// IsCapability tells whether s can be a name that is provided or required, or a path.
func IsCapability(s string) bool {
	return s != "" && !strings.ContainsFunc(s, unicode.IsControl)
}

// Join is the address of a file of a repository: a URL where the repository has one, else a path.
func Join(base, file string) string {
	if strings.Contains(base, "://") {
		file = (&url.URL{Path: file}).EscapedPath()
	}
	return strings.TrimSuffix(base, "/") + "/" + file
}

// A Relation is a capability: a package's name, a virtual name or a path, with versions.
type Relation struct {
	Name    string
	Op      string // "", "<", "<=", "=", ">=" or ">"
	Version string // "" if Op is
}

// String is the relation as Debian writes it.
func (r Relation) String() string {
	if r.Op == "" {
		return r.Name
	}
	return r.Name + " (" + r.Op + " " + r.Version + ")"
}

// A Dependency is met if one of its alternatives is.
type Dependency struct {
	AnyOf []Relation
	// If is a capability without which nothing is required; nil for none.
	If *Relation
}

// String is the dependency as Debian writes it.
func (d Dependency) String() string {
	var all []string
	for _, r := range d.AnyOf {
		all = append(all, r.String())
	}
	return strings.Join(all, " | ")
}

// Dependencies are what a package has to do with others.
type Dependencies struct {
	Requires, Recommends []Dependency
	Conflicts            []Relation
	Notes                []string // what was not understood
}

// A Format is one kind of package.
type Format interface {
	// Compare orders versions.
	Compare(a, b string) int
	// Dependencies reads what a package says.
	Dependencies(p *Package) (Dependencies, error)
}

// A Universe is everything that a distribution's repositories have for one architecture. It is not safe for concurrent use
// while packages are added.
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

// NewUniverse returns an empty one.
func NewUniverse(f Format) *Universe {
	return &Universe{format: f, byName: map[string][]*Package{}, providers: map[string][]provider{}}
}

// Add adds a package, unless a repository that was read before has the same one.
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

// Provide adds a capability of a package that was added, such as a file of its own.
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
			return cmp.Or(cmp.Compare(a.Rank, b.Rank), u.format.Compare(b.Version, a.Version), cmp.Compare(a.Arch, b.Arch))
		})
	}
	u.sorted = true
}

// candidates are the packages that meet a relation, the best one first: those of that name, newest first, then those that
// provide it, of each the newest one that does.
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

// meets tells whether what is provided is what is wanted: some version is in both ranges. A capability without a version is
// none of any particular version.
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

// UnknownPaths adds the paths that packages require and that none is known to have.
func (u *Universe) UnknownPaths(to map[string]bool) error {
	for _, p := range u.packages {
		d, err := u.format.Dependencies(p)
		if err != nil {
			return fmt.Errorf("bad metadata of %s %s: %w", p.Name, p.Version, err)
		}
		for _, need := range d.Requires {
			for _, r := range need.AnyOf {
				if strings.HasPrefix(r.Name, "/") && len(u.providers[r.Name]) == 0 {
					to[r.Name] = true
				}
			}
		}
	}
	return nil
}
