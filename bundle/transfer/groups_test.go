package transfer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/bundle/transfer"
)

// grouped returns a bundle of one image in these groups, with their table.
func grouped(t *testing.T, names ...string) transfer.Source {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Index.Name, b.Index.Version = "x", "1"
	var table groups.Table
	for _, name := range names {
		table = append(table, groups.Group{Name: name})
	}
	if err := table.Put(&b.Index); err != nil {
		t.Fatal(err)
	}
	b.Image("docker.io/library/app:1", bundletest.RandomImage(t, 1, 1, 500))
	for i := range b.Index.Items {
		b.Index.Items[i] = groups.Mark(b.Index.Items[i], names)
	}
	return transfer.Source{Name: "x " + strings.Join(names, " "), Catalog: &b.Bundle().Reader.Catalog}
}

// TestGroupsOfSeveral joins bundles that have one item in different groups: it belongs to the groups of all, and to
// every selection if one bundle has it so.
func TestGroupsOfSeveral(t *testing.T) {
	for _, c := range []struct {
		from []transfer.Source
		want string
	}{
		{[]transfer.Source{grouped(t, "a"), grouped(t, "b")}, "a b"},
		{[]transfer.Source{grouped(t, "a"), grouped(t)}, ""},
		{[]transfer.Source{grouped(t), grouped(t, "a")}, ""},
		{[]transfer.Source{grouped(t, "a"), grouped(t, "a")}, "a"},
	} {
		p, err := transfer.Selection{}.Plan(t.Context(), c.from)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range p.Index.Items {
			if got := strings.Join(groups.Names(it), " "); it.Kind == bundle.KindImage && got != c.want {
				t.Errorf("%s and %s: %q, want %q", c.from[0].Name, c.from[1].Name, got, c.want)
			}
		}
		if _, err := groups.Of(p.Index); err != nil {
			t.Error(err)
		}
	}
	if p, err := transfer.PlanAdded(t.Context(), grouped(t, "a"), grouped(t)); err != nil ||
		!slices.Equal(groups.Names(p.Index.Items[0]), []string{"a"}) {
		t.Errorf("an item that is added again has the groups %q, %v", groups.Names(p.Index.Items[0]), err)
	}
	_, err := transfer.Selection{Groups: []string{"c"}}.Plan(t.Context(), []transfer.Source{grouped(t, "a"), grouped(t, "b")})
	if err == nil || err.Error() != "there is no group c; the groups are a, b" {
		t.Error(err)
	}
}
