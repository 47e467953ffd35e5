package registry_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry"
)

func TestDestinationRenamed(t *testing.T) {
	t.Parallel()
	image := func(ref string) bundle.Item { return bundle.Item{Kind: bundle.KindImage, Ref: ref} }
	rules := []string{"docker.io/library=base", "docker.io=hub/all", "registry.lab:5000/team=", "ghcr.io=gh"}
	cases := []struct {
		item bundle.Item
		want string
	}{
		{image("docker.io/library/nginx:1.29"), "h.site/p/base/nginx:1.29"},
		{image("docker.io/libraryx/nginx:1"), "h.site/p/hub/all/libraryx/nginx:1"},
		{image("registry.lab:5000/team/app:1"), "h.site/p/app:1"},
		{image("registry.lab:5000/teams/app:1"), "h.site/p/registry.lab_5000/teams/app:1"},
		{image("quay.io/a/b:1"), "h.site/p/quay.io/a/b:1"},
		{
			bundle.Item{Kind: bundle.KindChart, Ref: "https://ghcr.io/charts/demo:1.0.0"},
			"h.site/p/gh/charts/demo:1.0.0",
		},
	}
	var parsed []registry.Rename
	for _, text := range rules {
		r, err := registry.ParseRename(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, r)
	}
	for _, c := range cases {
		got, err := registry.Destination("h.site/p", c.item, parsed...)
		if err != nil || got.Name() != c.want {
			t.Errorf("%s: got %v, %v; want %s", c.item, got, err, c.want)
		}
	}
	if got, err := registry.Destination("h.site", image("registry.lab:5000/team:1"), parsed...); err == nil {
		t.Errorf("a name of which nothing is left: %v", got)
	}
}

func TestParseRenameRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"docker.io": "write FROM=TO", "=base": "write FROM=TO", "docker.io=Base": "not a repository name",
		"docker.io/Lib=x": "not the beginning", "a=b/../c": "not a repository name",
	} {
		if _, err := registry.ParseRename(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
