package packages

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	maxSteps    = 1 << 20 // attempted packages before giving up: a hundred times the need of the largest sets
	maxRestarts = 64      // revised version choices
	maxChain    = 12      // packages in a chain shown in a message
)

// A Request lists the wanted packages.
type Request struct {
	// Install lists names, virtual names or paths; NAME=VERSION requires that version.
	Install []string
	// Full also includes packages of every system that something depends on.
	Full bool
	// Recommends also includes recommended packages, if available.
	Recommends bool
}

// A Solution is the set of packages for a Request.
type Solution struct {
	Packages []*Package // sorted by name
	Assumed  []string   // sorted names of required packages that every system has, not included
	Notes    []string   // sorted: the parts that were ignored
}

// Size returns the total bytes of all packages.
func (s *Solution) Size() int64 {
	var n int64
	for _, p := range s.Packages {
		n += p.Size
	}
	return n
}

// A PathError names a required path that no package is known to have: lists of all files may know more.
type PathError struct{ Path string }

// Error names the path.
func (e *PathError) Error() string { return "no package has the file " + e.Path }

// Solve chooses the newest version of every named package and of all dependencies, such that all can be installed
// together. The same universe and request give the same solution. The error joins one error for each unsolvable name.
func (u *Universe) Solve(r Request) (*Solution, error) {
	u.sort()
	names := slices.Compact(slices.Sorted(slices.Values(r.Install)))
	prefer := map[string]*Package{}
	var problems []error
	for range len(names) + maxRestarts {
		s := &solver{
			u: u, request: r, prefer: prefer, chosen: map[string]*Package{}, assumed: map[string]bool{},
			read: map[*Package]Dependencies{},
		}
		failed, err := s.all(names)
		if err == nil {
			return s.solution(), errors.Join(problems...)
		}
		if b := s.blocked; b != nil && len(prefer) < maxRestarts && prefer[b.Name] == nil {
			prefer[b.Name] = b
			continue
		}
		problems = append(problems, err)
		names = slices.Delete(names, failed, failed+1)
	}
	return nil, errors.Join(problems...)
}

// A solver is one attempt.
type solver struct {
	u       *Universe
	request Request
	prefer  map[string]*Package // versions that an earlier attempt needed
	blocked *Package            // a needed package of which another version was already chosen

	chosen  map[string]*Package
	trail   []*Package // chosen packages, in order
	chain   []string   // dependency chain of the current package
	assumed map[string]bool
	notes   []string
	read    map[*Package]Dependencies
	steps   int
}

// all chooses the named packages. It returns the first that fails, with the reason.
func (s *solver) all(names []string) (failed int, err error) {
	roots := make([]*Package, len(names))
	for i, name := range names { // first the named ones, the best alternatives of each other
		r := parseName(name)
		if roots[i], err = s.root(r); err == nil {
			err = roots[i].Unusable
		}
		if err != nil {
			return i, err
		}
		if err := s.take(roots[i]); err != nil {
			return i, fmt.Errorf("%s: %w; put one of them into an entry of its own", name, err)
		}
	}
	for i, p := range roots {
		s.chain = []string{p.Name}
		if err := s.dependencies(p); err != nil {
			return i, fmt.Errorf("%s: %w", names[i], err)
		}
	}
	return -1, nil
}

func parseName(name string) Relation {
	if name, version, ok := strings.Cut(name, "="); ok {
		return Relation{name, "=", version}
	}
	return Relation{Name: name}
}

