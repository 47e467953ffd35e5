package installer

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// The tables of docs/build/catalog.md are what the catalog and the tasks say; -update writes them.
func TestCatalogPage(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../docs/build/catalog.md", "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), begin)
	have, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatal("the page has no place for the tables")
	}
	want := catalogTables(t)
	if *tasktest.Update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Errorf("%s is not what the catalog says: run make docs", file)
	}
}

func catalogTables(t *testing.T) string {
	t.Helper()
	k, err := catalog.Merged()
	if err != nil {
		t.Fatal(err)
	}
	users := map[string][]string{}
	texts := []string{"", "cni: {type: multus, with: cilium}"}
	for _, option := range allOptions() {
		texts = append(texts, option.yaml)
	}
	for _, text := range texts {
		for _, d := range plan.Needed(tasktest.Cluster(t, text)) {
			for _, role := range d.Roles {
				users[d.Name] = append(users[d.Name], string(role))
			}
		}
	}
	var b bytes.Buffer
	b.WriteString("| component | what | version | for Kubernetes | hosts |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(k.Components)) {
		one := k.Components[name]
		roles := users[name]
		slices.Sort(roles)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, contents(one), versions(one), fitting(one),
			cmp.Or(strings.Join(slices.Compact(roles), ", "), "on request"))
	}
	b.WriteString("\n| package | Debian, Ubuntu | RPM |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(k.Packages)) {
		rpm := strings.Join(k.Packages[name].RPM, " ")
		for _, release := range slices.Sorted(maps.Keys(k.Packages[name].Releases)) {
			rpm += " " + release + ": " + strings.Join(k.Packages[name].Releases[release], " ") + ";"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, strings.Join(k.Packages[name].Debian, " "),
			strings.TrimSpace(strings.TrimSuffix(rpm, ";")))
	}
	return b.String()
}

func contents(one catalogfile.CatalogEntry) string {
	var list []string
	if f := one.File; f != nil {
		text := "file"
		if f.Checksums == "" {
			text += " without upstream's checksum"
		}
		if _, all := f.URL[scalar.AllPlatforms]; !all {
			text += " for " + strings.Join(slices.Sorted(maps.Keys(f.URL)), ", ")
		}
		list = append(list, text)
	}
	if n := len(one.Images); n > 1 {
		list = append(list, fmt.Sprintf("%d images", n))
	} else if n == 1 {
		list = append(list, "image")
	}
	if one.Chart != nil {
		list = append(list, "chart")
	}
	text := strings.Join(list, ", ")
	if len(one.Platforms) > 0 {
		text += " for " + strings.Join(one.Platforms, ", ")
	}
	return text
}

func versions(one catalogfile.CatalogEntry) string {
	leader := cmp.Or(one.Follows, "kubernetes")
	switch {
	case one.Default != "":
		return one.Default
	case len(one.Since) == 0:
		return "that of " + leader
	}
	var list []string
	for _, from := range slices.Sorted(maps.Keys(one.Since)) {
		list = append(list, from+": "+one.Since[from])
	}
	return "by " + leader + ": " + strings.Join(list, ", ")
}

func fitting(one catalogfile.CatalogEntry) string {
	var list []string
	for _, f := range one.Fits {
		to := " on"
		if f.To != "" {
			to = " to " + f.To
		}
		list = append(list, f.Line+" "+f.From+to)
	}
	if s := one.Skew; s != nil {
		list = append(list, fmt.Sprintf("-%d to +%d minor releases", s.Older, s.Newer))
	}
	for _, from := range slices.Sorted(maps.Keys(one.Minimum)) {
		list = append(list, from+": at least "+one.Minimum[from])
	}
	return strings.Join(list, "; ")
}
