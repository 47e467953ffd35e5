package values

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Value is a definition with its value.
type Value struct {
	Definition
	Text string
	// Layer is who gave it, and Origin the place for display: site.yaml:4:9, --set, $KKBUNDLE_VALUE_DOMAIN, default.
	Layer  Layer
	Origin string
	// StandIn means that the site will give the value, and that this one only serves to build the bundle. Made means
	// that neither a default nor an example says which.
	StandIn, Made bool
}

// Shown returns the value for display.
func (v Value) Shown() string {
	if v.Secret {
		return "(secret)"
	}
	return v.Text
}

// A Set is the values that files are expanded with. A nil Set has none and leaves files as they are. Its methods may be
// called concurrently.
type Set struct {
	table  Table
	src    *document.Tree // of the table
	values map[string]Value

	mu   sync.Mutex
	used map[string]bool
}

// Options say how a Table is resolved.
type Options struct {
	At    Time
	Given []Given
	// Sample gives each value that must be given and was not its example, so that a manifest can be read for its shape.
	Sample bool
	// NoSecrets is Sample for secrets alone, for commands that use none.
	NoSecrets bool
	// Ask asks a person for a value of the site that must be given; nil if there is nobody. ErrNobody is its error
	// then, too.
	Ask func(ctx context.Context, d Definition) (string, error)
}

// ErrNobody means that there is no terminal to ask on.
var ErrNobody = errors.New("nobody to ask")

// Resolve returns the values of a table, that of a manifest src. At the time Build, values of the site have stand-ins;
// at the time Site, values of the build are those of the lock. The error is document.Problems: every value that is
// missing, unknown or of the wrong type, and none of a secret's text.
func (t Table) Resolve(ctx context.Context, src *document.Tree, o Options) (*Set, error) {
	r := &resolver{
		Set:     &Set{table: t, src: src, values: map[string]Value{}, used: map[string]bool{}},
		Options: o, checker: &document.Checker{Tree: src}, given: map[string]Given{},
	}
	r.sort()
	for _, d := range t {
		if err := r.settle(ctx, d, nil); err != nil {
			return nil, err
		}
	}
	return r.Set, append(r.checker.Found, r.found...).Err()
}

type resolver struct {
	*Set
	Options
	checker *document.Checker
	found   document.Problems // in what was given
	given   map[string]Given
}

// sort keeps of each value the given one that counts, and refuses others that cannot count.
func (r *resolver) sort() {
	for _, g := range slices.SortedStableFunc(slices.Values(r.Given), byLayer) {
		d, known := r.table.Find(g.Name)
		remembered := g.Layer == FromLock || g.Layer == FromRecord
		switch {
		case !known && remembered: // of an older manifest
		case !known:
			r.found = append(r.found, g.problem("the manifest has no value of this name%s", near(g.Name, r.table.names())))
		case d.IsAt(Site) && r.At != Site:
			if !remembered {
				r.found = append(r.found, g.problem(
					"is given at the site, to deploy, install and upgrade; an example in the manifest stands for it until then"))
			}
		case !d.IsAt(Site) && r.At == Site && g.Layer == FromRecord: // of an older manifest, too
		case !d.IsAt(Site) && r.At == Site && g.Layer != FromLock:
			if was, ok := r.given[g.Name]; !ok || was.Text != g.Text {
				r.found = append(r.found, g.problem("was given when the bundle was built, and is part of it; build another bundle for another value"))
			}
		default:
			if err := d.accepts(g.Text); err != nil {
				if remembered { // of an older manifest: as if nobody had given it
					continue
				}
				r.found = append(r.found, g.problem("%v", err))
			}
			r.given[g.Name] = g
		}
	}
}

