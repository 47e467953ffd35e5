package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// A shownValue is a value of a manifest's table.
type shownValue struct {
	Name string `json:"name"`
	At   string `json:"at"` // build or site
	Type string `json:"type"`
	// Value is the text that stands for ${name} in the build, or the default of a value of the site; "" for a secret.
	Value       string `json:"value,omitempty"`
	From        string `json:"from,omitempty"`
	Required    bool   `json:"required,omitempty"`
	Secret      bool   `json:"secret,omitempty"`
	Pattern     string `json:"pattern,omitempty"`
	Example     string `json:"example,omitempty"`
	Description string `json:"description,omitempty"`
	Variable    string `json:"variable"`
}

// valuesResult is the JSON output of inspect --values and of config show for a manifest.
type valuesResult struct {
	Version int          `json:"version"` // 1
	Values  []shownValue `json:"values"`
}

func newValuesResult(set *values.Set) valuesResult {
	r := valuesResult{Version: 1, Values: []shownValue{}}
	for _, v := range set.List() {
		one := shownValue{
			Name: v.Name, At: string(values.Build), Type: string(values.String), Required: v.Required, Secret: v.Secret,
			Pattern: v.Pattern, Description: v.Description, Variable: v.Variable(),
		}
		if v.Type != "" {
			one.Type = string(v.Type)
		}
		if v.Example != nil {
			one.Example = string(*v.Example)
		}
		if v.IsAt(values.Site) {
			one.At = string(values.Site)
		}
		if v.Layer != values.FromExample && !v.Secret {
			one.Value, one.From = v.Text, v.Origin
		}
		r.Values = append(r.Values, one)
	}
	return r
}

func (g *globals) printManifestValues(r valuesResult) error {
	if g.JSON {
		return g.PrintJSON(r)
	}
	rows := make([][]string, 0, len(r.Values))
	for _, v := range r.Values {
		is, from := v.Value, v.From
		switch {
		case v.Secret:
			is, from = "(secret)", ""
		case from == "" && v.Required:
			is = "(required)"
		}
		about := v.Description
		if v.Example != "" {
			about = strings.TrimSpace(about + " Such as " + v.Example)
		}
		rows = append(rows, []string{v.Name, v.At, is, from, about})
	}
	if len(rows) == 0 {
		g.Note("the manifest has no values")
		return nil
	}
	return g.PrintTable([]string{"VALUE", "AT", "IS", "FROM", "DESCRIPTION"}, rows)
}

// runInspectValues prints the values of a bundle: those that it was built with, and those that the site gives.
func runInspectValues(ctx context.Context, g *globals, path string, login loginFlags) error {
	return g.withCatalog(ctx, path, login, func(c *bundle.Catalog) error {
		b, err := builder.CarriedManifest(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return g.printManifestValues(newValuesResult(b.Set))
	})
}

// showManifestValues prints the values of a manifest as build would take them.
func (g *globals) showManifestValues(file string, data []byte, o configShowOptions) error {
	if o.host != "" || o.output == showYAML {
		return usage.Errorf("a manifest has no hosts and is not written anew: leave out --host, -i and -o yaml")
	}
	given, err := site.ReadValues(o.values, o.settings)
	if err != nil {
		return err
	}
	b, err := builder.ReadManifest(file, data, builder.LoadOptions{Values: given, Variable: os.LookupEnv})
	if err != nil {
		return err
	}
	r := newValuesResult(b.Set)
	if o.output == showJSON {
		return g.PrintJSON(r)
	}
	return g.printManifestValues(r)
}

// manifestValues returns the values of the manifest in the same directory that names a cluster file, nil if none does
// or if the file has no reference, and the settings of --set that are no values of it.
func manifestValues(file string, data []byte, o configShowOptions) (*values.Set, []string, error) {
	files, err := ourFiles(filepath.Dir(file), manifest.KindBundle)
	if err != nil || !bytes.Contains(data, []byte("${")) {
		return nil, o.settings, nil //nolint:nilerr // a directory that cannot be read has no manifest
	}
	for _, name := range files {
		text, err := builder.ReadFile(name)
		if err != nil {
			continue
		}
		b, _ := builder.SampleManifest(name, text) // for its names: problems are those of build
		if b.Set == nil || !slices.Contains(b.ClusterFiles(), filepath.Base(file)) {
			continue
		}
		settings, sets := site.SplitSettings(o.settings, b.Values)
		given, err := site.ReadValues(o.values, sets)
		if err != nil {
			return nil, nil, err
		}
		b, err = builder.ReadManifest(name, text, builder.LoadOptions{Values: given, Variable: os.LookupEnv})
		return b.Set, settings, err
	}
	return nil, o.settings, nil
}

// originsOf returns, for each text of a cluster file with values, their names and who gave them.
func originsOf(set *values.Set, file string, data []byte) map[string]string {
	t, err := document.Parse(file, data, document.FileLimits())
	if err != nil || set == nil {
		return nil
	}
	origins := map[string]string{}
	t.EachText(func(path, text string) {
		var parts []string
		for _, name := range values.Names(text) {
			if v, ok := set.Value(name); ok {
				parts = append(parts, "${"+name+"}: "+v.Origin)
			}
		}
		if len(parts) > 0 {
			origins[path] = strings.Join(parts, ", ")
		}
	})
	return origins
}

// tableOf returns the table of a manifest or a bundle.
func (g *globals) tableOf(ctx context.Context, path string) (t values.Table, err error) {
	if usage.IsYAML(path) {
		data, err := builder.ReadFile(path)
		if err != nil {
			return nil, err
		}
		b, err := builder.SampleManifest(path, data)
		return b.Values, err
	}
	err = g.withCatalog(ctx, path, loginFlags{}, func(c *bundle.Catalog) error {
		b, err := builder.CarriedManifest(ctx, c)
		if err == nil {
			t = b.Values
		}
		return err
	})
	return t, err
}
