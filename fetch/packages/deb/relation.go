package deb

import (
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/fetch/packages"
)

// Format is Debian's package format.
type Format struct {
	Arch string // the system's architecture, in Debian's spelling
}

// Compare implements packages.Format.
func (Format) Compare(a, b string) int { return Compare(a, b) }

// Dependencies implements packages.Format.
func (f Format) Dependencies(p *packages.Package) (d packages.Dependencies, err error) {
	if d.Requires, err = f.relations(p.Requires); err != nil {
		return d, err
	}
	if d.Recommends, err = f.relations(p.Recommends); err != nil {
		return d, err
	}
	conflicts, err := f.relations(p.Conflicts)
	for _, c := range conflicts {
		for _, r := range c.AnyOf {
			if r.Name != p.Name {
				d.Conflicts = append(d.Conflicts, r)
			}
		}
	}
	return d, err
}

// relations reads a field such as Depends (Debian's policy, section 7.1).
func (f Format) relations(field string) ([]packages.Dependency, error) {
	var all []packages.Dependency
	for part := range strings.SplitSeq(field, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		var d packages.Dependency
		for alternative := range strings.SplitSeq(part, "|") {
			r, err := f.relation(strings.TrimSpace(alternative))
			if err != nil {
				return nil, err
			}
			d.AnyOf = append(d.AnyOf, r)
		}
		all = append(all, d)
	}
	return all, nil
}

// relation reads "name", "name:arch" or "name (>= version)". A name for another architecture keeps its suffix, so that
// no package matches.
func (f Format) relation(text string) (r packages.Relation, err error) {
	name, rest := text, ""
	if i := strings.IndexAny(text, " \t\n("); i >= 0 {
		name, rest = text[:i], strings.TrimSpace(text[i:])
	}
	name, arch, _ := strings.Cut(name, ":")
	r.Name = name
	if arch != "" && arch != "any" && arch != "native" && arch != f.Arch {
		r.Name += ":" + arch
	}
	if name == "" || strings.ContainsAny(name, "()[]<>=|,\n") {
		return r, fmt.Errorf("%.80q is not a dependency", text)
	}
	if rest == "" {
		return r, nil
	}
	inner, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
	if rest[0] != '(' || !closed || strings.TrimSpace(after) != "" {
		return r, fmt.Errorf("%.80q is not a dependency", text)
	}
	inner = strings.TrimSpace(inner)
	version := strings.TrimLeft(inner, "<>=")
	switch inner[:len(inner)-len(version)] {
	case "<<":
		r.Op = "<"
	case "<=", "<":
		r.Op = "<="
	case "=", "":
		r.Op = "="
	case ">=", ">":
		r.Op = ">="
	case ">>":
		r.Op = ">"
	default:
		return r, fmt.Errorf("%.80q has an unknown operator", text)
	}
	if r.Version = strings.TrimSpace(version); r.Version == "" || strings.ContainsAny(r.Version, " \t\n") {
		return r, fmt.Errorf("%.80q has no version", text)
	}
	return r, nil
}
