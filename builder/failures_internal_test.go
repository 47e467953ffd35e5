package builder

import (
	"fmt"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestAnnounce names the first items that cannot be fetched, and counts the others: a registry that is down has all
// of them.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{
		0: "",
		5: "not available: i1, i2, i3, i4, i5; the other items are fetched",
		7: "not available: i1, i2, i3, i4, i5, and 2 more; the other items are fetched",
	} {
		var items []*fetch.ItemError
		for i := range n {
			items = append(items, &fetch.ItemError{Ref: fmt.Sprintf("i%d", i+1)})
		}
		var said string
		s := newSession(&Project{}, Options{Events: func(e Event) { said += e.Text }})
		if (&failures{}).announce(s, items); said != want {
			t.Errorf("%d items: got %q, want %q", n, said, want)
		}
	}
}

// TestPlacesOfItems: an error of an item names its line in the manifest, before and after a version is chosen.
func TestPlacesOfItems(t *testing.T) {
	t.Parallel()
	const text = `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: a, version: 1.0.0}
platforms: [linux/amd64]
images: ["nginx:1.29"]
charts:
  - {repo: "https://charts.example", name: web, version: 1.x}
  - {repo: "oci://r.example/charts", name: newest, version: ">=1.0.0"}
files:
  - {name: tool, url: "https://dl.example/tool-{arch}"}
  - {name: notes, path: notes.txt}
packages:
  - {distribution: debian/12, install: [curl]}
`
	m, err := manifest.ParseBundle("m.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &Project{Manifest: m}
	for _, c := range []struct {
		item fetch.ItemError
		want string
	}{
		{fetch.ItemError{Kind: manifest.ItemImage, Ref: "docker.io/library/nginx:1.29"}, "m.yaml:5"},
		{fetch.ItemError{Kind: manifest.ItemChart, Ref: "https://charts.example/web:1.x"}, "m.yaml:7"},
		{fetch.ItemError{Kind: manifest.ItemChart, Ref: "https://charts.example/web:1.2.3"}, "m.yaml:7"},
		{fetch.ItemError{Kind: manifest.ItemChart, Ref: "https://charts.example/web:2.0.0"}, ""},
		{fetch.ItemError{Kind: manifest.ItemChart, Ref: "oci://r.example/charts/newest:1.1.0"}, "m.yaml:8"},
		{fetch.ItemError{Kind: manifest.ItemFile, Ref: "https://dl.example/tool-arm64", Platform: "linux/arm64"}, "m.yaml:10"},
		{fetch.ItemError{Kind: manifest.ItemFile, Ref: "local/notes"}, "m.yaml:11"},
		{fetch.ItemError{Kind: manifest.ItemFile, Ref: "https://dl.example/other"}, ""},
		{fetch.ItemError{Kind: manifest.ItemFile, Ref: manifest.PackageRef("debian/12", ""), Platform: "linux/amd64"}, "m.yaml:13"},
		{fetch.ItemError{Kind: manifest.ItemFile, Ref: manifest.PackageRef("debian/12", "curl_8.deb")}, "m.yaml:13"},
	} {
		p.placeItems(&fetch.Errors{Failed: []*fetch.ItemError{&c.item}})
		if c.item.Place != c.want {
			t.Errorf("%s %s: %q, want %q", c.item.Kind, c.item.Ref, c.item.Place, c.want)
		}
	}
}
