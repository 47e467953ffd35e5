package catalog

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

// The images of releases that upstream's own lists were recorded of.
func TestImagesAreUpstreams(t *testing.T) {
	text, err := os.ReadFile("testdata/images.txt")
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[[2]string]map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("%q", line)
		}
		release := [2]string{f[0], f[1]}
		if recorded[release] == nil {
			recorded[release] = map[string]bool{}
		}
		recorded[release][f[2]] = true
	}
	for release, list := range recorded {
		name, version := release[0], release[1]
		if name == "flannel-cni-plugin" { // recorded by the release of flannel
			name = "flannel"
		}
		c := cluster(t, "v1.34.3", "components: {"+name+": {version: \""+version+"\"}}\n")
		a, err := Items(c, manifest.Need{Kind: manifest.ItemImage, Name: release[0]})
		if err != nil || len(a.Images) == 0 || len(a.Notes) > 0 {
			t.Errorf("%v: %v, %q", release, err, a.Notes)
		}
		for _, image := range a.Images {
			if !list[image.Name] {
				t.Errorf("%v: upstream's list has no %s", release, image.Name)
			}
		}
	}
}

// Of a version that nobody recorded, images with a tag of their own are left to the chart, and that is said.
func TestUnknownVersion(t *testing.T) {
	c := cluster(t, "v1.34.3", "components: {hybridnet: {version: v0.6.99}}\n")
	a, err := Items(c, manifest.Need{Kind: manifest.ItemImage, Name: "hybridnet"})
	if err != nil || len(a.Images) != 0 {
		t.Errorf("%+v, %v", a.Images, err)
	}
	const want = "the catalog does not know which docker.io/hybridnetdev/hybridnet goes with hybridnet v0.6.99; it is taken from where the chart names it"
	if len(a.Notes) != 1 || a.Notes[0] != want {
		t.Errorf("notes %q", a.Notes)
	}
}

// Images and charts that only some versions have.
func TestImagesOfSomeVersions(t *testing.T) {
	for version, want := range map[string]string{
		"v3.29.7": "cni typha", "v3.30.0": "cni typha whisker whisker-backend",
		"v3.32.1": "calico-crds cni typha whisker whisker-backend",
		"v3.33.0": "calico calico-crds whisker", "v4.0.0": "calico calico-crds whisker",
	} {
		c := cluster(t, "v1.34.3", "components: {calico: {version: "+version+"}}\n")
		var got []string
		for name, kind := range map[string]string{"calico": manifest.ItemImage, "calico-crds": manifest.ItemChart} {
			a, err := Items(c, manifest.Need{Kind: kind, Name: name})
			if err != nil {
				t.Fatal(err)
			}
			for range a.Charts {
				got = append(got, name)
			}
			for _, image := range a.Images {
				one := strings.TrimSuffix(strings.TrimPrefix(image.Name, "quay.io/calico/"), ":"+version)
				if slices.Contains([]string{"calico", "cni", "typha", "whisker", "whisker-backend"}, one) {
					got = append(got, one)
				}
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}
