package manifest_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
)

func TestExcludesImage(t *testing.T) {
	t.Parallel()
	pinned := "quay.io/a/b:1@" + digest.FromString("x").String()
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"nginx", "docker.io/library/nginx:1.29", true},
		{"nginx:1.29", "docker.io/library/nginx:1.29", true},
		{"docker.io/library/nginx", "docker.io/library/nginx:1.29", true},
		{"docker.io/library/nginx:1.28", "docker.io/library/nginx:1.29", false},
		{"nginx", "quay.io/a/nginx:1", false},
		{"*/nginx", "quay.io/a/nginx:1", true},
		{"quay.io/*", "quay.io/a/nginx:1", true},
		{"quay.io", "quay.io/a/nginx:1", false},
		{"quay.io/a/b", pinned, true},
		{"quay.io/a/b:1", pinned, true},
		{"quay.io/a/b:2", pinned, false},
		{"quay.ioxa/b", pinned, false}, // a dot is a dot
		{"{{ .Values.* }}", "{{ .Values.image }}", true},
		{"lookup *", "lookup v1 ConfigMap", true},
		{"default image of Kafka", "default image of Kafka", true},
	} {
		b := manifest.Bundle{ExcludeImages: []string{"unrelated", c.pattern}}
		if got := b.ExcludesImage(c.text); got != c.want {
			t.Errorf("%s, %s: got %v", c.pattern, c.text, got)
		}
	}
}

func TestCheckInputs(t *testing.T) {
	t.Parallel()
	now := map[string]digest.Digest{"a": digest.FromString("a"), "b": digest.FromString("b")}
	l := manifest.Lock{Inputs: []manifest.Input{{Path: "a", Digest: now["a"]}, {Path: "b", Digest: now["b"]}}}
	check := func(present ...string) error {
		return l.CheckInputs(present, func(path string) digest.Digest { return now[path] })
	}
	if err := check("a"); err != nil {
		t.Error(err)
	}
	now["a"] = digest.FromString("other")
	delete(now, "b")
	var stale *manifest.StaleError
	if err := check("a", "b", "c"); !errors.As(err, &stale) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stale, &manifest.StaleError{Missing: []string{"c"}, Changed: []string{"a", "b"}}); diff != "" {
		t.Error(diff)
	}
	if got, want := stale.Error(),
		"the lock does not fit the manifest; not in the lock: c; changed: a, b"; got != want {
		t.Errorf("got %s", got)
	}
}

// TestFindFingerprint wants everything that decides what is found to make a lock stale, and nothing to change for
// those who have no charts.
func TestFindFingerprint(t *testing.T) {
	t.Parallel()
	fingerprint := func(change func(*manifest.Bundle)) digest.Digest {
		b := manifest.Bundle{Charts: []manifest.Chart{{Path: "c"}}}
		change(&b)
		d, err := b.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := fingerprint(func(*manifest.Bundle) {})
	for name, change := range map[string]func(*manifest.Bundle){
		"manifests":     func(b *manifest.Bundle) { b.Manifests = []manifest.YAML{{Path: "*.yaml"}} },
		"version":       func(b *manifest.Bundle) { b.Kubernetes.Version = "v1.34.3" },
		"APIs":          func(b *manifest.Bundle) { b.Kubernetes.APIVersions = []string{"a/v1"} },
		"rules":         func(b *manifest.Bundle) { b.ImageRules = []manifest.ImageRule{{Kind: "A"}} },
		"exclude":       func(b *manifest.Bundle) { b.ExcludeImages = []string{"a"} },
		"uses":          func(b *manifest.Bundle) { b.Uses = []manifest.ChartUse{{Chart: "c"}} },
		"values":        func(b *manifest.Bundle) { b.Charts[0].Values = []string{"v.yaml"} },
		"imagesListed":  func(b *manifest.Bundle) { b.Charts[0].ImagesListed = true },
		"another chart": func(b *manifest.Bundle) { b.Charts[0].Path = "d" },
	} {
		if fingerprint(change) == base {
			t.Errorf("%s: no other fingerprint", name)
		}
	}
	set := func(b *manifest.Bundle) { b.Uses = []manifest.ChartUse{{Chart: "c", Set: map[string]any{"a": 1}}} }
	if fingerprint(set) != fingerprint(func(b *manifest.Bundle) { b.Uses = []manifest.ChartUse{{Chart: "c"}} }) {
		t.Error("what install computes is part of the fingerprint")
	}
	var none, some manifest.Bundle
	some.Kubernetes.Version, some.ExcludeImages = "v1.34.3", []string{"a"}
	a, err1 := none.Fingerprint()
	b, err2 := some.Fingerprint()
	if a != b || err1 != nil || err2 != nil {
		t.Error("a manifest without charts and YAML gets another fingerprint")
	}
}

func TestLockOfFoundImages(t *testing.T) {
	t.Parallel()
	b := &manifest.Bundle{Charts: []manifest.Chart{{Repo: "https://x", Name: "c", Version: "1.0.0"}}}
	d, err := b.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	l := manifest.Lock{
		Metadata: manifest.Metadata{Name: "x"}, Manifest: d.String(), Undecided: []string{"text"},
		Inputs: []manifest.Input{{Path: "v.yaml", Digest: d}},
		Items: []manifest.Pin{
			{Kind: "chart", Ref: "https://x/c:1.0.0", Name: "c", Version: "1.0.0", Digest: d, Verified: "upstream"},
			{
				Kind: "image", Ref: "quay.io/a/b:1", Name: "quay.io/a/b", Digest: d, Verified: "upstream",
				WantedBy: []string{"chart c"},
			},
		},
	}
	data, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := manifest.ParseLock("l.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	l.APIVersion, l.Kind = manifest.APIVersion, manifest.KindLock
	if diff := cmp.Diff(&l, again); diff != "" {
		t.Error(diff)
	}
	if err := again.Covers(b); err != nil {
		t.Error(err)
	}
	b.Charts = append(b.Charts, manifest.Chart{Path: "other"})
	err = again.Covers(b)
	if want := "the lock does not fit the manifest; not in the lock: chart other"; err == nil || err.Error() != want {
		t.Errorf("a found image is called stale: %v", err)
	}
}
