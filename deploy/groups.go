package deploy

import (
	"context"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/manifest"
)

// A SiteGroup is a group of the bundle with the site's decision.
type SiteGroup struct {
	Name string `json:"name"`
	On   bool   `json:"on"`
	// From is --group, record or default.
	From string `json:"from"`
	// Changed means that the run before had it the other way, or did not have it.
	Changed bool `json:"changed"`
}

// String returns the decision for people.
func (g SiteGroup) String() string {
	word := "off"
	if g.On {
		word = "on"
	}
	return fmt.Sprintf("%s is %s, from %s", g.Name, word, g.From)
}

// siteGroups are the groups that are on, and what is remembered of the run before.
type siteGroups struct {
	set   groups.Set
	texts map[string]string // of the record, as it was read
	read  bool
}

// selectGroups decides about the groups of the bundle. Only for a bundle with groups it connects to the cluster, which
// remembers the decisions.
func (r *run) selectGroups(ctx context.Context) error {
	table, err := groups.Of(r.bundle.Index())
	if err != nil {
		return err
	}
	before := groups.Words{}
	if len(table) > 0 {
		if before, err = r.rememberedGroups(ctx); err != nil {
			return err
		}
	}
	if r.groups.set, err = table.Switch(before, r.Groups); err != nil {
		return &ValueError{err}
	}
	for _, g := range table {
		one := SiteGroup{Name: g.Name, On: r.groups.set.On(g.Name), From: "default"}
		was, known := before[g.Name]
		if known {
			one.From = "record"
		}
		if _, given := r.Groups[g.Name]; given {
			one.From = "--group"
		}
		one.Changed = !known || was != r.groups.set.Words()[g.Name]
		r.report.Groups = append(r.report.Groups, one)
	}
	return nil
}

// rememberedGroups returns the decisions of the run before.
func (r *run) rememberedGroups(ctx context.Context) (groups.Words, error) {
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	list, err := r.records(ctx)
	if err != nil {
		return nil, err
	}
	r.groups.read = true
	i := slices.IndexFunc(list, func(one *Record) bool { return one.Name == r.report.Name })
	if i < 0 {
		return groups.Words{}, nil
	}
	r.groups.texts = list[i].Groups
	words, err := groups.WordsOf(list[i].Groups)
	if err != nil {
		return nil, &ObjectError{"ConfigMap " + Namespace + "/" + recordName(r.report.Name), err}
	}
	return words, nil
}

// items returns the items of the bundle whose groups are on.
func (r *run) items() []bundle.Item { return r.groups.set.Items(r.bundle.Index().Items) }

// listedImages returns the images of the manifest whose groups are on.
func (r *run) listedImages() []manifest.Image {
	return slices.DeleteFunc(slices.Clone(r.manifest.Images), func(image manifest.Image) bool {
		return image.Group != "" && !r.groups.set.On(image.Group)
	})
}
