package closure_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/proof/closure"
)

const (
	amd = "linux/amd64"
	arm = "linux/arm64"
)

func platforms() []string { return []string{amd, arm} }

func cluster(t *testing.T) *manifest.Cluster {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml", []byte(`
apiVersion: kkbundle.io/v1
kind: Cluster
metadata: {name: site}
kubernetes: {version: v1.34.3}
cni: {type: flannel}
imageRegistry: {type: registry}
addons:
  - {chart: demo, release: front, namespace: shop, values: [values/front.yaml]}
`))
	if err != nil {
		t.Fatal(err)
	}
	return c.WithDefaults()
}

// standIns is a bundle with everything that the cluster needs by name; what the items hold is made up.
func standIns(t *testing.T, c *manifest.Cluster) *bundletest.Bundle {
	t.Helper()
	b := bundletest.NewBuilder(t)
	more, err := catalog.Resolve(c, plan.Needed(c), catalog.Options{Platforms: platforms()})
	if err != nil {
		t.Fatal(err)
	}
	for i, image := range more.Images {
		ref, err := image.Ref()
		if err != nil {
			t.Fatal(err)
		}
		b.ImageIndex(ref, bundletest.MultiImage(t, int64(i)))
	}
	for _, f := range more.Files {
		for _, p := range platforms() {
			_, arch, _ := strings.Cut(p, "/")
			url := manifest.FileURL(f, p)
			b.File(url, f.Name, &ocispec.Platform{OS: "linux", Architecture: arch}, []byte(url))
		}
	}
	for _, chart := range more.Charts {
		b.Chart(chart.URL, chart.Name, chart.Version, bundletest.ChartArchive(t, chart.Name, "1.0.0"))
	}
	b.Chart("https://charts.example/demo:1.2.3", "demo", "1.2.3", bundletest.ChartArchive(t, "demo", "1.2.3"))
	b.ImageIndex("docker.io/library/shop:1", bundletest.MultiImage(t, 100))
	b.File("local/notes", "notes", nil, []byte("nobody needs it"))
	values := bundle.Item{Kind: bundle.KindManifest, Ref: "values/front.yaml", Name: "values/front.yaml"}
	m := b.JSON(ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: bundle.ArtifactTypeFile,
		Config: typed(b.Bytes([]byte("{}")), bundle.MediaTypeEmpty),
		Layers: []ocispec.Descriptor{typed(b.Bytes([]byte("a: 1\n")), bundle.MediaTypeFileContent)},
	})
	values.Descriptor = typed(m, ocispec.MediaTypeImageManifest)
	values.Descriptor.ArtifactType = bundle.ArtifactTypeFile
	b.Item(values)
	return b.Bundle()
}

func typed(d ocispec.Descriptor, mediaType string) ocispec.Descriptor {
	d.MediaType = mediaType
	return d
}

// front is where the chart's image is found.
func front() []discover.Image {
	return []discover.Image{{Ref: "docker.io/library/shop:1", Place: discover.Place{
		Source: "chart demo 1.2.3", File: "demo/templates/a.yaml", Object: "Deployment shop/front",
		Path: "spec.template.spec.containers[0].image",
	}}}
}

func needs(t *testing.T, c *manifest.Cluster) []closure.Need {
	t.Helper()
	list, err := closure.OfCluster(c, platforms(), "")
	if err != nil {
		t.Fatal(err)
	}
	return append(list, closure.OfImages(front(), platforms(), nil)...)
}

// contents are those of a real bundle's items.
func contents(t *testing.T, r *bundle.Reader, items []bundle.Item) []closure.Item {
	t.Helper()
	list, err := closure.Contents(t.Context(), items, r.ReadBlob)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestEachItemIsNeeded takes every item of a cluster's bundle away in turn, and of every image each platform.
func TestEachItemIsNeeded(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := standIns(t, c).Reader
	items := r.Index().Items
	record, err := closure.Check(needs(t, c), contents(t, r, items))
	if err != nil {
		t.Fatal(err)
	}
	extra := 0
	for i, it := range items {
		rest := contents(t, r, slices.Delete(slices.Clone(items), i, i+1))
		_, missing := closure.Check(needs(t, c), rest)
		if it.Ref == "local/notes" {
			extra++
			if missing != nil || record.Compare(rest) != nil {
				t.Errorf("without %s, which nobody needs: %v", it, missing)
			}
			continue
		}
		wantSentence(t, missing, it.Kind, it.Ref)
		wantSentence(t, record.Compare(rest), it.Kind, it.Ref)
	}
	if extra != 1 {
		t.Errorf("%d extra items, not 1", extra)
	}
	for i, it := range items {
		if it.Kind != bundle.KindImage {
			continue
		}
		half, ok, err := r.Narrow(t.Context(), it, func(p string) bool { return p == amd })
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		some := slices.Clone(items)
		some[i] = half
		_, missing := closure.Check(needs(t, c), contents(t, r, some))
		wantSentence(t, missing, "image", it.Ref+" for "+arm)
		wantSentence(t, record.Compare(contents(t, r, some)), "image", it.Ref+" for "+arm)
	}
}

// wantSentence wants every sentence to be about the item, and to say who needs it.
func wantSentence(t *testing.T, err error, kind, what string) {
	t.Helper()
	var missing *closure.MissingError
	if !errors.As(err, &missing) {
		t.Errorf("without %s %s: %v", kind, what, err)
		return
	}
	for _, text := range missing.Missing {
		about := text
		if kind == "chart" && strings.Contains(what, "/demo:") {
			// an addon names the chart, not where it is from
			about = strings.Replace(text, "chart demo ", "chart "+what+" ", 1)
		}
		named := strings.Contains(text, ": task ") || strings.Contains(text, ": chart demo 1.2.3: ")
		if !strings.HasPrefix(about, kind+" "+what) || !named {
			t.Errorf("without %s %s: %s", kind, what, text)
		}
	}
}

func TestSentences(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := standIns(t, c).Reader
	items := slices.DeleteFunc(slices.Clone(r.Index().Items), func(it bundle.Item) bool {
		return it.Name == "kubeadm" || it.Name == "demo" || strings.Contains(it.Ref, "/etcd:") ||
			it.Ref == "docker.io/library/shop:1"
	})
	_, err := closure.Check(needs(t, c), contents(t, r, items))
	want := `5 needed items are missing:
  chart demo is missing: task addon-front on kube_control_plane needs it
  file https://dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubeadm for linux/amd64 is missing: task kubelet on k8s_cluster needs it
  file https://dl.k8s.io/release/v1.34.3/bin/linux/arm64/kubeadm for linux/arm64 is missing: task kubelet on k8s_cluster needs it
  image docker.io/library/shop:1 is missing: chart demo 1.2.3: demo/templates/a.yaml: Deployment shop/front: spec.template.spec.containers[0].image needs it
  image registry.k8s.io/etcd:3.6.5-0 is missing: task kubeadm-init on kube_control_plane needs it, and also kubeadm v1.34.3 on kube_control_plane`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

// TestOwnVersions: kubeadm is told of versions under components, but pulls its own pause image.
func TestOwnVersions(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	c.Components = map[string]manifest.Component{"coredns": {Version: "v1.13.1"}, "pause": {Version: "3.10"}}
	r := standIns(t, c).Reader
	_, err := closure.Check(needs(t, c), contents(t, r, r.Index().Items))
	if err == nil || err.Error() != "image registry.k8s.io/pause:3.10.1 is missing: kubeadm v1.34.3 on kube_control_plane needs it" {
		t.Errorf("got %v", err)
	}
}

func TestPlatforms(t *testing.T) {
	t.Parallel()
	ref := "docker.io/library/shop:1"
	for name, tc := range map[string]struct {
		there   closure.Item
		needs   []closure.Need
		missing string // platforms
	}{
		"all": {closure.Item{Platforms: platforms()}, closure.OfImages(front(), platforms(), nil), ""},
		"for no one": {closure.Item{Platforms: []string{}}, closure.OfImages(front(), platforms(), nil), amd +
			"," + arm},
		"any": {closure.Item{}, closure.OfImages(front(), platforms(), nil), ""},
		"one": {
			closure.Item{Platforms: []string{amd}},
			closure.OfImages(front(), platforms(), nil),
			arm,
		},
		"one is wanted": {
			closure.Item{Platforms: []string{amd}},
			closure.OfImages(front(), platforms(), map[string][]string{ref: {amd}}), "",
		},
		"upstream lacks one": {
			closure.Item{Platforms: []string{amd}, Lacks: []string{arm}},
			closure.OfImages(front(), platforms(), nil), "",
		},
		"a task needs it": {
			closure.Item{Platforms: []string{amd}, Lacks: []string{arm}},
			[]closure.Need{{Kind: "image", Ref: ref, Platforms: platforms(), By: closure.User{Task: "a"}}},
			arm,
		},
		"a variant": {
			closure.Item{Platforms: []string{amd, arm + "/v8"}},
			closure.OfImages(front(), platforms(), nil), "",
		},
		"an older variant": {
			closure.Item{Platforms: []string{"linux/arm/v6"}},
			closure.OfImages(front(), []string{"linux/arm/v7"}, nil), "",
		},
		"a newer variant": {
			closure.Item{Platforms: []string{amd + "/v3"}},
			closure.OfImages(front(), []string{amd + "/v2"}, nil), amd + "/v2",
		},
	} {
		tc.there.Kind, tc.there.Ref = "image", ref
		_, err := closure.Check(tc.needs, []closure.Item{tc.there})
		var got []string
		var missing *closure.MissingError
		if errors.As(err, &missing) {
			for _, text := range missing.Missing {
				_, after, _ := strings.Cut(text, " for ")
				platform, _, _ := strings.Cut(after, " ")
				got = append(got, platform)
			}
		}
		if strings.Join(got, ",") != tc.missing {
			t.Errorf("%s: missing for %v, want %q: %v", name, got, tc.missing, err)
		}
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	r := standIns(t, c).Reader
	there := contents(t, r, r.Index().Items)
	there[0].Ref = "https://user:secret@" + strings.Repeat("x", 5) + ".example/a?token=secret"
	var first []byte
	for range 3 {
		list := needs(t, c)
		slices.Reverse(list)
		slices.Reverse(there)
		record, _ := closure.Check(list, there)
		data, err := record.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = data
		}
		if string(data) != string(first) {
			t.Error("another order gives another record")
		}
	}
	if strings.Contains(string(first), "secret") {
		t.Error("a secret is in the record")
	}
	back, err := closure.ParseRecord(first)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := back.Marshal(); err != nil || string(again) != string(first) {
		t.Error("what is read is not what was written", err)
	}
	for _, bad := range []string{"", "[]", `{"version":2}`, `{"version":1,"items":[{"neededBy":1}]}`} {
		if _, err := closure.ParseRecord([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestContentsOfDamage: what cannot be read is an error, and no image without platforms.
func TestContentsOfDamage(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"no JSON": "{", "an empty text": ""} {
		d := digest.FromString(text)
		it := bundle.Item{
			Kind: bundle.KindImage, Ref: "docker.io/library/a:1",
			Descriptor: ocispec.Descriptor{Digest: d, MediaType: ocispec.MediaTypeImageIndex},
		}
		_, err := closure.Contents(t.Context(), []bundle.Item{it},
			func(context.Context, digest.Digest, int64) ([]byte, error) { return []byte(text), nil })
		if err == nil {
			t.Errorf("%s was read", name)
		}
	}
	nested := func(_ context.Context, d digest.Digest, _ int64) ([]byte, error) {
		return []byte(`{"manifests":[{"digest":"` + digest.FromString(d.String()).String() + `"}]}`), nil
	}
	it := bundle.Item{Kind: bundle.KindImage, Descriptor: ocispec.Descriptor{
		Digest:    digest.FromString("a"),
		MediaType: ocispec.MediaTypeImageIndex,
	}}
	if _, err := closure.Contents(t.Context(), []bundle.Item{it}, nested); err == nil {
		t.Error("indexes without end were read")
	}
}

// TestSingleImage: an image without index is for the platform of its configuration.
func TestSingleImage(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	img, err := mutate.ConfigFile(bundletest.RandomImage(t, 1, 1, 10), &v1.ConfigFile{
		OS: "linux", Architecture: "arm",
		Variant: "v7",
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Image("docker.io/library/shop:1", img)
	r := b.Bundle().Reader
	if got := contents(t, r, r.Index().Items); len(got) != 1 ||
		!slices.Equal(got[0].Platforms, []string{"linux/arm/v7"}) {
		t.Errorf("got %v, want linux/arm/v7", got)
	}
}

// TestUpgrade: what the releases on the way of an upgrade add is needed, each item of it, by the task that installs it.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	c.Kubernetes.UpgradeFrom = "v1.31.4"
	r := standIns(t, c).Reader
	there := contents(t, r, r.Index().Items)
	record, err := closure.Check(needs(t, c), there)
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, e := range record.Items {
		if len(e.NeededBy) == 0 && e.Ref != "local/notes" {
			t.Errorf("nobody needs %s %s", e.Kind, e.Ref)
		}
		if strings.Contains(e.Ref, "v1.32.") || strings.Contains(e.Ref, "v1.33.") {
			steps++
		}
	}
	if steps < 14 { // of two releases kubeadm, kubectl and kubelet for two platforms, and the images
		t.Errorf("%d items of the releases between", steps)
	}
	for i, it := range there {
		if strings.Contains(it.Ref, "v1.32.") {
			_, err := closure.Check(needs(t, c), slices.Delete(slices.Clone(there), i, i+1))
			wantSentence(t, err, it.Kind, it.Ref)
		}
	}
}

// TestPackages: what tasks need of an operating system is there by one of its names, for every platform; the rest is
// there because the manifest has packages of that distribution.
func TestPackages(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := &manifest.Bundle{Platforms: platforms(), Packages: []manifest.PackageSet{
		{Distribution: "rocky/9", Install: []string{"vim"}},
		{Distribution: "debian/12", Roles: true, Platforms: []string{amd}},
		{Distribution: "kylin/v10", ISO: "os.iso"},
		{Distribution: "beos/5", Install: []string{"vim"}},
	}}
	needs, err := closure.OfPackages(c, b)
	if err != nil {
		t.Fatal(err)
	}
	var there []closure.Item
	for _, set := range []struct{ distribution, platform string }{
		{"rocky/9", amd},
		{"rocky/9", arm},
		{"debian/12", amd},
	} {
		names, err := plan.PackagesOf(c, nil, set.distribution)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			it := closure.Item{
				Kind: "file", Ref: manifest.PackageRef(set.distribution, name+"-"+set.platform[6:]),
				Platforms: []string{set.platform}, Packages: []string{name},
			}
			switch name {
			case "iptables":
				it.Packages = []string{"iptables-nft", name}
			case "chrony":
				it.Platforms = nil // of no architecture
			}
			there = append(there, it)
		}
	}
	there = append(there, closure.Item{
		Kind: "file", Ref: manifest.PackageRef("rocky/9", "dependency"),
		Packages: []string{"dependency"},
	},
		closure.Item{Kind: "file", Ref: manifest.PackageRef("fedora/42", "x"), Packages: []string{"chrony"}})
	record, err := closure.Check(append(closure.OfSets(b, there), needs...), there)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range record.Items {
		if extra := len(e.NeededBy) == 0; extra != strings.Contains(e.Ref, "fedora") {
			t.Errorf("%s is needed by %v", e.Ref, e.NeededBy)
		}
	}
	there = slices.DeleteFunc(there, func(it closure.Item) bool {
		return strings.HasSuffix(it.Ref, "debian/12/socat-amd64") ||
			strings.HasSuffix(it.Ref, "rocky/9/iptables-arm64") || strings.Contains(it.Ref, "rocky/9/chrony")
	})
	_, err = closure.Check(append(closure.OfSets(b, there), needs...), there)
	want := `3 needed items are missing:
  package chrony of rocky/9 is missing: task clock needs it
  package iptables of rocky/9 for linux/arm64 is missing: task kubelet on k8s_cluster needs it
  package socat of debian/12 is missing: task kubelet on k8s_cluster needs it`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}
