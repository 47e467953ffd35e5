package catalog

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// TestCarried: a bundle's catalog has every entry of the program's, and the same bytes each time.
func TestCarried(t *testing.T) {
	data, err := Carried()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Carried(); err != nil || !bytes.Equal(data, again) {
		t.Errorf("the second time differs: %v", err)
	}
	k, err := ParseCarried("catalog.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	own, err := builtin()
	if err != nil {
		t.Fatal(err)
	}
	want := *own
	want.Zones, want.APIVersion, want.Kind = nil, manifest.APIVersion, manifest.KindCatalog
	if diff := cmp.Diff(&want, k, cmpopts.IgnoreUnexported(catalogfile.Catalog{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// TestBaseReplacesProgramsCatalog: a cluster with a bundle's catalog gets its versions and names, the user's catalogs
// count beside it, and only names that it lacks come from the program.
func TestBaseReplacesProgramsCatalog(t *testing.T) {
	base, err := ParseCarried("catalog.yaml", []byte(carriedOld))
	if err != nil {
		t.Fatal(err)
	}
	c := cluster(t, "v1.34.3", "")
	c.Base = base
	ref, err := Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: "runc"}, "linux/amd64")
	if err != nil || ref != "https://old.example/v1.2.6/runc.amd64" {
		t.Errorf("runc is %q, %v", ref, err)
	}
	if ref, err = ImageRef(c, "pause"); err != nil || ref != "registry.k8s.io/pause:3.8" {
		t.Errorf("pause is %q, %v", ref, err)
	}
	if names, err := Packages(c, []string{"conntrack"}, "debian/12"); err != nil ||
		strings.Join(names, " ") != "conntrack-old" {
		t.Errorf("packages %q, %v", names, err)
	}
	if base.Releases["v1.34"] != "v1.34.1" || len(base.Releases) != 1 {
		t.Errorf("releases %v: want those of the bundle's catalog", base.Releases)
	}
	if _, err := Version(c, "containerd"); err != nil {
		t.Errorf("a component that the bundle's catalog lacks: %v", err)
	}
	own, err := manifest.ParseCatalog("own.yaml",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Catalog\ncomponents: {pause: {default: \"3.7\", images: [\"registry.k8s.io/pause:{version}\"]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c.Catalogs = []*catalogfile.Catalog{own}
	if ref, err = ImageRef(c, "pause"); err != nil || ref != "registry.k8s.io/pause:3.7" {
		t.Errorf("pause is %q with the cluster's own catalog, %v", ref, err)
	}
}

const carriedOld = `apiVersion: kkbundle.io/v1
kind: Catalog
releases: {v1.34: v1.34.1}
components:
  runc: {default: v1.2.6, file: {url: "https://old.example/{version}/runc.{arch}"}}
  pause: {default: "3.8", images: ["registry.k8s.io/pause:{version}"]}
packages:
  conntrack: {debian: [conntrack-old]}
`

// TestHostileCarried: a bundle's catalog that names files of the machine, or options of a package manager, is refused.
func TestHostileCarried(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a mirror's key": {
			carriedOld + "zones: {cn: [{host: a.example, mirror: b.example, ca: /etc/shadow}]}\n",
			"a bundle's catalog has no mirrors",
		},
		"a package's option": {
			strings.Replace(carriedOld, "conntrack-old", "-oDir=/tmp/x", 1),
			"is not a package name",
		},
		"a package's path": {strings.Replace(carriedOld, "conntrack-old", "../x.deb", 1), "is not a package name"},
		"a newer key":      {carriedOld + "zeal: 1\n", "zeal"},
		"a version":        {strings.Replace(carriedOld, "v1.2.6", "v1.2.6;id", 1), "is not a version"},
		"nothing":          {"apiVersion: kkbundle.io/v1\nkind: Catalog\n", "lists no releases"},
		"too much":         {carriedOld + "# " + strings.Repeat("x", 5<<20), "at most"},
	} {
		if _, err := ParseCarried("catalog.yaml", []byte(c.text)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
