package rpm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/fetch/packages"
)

// Format is that of RPM packages.
type Format struct{}

// Compare implements packages.Format.
func (Format) Compare(a, b string) int { return Compare(a, b) }

// Dependencies implements packages.Format.
func (Format) Dependencies(p *packages.Package) (d packages.Dependencies, err error) {
	d.Requires = relations(p.Requires, &d.Notes)
	d.Recommends = relations(p.Recommends, &d.Notes)
	for _, c := range relations(p.Conflicts, &d.Notes) {
		if c.If == nil && len(c.AnyOf) == 1 {
			d.Conflicts = append(d.Conflicts, c.AnyOf[0])
		}
	}
	return d, nil
}

// relations parses the output of lines. Features of rpm itself are left out.
func relations(text string, notes *[]string) []packages.Dependency {
	var all []packages.Dependency
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "rpmlib(") || strings.HasPrefix(line, "config(") || line == "" {
			continue
		}
		if strings.HasPrefix(line, "(") {
			rich, note := rich(line)
			if note != "" {
				*notes = append(*notes, note)
			}
			all = append(all, rich...)
			continue
		}
		name, rest, _ := strings.Cut(line, "\t")
		op, version, _ := strings.Cut(rest, "\t")
		d := packages.Dependency{AnyOf: []packages.Relation{{Name: name, Op: op, Version: version}}}
		if merged(name) {
			d.AnyOf = append(d.AnyOf, packages.Relation{Name: "/usr" + name})
		}
		all = append(all, d)
	}
	return all
}

// merged reports whether path may be below /usr: those directories are links into it.
func merged(path string) bool {
	return slices.ContainsFunc([]string{"/bin/", "/sbin/", "/lib/", "/lib64/"},
		func(dir string) bool { return strings.HasPrefix(path, dir) })
}

// rich reads a boolean dependency (rpm's manual, boolean_dependencies). Dependencies with one operator "or", "and" or
// "if" are read in full; of others only the first operand is used, usually the essential one, with a note.
func rich(text string) (all []packages.Dependency, note string) {
	words, ok := operands(text)
	passed := fmt.Sprintf("the dependency %.200s is only partly supported; name missing packages under install", text)
	if !ok || len(words) == 0 {
		return nil, fmt.Sprintf("the dependency %.200s is not supported; name its packages under install", text)
	}
	operator := ""
	if len(words) > 1 {
		operator = words[1].operator
	}
	for i, w := range words {
		if i%2 == 1 && w.operator != operator || i%2 == 0 && w.operator != "" {
			return first(words), passed
		}
	}
	var d packages.Dependency
	for i := 0; i < len(words); i += 2 {
		d.AnyOf = append(d.AnyOf, words[i].relation)
	}
	switch {
	case operator == "or" || operator == "":
		return []packages.Dependency{d}, ""
	case operator == "and":
		for _, r := range d.AnyOf {
			all = append(all, packages.Dependency{AnyOf: []packages.Relation{r}})
		}
		return all, ""
	case operator == "if" && len(words) == 3:
		return []packages.Dependency{{AnyOf: d.AnyOf[:1], If: &d.AnyOf[1]}}, ""
	case operator == "unless": // required, except on other systems
		return nil, passed
	}
	return first(words), passed
}

func first(words []operand) []packages.Dependency {
	if words[0].operator != "" || words[0].relation.Name == "" {
		return nil
	}
	return []packages.Dependency{{AnyOf: []packages.Relation{words[0].relation}}}
}

// An operand is a capability, or a bracketed expression.
type operand struct {
	operator string
	relation packages.Relation
}

// operands splits (A op B op C). Brackets within it are not parsed.
func operands(text string) ([]operand, bool) {
	inner, ok := strings.CutSuffix(strings.TrimPrefix(text, "("), ")")
	if !ok {
		return nil, false
	}
	fields := strings.Fields(inner)
	var all []operand
	for i := 0; i < len(fields); i++ {
		f := fields[i]
		switch f {
		case "or", "and", "if", "else", "unless", "with", "without":
			all = append(all, operand{operator: f})
			continue
		}
		if strings.HasPrefix(f, "(") {
			return all, len(all) > 0
		}
		r := packages.Relation{Name: f}
		if i+2 < len(fields) && strings.Trim(fields[i+1], "<>=") == "" {
			r.Op, r.Version = fields[i+1], fields[i+2]
			i += 2
		}
		all = append(all, operand{relation: r})
	}
	return all, true
}
