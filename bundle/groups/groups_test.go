package groups_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/manifest"
)

// indexOf returns an index with a table as text.
func indexOf(table string, items ...bundle.Item) bundle.Index {
	return bundle.Index{Annotations: map[string]string{bundle.AnnotationGroups: table}, Items: items}
}

func chart(name string, of ...string) bundle.Item {
	return groups.Mark(bundle.Item{Kind: bundle.KindChart, Ref: name, Name: name}, of)
}

func TestOfRefuses(t *testing.T) {
	for _, c := range []struct{ name, table, want string }{
		{"no JSON", "[", "unexpected end"},
		{"another shape", `{"name":"a"}`, "cannot unmarshal object"},
		{"a name for a terminal", `[{"name":"a\u001b[2J"}]`, "is not the name of a group"},
		{"a name twice", `[{"name":"a"},{"name":"a"}]`, "group a is there twice, or not in its place"},
		{"too long", `[{"name":"` + strings.Repeat("a", 1<<20) + `"}]`, "at most 1048576 are read"},
		{"too many", "[" + strings.Repeat(`{"name":"a"},`, 1000) + `{"name":"a"}]`, "1001 groups; at most 1000 are read"},
		{"too many values", "[" + strings.Repeat("1,", 10_000) + "1]", "values"},
	} {
		if _, err := groups.Of(indexOf(c.table)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	_, err := groups.Of(indexOf(`[{"name":"a"}]`, chart("web", "b")))
	if err == nil || !strings.Contains(err.Error(), `chart web has the group "b", which the bundle does not name`) {
		t.Error(err)
	}
}

func table(t *testing.T, list ...groups.Group) groups.Table {
	t.Helper()
	var x bundle.Index
	if err := groups.Table(list).Put(&x); err != nil {
		t.Fatal(err)
	}
	again, err := groups.Of(x)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(list) {
		t.Fatalf("%v: %v instead of %v", err, again, list)
	}
	return again
}

// TestSwitch: what a site had counts over the default of a new bundle, and what it is given now over both.
func TestSwitch(t *testing.T) {
	list := table(t, groups.Group{Name: "a"}, groups.Group{Name: "b", Optional: true}, groups.Group{Name: "c", Absent: true})
	for _, c := range []struct {
		name          string
		before, given groups.Words
		want          string
	}{
		{"the defaults", nil, nil, "a"},
		{"given ones", nil, groups.Words{"a": false, "b": true}, "b"},
		{"remembered ones", groups.Words{"a": false, "b": true}, nil, "b"},
		{"given over remembered", groups.Words{"a": false, "b": true}, groups.Words{"a": true}, "a b"},
		{"one that the bundle lacks selects nothing", groups.Words{"d": true}, nil, "a"},
	} {
		set, err := list.Switch(c.before, c.given)
		var on []string
		for _, name := range []string{"a", "b", "c", "d"} {
			if set.On(name) {
				on = append(on, name)
			}
		}
		if got := strings.Join(on, " "); err != nil || got != c.want {
			t.Errorf("%s: %v %s, want %s", c.name, err, got, c.want)
		}
	}
	kept, err := list.Switch(groups.Words{"d": true}, nil)
	if err != nil || !kept.Words()["d"] || kept.On("d") {
		t.Errorf("the word for a group of another bundle is lost: %v %v", kept.Words(), err)
	}
	_, err = list.Switch(nil, groups.Words{"c": true, "d": true})
	want := "the items of group c were left out when the bundle was copied; the groups are a, b\nthere is no group d; the groups are a, b"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestEntries(t *testing.T) {
	list := table(t, groups.Group{Name: "a"}, groups.Group{Name: "b", Optional: true})
	items := []bundle.Item{chart("always"), chart("one", "a"), chart("two", "b"), chart("both", "a", "b"), chart("twice", "b"), chart("twice")}
	carried := []manifest.Chart{{Name: "copied", Group: "b"}, {Name: "lost"}}
	set, err := list.Switch(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []manifest.Addon
	for _, name := range []string{"always", "one", "two", "both", "twice", "copied", "lost", "unknown"} {
		all = append(all, manifest.Addon{Chart: name, Release: name})
	}
	all = append(all, manifest.Addon{Release: "a", Group: "a"}, manifest.Addon{Release: "b", Group: "b"},
		manifest.Addon{Chart: "always", Release: "own", Group: "b"})
	var got []string
	for _, a := range set.Entries(all, items, carried) {
		got = append(got, a.Release)
	}
	if want := "always one both twice lost unknown a"; strings.Join(got, " ") != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestEntriesWithoutBundle leaves out entries by the words of a record alone, as for status.
func TestEntriesWithoutBundle(t *testing.T) {
	before := groups.Words{"a": true, "b": false}
	set, err := before.Table().Switch(before, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := []manifest.Addon{{Release: "x", Group: "a"}, {Release: "y", Group: "b"}, {Chart: "z", Release: "z"}}
	var got []string
	for _, a := range set.Entries(list, nil, nil) {
		got = append(got, a.Release)
	}
	if want := "x z"; strings.Join(got, " ") != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBoth(t *testing.T) {
	for _, c := range []struct {
		a, b []string
		want string
	}{
		{nil, nil, ""},
		{[]string{"a"}, nil, ""},
		{nil, []string{"a"}, ""},
		{[]string{"b"}, []string{"a", "b"}, "a b"},
	} {
		if got := strings.Join(groups.Names(groups.Both(chart("x", c.a...), chart("x", c.b...))), " "); got != c.want {
			t.Errorf("%s and %s: %s, want %s", c.a, c.b, got, c.want)
		}
	}
}

func TestParseWords(t *testing.T) {
	words, err := groups.ParseWords([]string{"a", "b=off", "c=on", "a=off"})
	if want := map[string]string{"a": "off", "b": "off", "c": "on"}; err != nil || fmt.Sprint(words.Texts()) != fmt.Sprint(want) {
		t.Errorf("%v %v", err, words.Texts())
	}
	for _, text := range []string{"", "=on", "a=", "a=yes"} {
		if _, err := groups.ParseWords([]string{text}); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
