package registry_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// attach adds an artifact about subject to a builder, as signing tools make them.
func attach(b *bundletest.Builder, repo string, subject ocispec.Descriptor, text string) ocispec.Descriptor {
	config, layer := b.Bytes([]byte("{}")), b.Bytes([]byte(text))
	config.MediaType, layer.MediaType = ocispec.MediaTypeEmptyJSON, "text/plain"
	d := b.JSON(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.example.note",
		Config:       config, Layers: []ocispec.Descriptor{layer}, Subject: &subject,
		Annotations: map[string]string{"note": text},
	})
	d.MediaType = ocispec.MediaTypeImageManifest
	b.Item(bundle.Item{Kind: bundle.KindReferrer, Ref: repo + "@" + d.Digest.String(), Descriptor: d})
	return d
}

// signed returns a bundle with an image, a note about it, a note about the note, and cosign's tag.
func signed(t *testing.T, repo string) (b *bundletest.Builder, subject, note, second ocispec.Descriptor) {
	t.Helper()
	b = bundletest.NewBuilder(t)
	b.Image(repo+":1", bundletest.RandomImage(t, 5, 1, 1000))
	subject = b.Index.Items[0].Descriptor
	note = attach(b, repo, subject, "first")
	second = attach(b, repo, note, "about the first")
	cosign := bundletest.RandomImage(t, 6, 1, 200)
	b.Image("x", cosign)
	it := b.Index.Items[len(b.Index.Items)-1]
	it.Kind, it.Ref = bundle.KindReferrer, repo+":"+strings.ReplaceAll(subject.Digest.String(), ":", "-")+".sig"
	b.Index.Items[len(b.Index.Items)-1] = it
	return b, subject, note, second
}

// listed reads the list of what is attached to a digest at its tag.
func listed(t *testing.T, s *registrytest.Server, repo string, subject digest.Digest) (out []ocispec.Descriptor) {
	t.Helper()
	d := get(t, s, s.Host+"/"+repo+":"+strings.ReplaceAll(subject.String(), ":", "-"))
	var idx ocispec.Index
	if err := json.Unmarshal(d.Manifest, &idx); err != nil {
		t.Fatal(err)
	}
	return idx.Manifests
}

// The CNCF distribution has no referrers API: the list is an index under a tag.
func TestPushReferrersByTag(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	builder, subject, note, second := signed(t, "a.example/app")
	b := builder.Bundle()
	sum := push(t, b, options(s))
	if sum.ItemsPushed != 4 {
		t.Errorf("%+v", sum)
	}
	checkPulled(t, s, b, sum)
	for of, want := range map[digest.Digest]ocispec.Descriptor{subject.Digest: note, note.Digest: second} {
		got := listed(t, s, "a.example/app", of)
		if len(got) != 1 || got[0].Digest != want.Digest || got[0].ArtifactType != "application/vnd.example.note" ||
			got[0].Annotations["note"] == "" || got[0].Size != want.Size {
			t.Errorf("attached to %s: %+v", of, got)
		}
	}
	s.ForgetRequests()
	if again := push(t, b, options(s)); again.ItemsPresent != 4 || s.Count("PUT", "") != 0 {
		t.Errorf("second push: %d PUT requests, %+v", s.Count("PUT", ""), again)
	}

	more := bundletest.NewBuilder(t) // another signature, from another bundle: the list keeps what it has
	third := attach(more, "a.example/app", subject, "third")
	push(t, more.Bundle(), options(s))
	if got := listed(t, s, "a.example/app", subject.Digest); len(got) != 2 || got[0].Digest != note.Digest ||
		got[1].Digest != third.Digest {
		t.Errorf("merged list: %+v", got)
	}
}

func TestPushReferrersOrder(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	b, subject, note, second := signed(t, "a.example/app")
	push(t, b.Bundle(), options(s))
	var order []string
	for _, r := range s.Requests() {
		if r.Method == http.MethodPut && strings.Contains(r.Path, "/manifests/") {
			order = append(order, r.Path[strings.LastIndexByte(r.Path, '/')+1:])
		}
	}
	at := func(reference string) int { return slices.Index(order, reference) }
	if at("1") != 0 || at(note.Digest.String()) < 1 || at(second.Digest.String()) < at(note.Digest.String()) {
		t.Errorf("order %q of %s", order, subject.Digest)
	}
}

