package site

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// A GroupFlag switches groups of a bundle on and off.
type GroupFlag struct{ texts []string }

// Add adds the flag.
func (o *GroupFlag) Add(f *pflag.FlagSet) {
	f.StringSliceVar(&o.texts, "group", nil,
		"`NAME` or NAME=off: switch a group of the bundle on or off; remembered for later runs (repeated)")
}

// Words returns the groups that were switched.
func (o *GroupFlag) Words() (groups.Words, error) {
	words, err := groups.ParseWords(o.texts)
	if err != nil {
		return nil, usage.Errorf("--group: %w", err)
	}
	return words, nil
}

// readGroups decides about the groups of the bundle: those of the flag, those that the work directory remembers, and
// the defaults.
func (s *Site) readGroups() error {
	given, err := s.Groups.Words()
	if err != nil {
		return err
	}
	before, err := s.rememberedGroups()
	if err != nil {
		return err
	}
	table := before.Table() // all that is known without a bundle
	if s.Bundle != nil {
		if table, err = groups.Of(s.Bundle.Index()); err != nil {
			return err
		}
	}
	if s.groups, err = table.Switch(before, given); err != nil {
		return usage.Errorf("--group: %w", err)
	}
	return nil
}

// rememberedGroups returns the decisions that the work directory has of an earlier run.
func (s *Site) rememberedGroups() (groups.Words, error) {
	file := filepath.Join(s.workDir, marks.SiteGroups)
	if _, err := os.Stat(file); err != nil {
		return nil, nil //nolint:nilerr // there is none, or opening the work directory reports it
	}
	dir, err := task.OpenWorkDir(s.workDir, true)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	data, err := dir.Read(marks.SiteGroups)
	if err != nil {
		return nil, err
	}
	list, err := values.ParseFile(file, data)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, one := range list {
		texts[one.Name] = one.Text
	}
	words, err := groups.WordsOf(texts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return words, nil
}

// Remember sets the content of the work directory's files of values and of groups, for install and upgrade.
func (s *Site) Remember(in *task.Inputs) (err error) {
	if in.SiteValues, err = s.siteValues(); err == nil {
		in.SiteGroups, err = s.siteGroups()
	}
	return err
}

// siteGroups returns the content of the file of groups, with a word for each; nil for a bundle without groups.
func (s *Site) siteGroups() ([]byte, error) {
	if s.groups.All() {
		return nil, nil
	}
	text, err := yaml.Marshal(s.groups.Words().Texts())
	return append([]byte("# Groups of the bundle that install or upgrade had on or off. The next run takes them over.\n"), text...), err
}

// selectAddons leaves out the addons of groups that are off. A group that the bundle lacks is an error.
func (s *Site) selectAddons(ctx context.Context) error {
	var items []bundle.Item
	var carried []manifest.Chart
	if s.Bundle != nil {
		if err := s.Cluster.UnknownGroups(s.groups.Table().Names()); err != nil || s.groups.All() {
			return err
		}
		items = s.Bundle.Index().Items
		if _, ok := s.Bundle.Find(bundle.KindManifest, bundle.DocumentManifest, ""); ok {
			b, err := builder.CarriedManifest(ctx, &s.Bundle.Catalog)
			if err != nil {
				return err
			}
			carried = b.Charts
		}
	}
	s.Cluster.Addons = s.groups.Entries(s.Cluster.Addons, items, carried)
	return nil
}
