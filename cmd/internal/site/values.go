package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// ReadValues reads files of values and single values, as --values and --set have them.
func ReadValues(files, sets []string) (given []values.Given, err error) {
	for _, file := range files {
		data, err := builder.ReadFile(file)
		if err != nil {
			return nil, err
		}
		list, err := values.ParseFile(file, data)
		if err != nil {
			return nil, err
		}
		given = append(given, list...)
	}
	for _, text := range sets {
		one, err := values.ParseSet(text)
		if err != nil {
			return nil, &usage.Error{Err: err}
		}
		given = append(given, one)
	}
	return given, nil
}

// CarriedTable returns the table of values in the manifest that a bundle carries, nil without one.
func CarriedTable(ctx context.Context, c *bundle.Catalog) values.Table {
	b, err := builder.CarriedManifest(ctx, c)
	if err != nil {
		return nil // whoever needs the manifest reports it
	}
	return b.Values
}

// readValues reads the values of the bundle's table: --set and --values, variables, those that the work directory
// remembers, and those of the bundle's lock.
func (s *Site) readValues(ctx context.Context) error {
	var t values.Table
	if s.Bundle != nil {
		t = CarriedTable(ctx, &s.Bundle.Catalog)
	}
	var sets []string
	s.settings, sets = SplitSettings(s.settings, t)
	given, err := ReadValues(s.valueFiles, sets)
	if err != nil {
		return err
	}
	if len(t) == 0 {
		if len(s.valueFiles) > 0 {
			return usage.Errorf("--values gives values of a bundle's table: the bundle has none, or no bundle was named")
		}
		return nil
	}
	known, err := builder.CarriedValues(ctx, &s.Bundle.Catalog)
	if err != nil {
		return err
	}
	remembered, err := s.rememberedValues()
	if err != nil {
		return err
	}
	data, err := s.Bundle.Document(ctx, bundle.KindManifest, bundle.DocumentManifest)
	if err != nil {
		return err
	}
	b, err := manifest.ParseBundleWith(bundle.DocumentManifest, data,
		func(t values.Table, src *document.Tree) (*values.Set, error) {
			o := ValueOptions(s.console, t, append(known, remembered...), given)
			o.NoSecrets = !s.Secrets
			return t.Resolve(ctx, src, o)
		})
	s.set = b.Set
	return err
}

// SplitSettings separates values of the table from settings of the cluster file: those with the name of a value that
// is no key of a cluster file. A manifest has no value of the site with such a name.
func SplitSettings(settings []string, t values.Table) (ofCluster, ofTable []string) {
	keys := document.Fields(reflect.TypeFor[manifest.Cluster]())
	for _, one := range settings {
		name, _, _ := strings.Cut(one, "=")
		_, known := t.Find(name)
		if known && !slices.ContainsFunc(keys, func(f document.Field) bool { return f.Name == name }) {
			ofTable = append(ofTable, one)
		} else {
			ofCluster = append(ofCluster, one)
		}
	}
	return ofCluster, ofTable
}

// rememberedValues returns the values that the work directory has of an earlier run.
func (s *Site) rememberedValues() ([]values.Given, error) {
	if _, err := os.Stat(filepath.Join(s.workDir, marks.SiteValues)); err != nil {
		return nil, nil //nolint:nilerr // there is none, or opening the work directory reports it
	}
	dir, err := task.OpenWorkDir(s.workDir, true)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	data, err := dir.Read(marks.SiteValues)
	if err != nil {
		return nil, err
	}
	list, err := values.ParseFile(filepath.Join(s.workDir, marks.SiteValues), data)
	for i := range list {
		list[i].Layer = values.FromRecord
	}
	return list, err
}

// siteValues returns the content of the work directory's file of values: those that somebody gave and that are no
// secret; nil without a table.
func (s *Site) siteValues() ([]byte, error) {
	if s.set == nil {
		return nil, nil
	}
	given := map[string]string{}
	for _, v := range s.set.List() {
		if v.IsAt(values.Site) && v.Layer != values.FromDefault && !v.Secret {
			given[v.Name] = v.Text
		}
	}
	text, err := yaml.Marshal(given)
	return append([]byte("# Values of the site that install or upgrade was given. The next run takes them over.\n"), text...), err
}

// ValueOptions say where the values of a table come from at the site: known ones, those of variables, and those that
// the operator gave. A missing one is asked for on a terminal.
func ValueOptions(console *terminal.Console, t values.Table, known, given []values.Given) values.Options {
	return values.Options{
		At: values.Site, Given: slices.Concat(known, t.Environment(values.Site, os.LookupEnv), given),
		Ask: func(ctx context.Context, d values.Definition) (string, error) {
			ask := console.Ask
			if d.Secret {
				ask = console.AskSecret
			}
			text, err := ask(ctx, question(d))
			if errors.Is(err, terminal.ErrNoTerminal) {
				return "", values.ErrNobody
			}
			return text, err
		},
	}
}

// question describes a value to a person.
func question(d values.Definition) string {
	var about []string
	if d.Description != "" {
		about = append(about, plain.Line(d.Description))
	}
	if d.Example != nil {
		about = append(about, "such as "+plain.Line(string(*d.Example)))
	}
	if len(about) == 0 {
		return d.Name
	}
	return fmt.Sprintf("%s (%s)", d.Name, strings.Join(about, "; "))
}
