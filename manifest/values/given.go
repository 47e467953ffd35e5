package values

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Layer is who gave a value. Later ones override earlier ones.
type Layer string

// The layers, in their order.
const (
	FromDefault     Layer = "default"
	FromExample     Layer = "example"     // stands for a value of the site while the bundle is built
	FromLock        Layer = "lock"        // of the manifest, or of the bundle
	FromRecord      Layer = "record"      // of the run before, at the site
	FromEnvironment Layer = "environment" // a variable
	FromFile        Layer = "file"        // --values
	FromSet         Layer = "--set"
	FromTerminal    Layer = "terminal"
)

// Given is a value that somebody gave.
type Given struct {
	Name, Text string
	Layer      Layer
	// File, Line and Column are as in document.Problem: the file, the flag or the variable.
	File         string
	Line, Column int
}

// Origin returns who gave the value, for display: site.yaml:4:9, --set, $KKBUNDLE_VALUE_DOMAIN, default.
func (g Given) Origin() string {
	switch {
	case g.Line > 0:
		return fmt.Sprintf("%s:%d:%d", g.File, g.Line, g.Column)
	case g.Layer == FromEnvironment:
		return g.File
	}
	return string(g.Layer)
}

func (g Given) problem(format string, args ...any) document.Problem {
	file, message := g.File, fmt.Sprintf(format, args...)
	if g.Line > 0 || file == "" {
		message = g.Name + ": " + message
	}
	return document.Problem{File: file, Line: g.Line, Column: g.Column, Message: message}
}

// ParseFile reads a file for --values: a mapping from names to values. The error is document.Problems.
func ParseFile(file string, data []byte) ([]Given, error) {
	t, err := document.Parse(file, data, document.FileLimits())
	if err != nil {
		return nil, err
	}
	if t.Root.Kind != yaml.MappingNode {
		return nil, document.Problems{{
			File: file, Line: t.Root.Line, Column: t.Root.Column,
			Message: "want a mapping from the names of values to values, such as domain: site.example",
		}}
	}
	var list []Given
	var problems document.Problems
	for i := 0; i+1 < len(t.Root.Content); i += 2 {
		k, v := t.Root.Content[i], t.Root.Content[i+1]
		if v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		g := Given{Name: k.Value, Text: v.Value, Layer: FromFile, File: file, Line: v.Line, Column: v.Column}
		switch {
		case k.Kind != yaml.ScalarNode:
			problems = append(problems, Given{File: file, Line: k.Line, Column: k.Column}.problem("want the name of a value"))
		case slices.ContainsFunc(list, func(o Given) bool { return o.Name == g.Name }):
			problems = append(problems, g.problem("is there twice; remove one"))
		case v.Kind != yaml.ScalarNode:
			problems = append(problems, g.problem("want one value, have a list or a mapping"))
		case v.Tag == "!!null":
			problems = append(problems, g.problem("has no value; write one or leave the line out"))
		default:
			list = append(list, g)
		}
	}
	return list, problems.Err()
}

// ParseSet reads NAME=VALUE of --set.
func ParseSet(text string) (Given, error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return Given{}, document.Problems{{
			File: "--set " + document.Shorten(name), Message: "want NAME=VALUE, as in version=1.4.0",
		}}
	}
	return Given{Name: name, Text: value, Layer: FromSet, File: "--set " + document.Shorten(name)}, nil
}

// Environment returns the values of a time that variables have.
func (t Table) Environment(at Time, lookup func(name string) (string, bool)) []Given {
	var list []Given
	for _, d := range t.At(at) {
		if text, ok := lookup(d.Variable()); ok {
			list = append(list, Given{Name: d.Name, Text: text, Layer: FromEnvironment, File: "$" + d.Variable()})
		}
	}
	return list
}

// order returns the rank of a layer.
func (l Layer) order() int {
	return slices.Index([]Layer{
		FromDefault, FromExample, FromLock, FromRecord, FromEnvironment, FromFile, FromSet, FromTerminal,
	}, l)
}

func byLayer(a, b Given) int { return cmp.Compare(a.Layer.order(), b.Layer.order()) }