// root finds a requested package.
func (s *solver) root(r Relation) (*Package, error) {
	list := s.u.candidates(r)
	if len(list) > 0 {
		if have := s.chosen[list[0].Name]; have != nil && slices.Contains(list, have) {
			return have, nil
		}
		if p := s.prefer[list[0].Name]; p != nil && slices.Contains(list, p) {
			return p, nil
		}
		return list[0], nil
	}
	switch have := s.u.byName[r.Name]; {
	case len(have) > 0:
		return nil, fmt.Errorf("%s: no such version; available is %s", r, versions(have))
	case strings.HasPrefix(r.Name, "/"):
		return nil, &PathError{r.Name}
	}
	err := fmt.Sprintf("no package %s", r.Name)
	if near := s.u.near(r.Name); len(near) > 0 {
		err += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return nil, errors.New(err)
}

func versions(list []*Package) string {
	var all []string
	for _, p := range list[:min(len(list), maxNear)] {
		all = append(all, p.Version)
	}
	return strings.Join(all, ", ")
}

// take chooses a package without its dependencies.
func (s *solver) take(p *Package) error {
	if s.chosen[p.Name] == p {
		return nil
	}
	if have := s.chosen[p.Name]; have != nil {
		s.blocked = cmp.Or(s.blocked, p)
		return fmt.Errorf("version %[2]s of %[1]s is needed, but something else needs %[3]s", p.Name, p.Version,
			have.Version)
	}
	own, err := s.of(p)
	if err != nil {
		return err
	}
	for _, other := range s.trail {
		theirs, err := s.of(other)
		if err != nil {
			return err
		}
		if c := s.against(own.Conflicts, other); c != nil {
			return fmt.Errorf("%s conflicts with %s, because of %s", p.Name, other.Name, c)
		}
		if c := s.against(theirs.Conflicts, p); c != nil {
			return fmt.Errorf("%s conflicts with %s, because of %s", other.Name, p.Name, c)
		}
	}
	s.chosen[p.Name] = p
	s.trail = append(s.trail, p)
	return nil
}

// against returns the conflict with a package.
func (s *solver) against(conflicts []Relation, p *Package) *Relation {
	for i, c := range conflicts {
		if s.is(c, p) {
			return &conflicts[i]
		}
	}
	return nil
}

// is reports whether a package meets a relation.
func (s *solver) is(r Relation, p *Package) bool {
	if s.u.meets(r, Relation{p.Name, "=", p.Version}) {
		return true
	}
	for _, as := range p.Provides {
		if s.u.meets(r, as) {
			return true
		}
	}
	if strings.HasPrefix(r.Name, "/") { // only the universe knows files
		return slices.ContainsFunc(s.u.providers[r.Name], func(v provider) bool { return v.pkg == p })
	}
	return false
}

// of parses the dependencies of a package once.
func (s *solver) of(p *Package) (Dependencies, error) {
	if d, ok := s.read[p]; ok || p.Unusable != nil {
		return d, p.Unusable
	}
	d, err := s.u.format.Dependencies(p)
	if err != nil {
		return d, fmt.Errorf("bad metadata of %s %s: %w", p.Name, p.Version, err)
	}
	s.read[p] = d
	return d, nil
}

// dependencies chooses everything that a chosen package needs.
func (s *solver) dependencies(p *Package) error {
	if s.steps++; s.steps > maxSteps {
		return errors.New("the dependencies have too many alternatives; name the wanted ones under install")
	}
	d, err := s.of(p)
	if err != nil {
		return err
	}
	for _, note := range d.Notes {
		s.notes = append(s.notes, p.Name+": "+note)
	}
	for _, need := range d.Requires {
		if err := s.meet(need); err != nil {
			return err
		}
	}
	if s.request.Recommends {
		for _, need := range d.Recommends {
			blocked := s.blocked
			if err := s.meet(need); err != nil {
				s.blocked = blocked
				s.notes = append(s.notes, fmt.Sprintf("%s recommends %s, which is not available", p.Name, need))
			}
		}
	}
	return nil
}

// meet chooses packages for a dependency.
func (s *solver) meet(d Dependency) error {
	if d.If != nil && !s.there(*d.If) {
		return nil
	}
	if slices.ContainsFunc(d.AnyOf, s.has) {
		return nil
	}
	if !s.request.Full {
		for _, r := range d.AnyOf {
			if p := s.assume(r); p != nil {
				s.assumed[p.Name] = true
				return nil
			}
		}
	}
	var first error
	for _, r := range d.AnyOf {
		list := s.u.candidates(r)
		for _, p := range s.preferred(list) {
			err := s.try(p)
			if err == nil {
				return nil
			}
			first = cmp.Or(first, err)
		}
	}
	if first != nil {
		return first
	}
	return s.unmet(d)
}

// preferred puts the version that an earlier attempt needed first.
func (s *solver) preferred(list []*Package) []*Package {
	for i, p := range list {
		if s.prefer[p.Name] == p && i > 0 {
			return append([]*Package{p}, slices.Delete(slices.Clone(list), i, i+1)...)
		}
	}
	return list
}

func (s *solver) try(p *Package) error {
	mark := len(s.trail)
	s.chain = append(s.chain, p.Name)
	defer func() { s.chain = s.chain[:len(s.chain)-1] }()
	err := s.take(p)
	if err == nil {
		err = s.dependencies(p)
	} else {
		err = fmt.Errorf("%w (%s)", err, s.why())
	}
	if err != nil {
		for _, back := range s.trail[mark:] {
			delete(s.chosen, back.Name)
		}
		s.trail = s.trail[:mark]
	}
	return err
}

// has reports whether the chosen packages meet a relation.
func (s *solver) has(r Relation) bool {
	if p := s.chosen[r.Name]; p != nil && s.u.meets(r, Relation{p.Name, "=", p.Version}) {
		return true
	}
	return slices.ContainsFunc(s.u.providers[r.Name],
		func(v provider) bool { return s.chosen[v.pkg.Name] == v.pkg && s.u.meets(r, v.as) })
}

// assume returns the package of every system that meets a relation. A relation to a particular version is not left to
// the system, which may have been installed long ago.
func (s *solver) assume(r Relation) *Package {
	if r.Op != "" && r.Op != ">=" {
		return nil
	}
	for _, p := range s.u.candidates(r) {
		if p.Base {
			return p
		}
	}
	return nil
}

// there reports whether a capability will be present, as far as known.
func (s *solver) there(r Relation) bool { return s.has(r) || s.assume(r) != nil }

func (s *solver) unmet(d Dependency) error {
	var have []string
	path := ""
	for _, r := range d.AnyOf {
		if list := s.u.byName[r.Name]; len(list) > 0 {
			have = append(have, r.Name+" "+versions(list))
		}
		if strings.HasPrefix(r.Name, "/") {
			path = r.Name
		}
	}
	text := fmt.Sprintf("nothing in the repositories provides %s (%s)", d, s.why())
	if len(have) > 0 {
		text += "; there is " + strings.Join(have, ", ")
	}
	if path != "" {
		return fmt.Errorf("%s: %w", text, &PathError{path})
	}
	return errors.New(text)
}

// why returns the dependency chain of the current package.
func (s *solver) why() string {
	chain := s.chain
	if len(chain) > maxChain {
		chain = append(append(slices.Clone(chain[:maxChain/2]), "…"), chain[len(chain)-maxChain/2:]...)
	}
	return "needed by " + strings.Join(chain, " -> ")
}

func (s *solver) solution() *Solution {
	out := &Solution{Packages: slices.Clone(s.trail), Notes: slices.Compact(slices.Sorted(slices.Values(s.notes)))}
	slices.SortFunc(out.Packages, func(a, b *Package) int { return strings.Compare(a.Name, b.Name) })
	for name := range s.assumed {
		if s.chosen[name] == nil {
			out.Assumed = append(out.Assumed, name)
		}
	}
	slices.Sort(out.Assumed)
	return out
}