// With Harbor's referrers API no list is written.
func TestPushReferrersAPI(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	builder, subject, _, _ := signed(t, "a.example/app")
	b := builder.Bundle()
	o := harborOptions(s)
	for range 2 {
		push(t, b, o)
	}
	for _, r := range s.Requests() {
		if strings.HasSuffix(r, "/"+strings.ReplaceAll(subject.Digest.String(), ":", "-")) {
			t.Errorf("%s although Harbor keeps the list", r)
		}
	}
}

func TestPushReferrersFollow(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	builder, _, _, _ := signed(t, "a.example/app")
	builder.Image("a.example/other:1", bundletest.RandomImage(t, 50, 1, 100))
	b := builder.Bundle()
	o := options(s)
	o.Select = func(it bundle.Item) bool { return strings.HasPrefix(it.Ref, "a.example/other") }
	if sum := push(t, b, o); sum.ItemsPushed != 1 || sum.ItemsSkipped != 4 {
		t.Errorf("another image was chosen: %+v", sum)
	}
	o.Select = func(it bundle.Item) bool { return it.Ref == "a.example/app:1" }
	if sum := push(t, b, o); sum.ItemsPushed != 4 || sum.ItemsSkipped != 1 {
		t.Errorf("the image was chosen: %+v", sum)
	}
}

func TestPushReferrersWithoutSubject(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{Faults: []registrytest.Fault{{
		Method: "PUT", Path: regexp.MustCompile("manifests/1$"), Times: -1, Effect: registrytest.Fail(400, ""),
	}}})
	b, _, note, _ := signed(t, "a.example/app")
	_, err := registry.Push(t.Context(), b.Bundle().Reader, options(s))
	if err == nil || !strings.Contains(err.Error(), "its subject image a.example/app:1 is missing") {
		t.Errorf("got %v", err)
	}
	if s.Count("PUT", note.Digest.String()) != 0 {
		t.Error("the note was pushed although its image was not")
	}
}

// TestPushPlatform pushes one platform of an index, and what belongs to it.
func TestPushPlatform(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.ImageIndex(sparseRef, bundletest.MultiImage(t, 21))
	amd := &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	arm := &ocispec.Platform{OS: "linux", Architecture: "arm64"}
	b.File("https://files.example/amd", "amd", amd, []byte("amd"))
	b.File("https://files.example/arm", "arm", arm, []byte("arm"))
	b.Chart("https://charts.example/demo:0.1.0", "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	b.ImageIndex("a.example/armless:1", bundletest.MultiImage(t, 77),
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })
	bun := b.Bundle()
	for what, so := range map[string]registrytest.Options{
		"strict":  {},
		"lenient": {Children: registrytest.ChildrenNone},
	} {
		s := registrytest.Start(t, so)
		o := options(s)
		o.Platforms = []string{"linux/arm64"}
		o.DryRun = true
		dry := push(t, bun, o)
		if s.Received() != 0 || dry.ItemsMissing != 3 || dry.ItemsPushed != 0 || dry.BytesMissing == 0 {
			t.Errorf("%s: dry run: %+v", what, dry)
		}
		o.DryRun = false
		sum := push(t, bun, o)
		if sum.ItemsPushed != 3 || sum.ItemsSkipped != 2 {
			t.Errorf("%s: %+v", what, sum)
		}
		if dry.BytesMissing != sum.BytesSent && what == "lenient" {
			t.Errorf("%s: %d bytes sent, and the dry run said %d", what, sum.BytesSent, dry.BytesMissing)
		}
		i := slices.IndexFunc(sum.Items, func(r registry.ItemResult) bool { return r.Ref == sparseRef })
		if reduced := sum.Items[i].Reduced; reduced != (what == "strict") {
			t.Errorf("%s: %+v", what, sum.Items[i])
		}
		if n := s.Count("PUT", "armless"); n != 0 {
			t.Errorf("%s: an image without the platform was pushed", what)
		}
		o.DryRun = true
		if dry = push(t, bun, o); dry.ItemsMissing != 0 || dry.BytesMissing != 0 {
			t.Errorf("%s: dry run after the push: %+v", what, dry)
		}
		o.DryRun, o.Platforms = false, nil // the rest makes the index whole
		if sum = push(t, bun, o); sum.Items[i].Reduced {
			t.Errorf("%s: with all platforms: %+v", what, sum.Items[i])
		}
	}
}