func near(name string, known []string) string {
	if best := plain.Nearest(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	if len(known) == 0 {
		return "; it has none"
	}
	return "; it has " + strings.Join(known, ", ")
}

// settle finds the value of a definition, after those that its default names. by are the names on the way to it.
func (r *resolver) settle(ctx context.Context, d Definition, by []string) error {
	if _, done := r.values[d.Name]; done {
		return nil
	}
	v := Value{Definition: d, StandIn: d.IsAt(Site) && r.At != Site}
	from, given := r.given[d.Name]
	var err error
	switch {
	case given:
	case d.Default != nil:
		from.Layer = FromDefault
		from.Text, err = r.byDefault(ctx, d, append(slices.Clone(by), d.Name))
	case v.StandIn, r.Sample && d.Required, r.NoSecrets && d.Secret:
		from.Layer = FromExample
		from.Text, v.Made = d.standIn()
	case d.Required:
		from.Layer = FromTerminal
		from.Text, err = r.missing(ctx, d)
	default:
		from.Layer = FromDefault
	}
	v.Text, v.Layer, v.Origin = from.Text, from.Layer, from.Origin()
	r.values[d.Name] = v
	return err
}

// byDefault returns the default of a definition, expanded.
func (r *resolver) byDefault(ctx context.Context, d Definition, by []string) (string, error) {
	path := document.Join(document.Key("values", d.Name), "default")
	var text strings.Builder
	for _, p := range split(string(*d.Default)) {
		other, known := r.table.Find(p.name)
		switch {
		case p.bad:
			r.checker.Add(path, "%s", badReference(p.written))
		case p.name == "":
			text.WriteString(p.text())
		case !known:
			r.checker.Add(path, "%s", undefined(p.name, r.table.names()))
		case slices.Contains(by, p.name) && p.name == d.Name:
			r.checker.Add(path, "names itself")
		case slices.Contains(by, p.name):
			r.checker.Add(path, "names itself by way of %s", strings.Join(by, ", "))
		case other.Secret:
			r.checker.Add(path, "names %s, which is secret: the default would show it", p.name)
		case other.IsAt(Site) && !d.IsAt(Site):
			r.checker.Add(path, "names %s, which is given at the site, later than %s; write at: site for both", p.name,
				d.Name)
		default:
			if err := r.settle(ctx, other, by); err != nil {
				return "", err
			}
			text.WriteString(r.values[p.name].Text)
			r.use(p.name)
		}
		if text.Len() > maxText {
			r.checker.Add(path, "has more than %s with the values that it names", plain.Size(maxText))
			return "", nil
		}
	}
	if len(r.checker.Found) == 0 {
		if err := d.accepts(text.String()); err != nil {
			r.checker.Add(path, "%v", err)
		}
	}
	return text.String(), nil
}

// missing asks for a value that must be given.
func (r *resolver) missing(ctx context.Context, d Definition) (string, error) {
	if r.Ask != nil && d.IsAt(Site) {
		text, err := r.Ask(ctx, d)
		if err == nil {
			if err := d.accepts(text); err != nil {
				r.found = append(r.found, Given{Name: d.Name}.problem("%v", err))
			}
			return text, nil
		}
		if !errors.Is(err, ErrNobody) {
			return "", err
		}
	}
	what := ""
	if d.Description != "" {
		what = " (" + document.Shorten(plain.Line(d.Description)) + ")"
	}
	r.checker.AddKey(document.Key("values", d.Name), "is required%s and was not given: %s", what, d.HowToGive())
	return "", nil
}

// List returns the values in the order of the table.
func (s *Set) List() []Value {
	if s == nil {
		return nil
	}
	list := make([]Value, 0, len(s.table))
	for _, d := range s.table {
		list = append(list, s.values[d.Name])
	}
	return list
}

// Value returns the value of a name.
func (s *Set) Value(name string) (Value, bool) {
	if s == nil {
		return Value{}, false
	}
	v, ok := s.values[name]
	return v, ok
}

func (s *Set) use(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[name] = true
}

// Unused returns a problem for each value that no expanded file names.
func (s *Set) Unused() document.Problems {
	if s == nil {
		return nil
	}
	c := &document.Checker{Tree: s.src}
	for _, d := range s.table {
		if !s.used[d.Name] {
			c.AddKey(document.Key("values", d.Name),
				"nothing uses it: no file has ${%s}; remove it, or write the comment %q at the top of the file that uses it",
				d.Name, "# "+marker)
		}
	}
	return c.Found
}

func undefined(name string, known []string) string {
	return fmt.Sprintf("${%s}: the manifest has no value of this name%s; write $${ for the text ${", document.Shorten(name),
		near(name, known))
}

func badReference(written string) string {
	return fmt.Sprintf("%s names no value: a reference is ${name}; write $${ for the text ${", document.Shorten(written))
}
