package registry_test

import (
	"bytes"
	"errors"
	"net/http"
	"regexp"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

func publishOptions(s *registrytest.Server) registry.PublishOptions {
	return registry.PublishOptions{
		Repository: s.Host + "/bundles/site", Tags: []string{"1"}, Auth: s.Keychain(), Transport: s.Transport(),
		PlainHTTP: s.CAFile == "", Retries: 2,
	}
}

func publish(t *testing.T, b *bundletest.Bundle, o registry.PublishOptions) registry.PublishSummary {
	t.Helper()
	sum, err := registry.Publish(t.Context(), b.Reader, o)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// twoVersions are a bundle and one with a file more.
func twoVersions(t *testing.T) (older, newer *bundletest.Bundle) {
	t.Helper()
	for _, n := range []int{1, 2} {
		b := bundletest.NewBuilder(t)
		b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 3, 90_000))
		if n == 2 {
			b.File("https://files.example/more", "more", nil, bytes.Repeat([]byte("more "), 10_000))
			return older, b.Bundle()
		}
		older = b.Bundle()
	}
	return nil, nil
}

func TestPublishSendsWhatIsNew(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
	older, newer := twoVersions(t)
	first := publish(t, older, publishOptions(s))
	if got, want := first.BlobsSent, len(older.Reader.Blobs())+1; got != want {
		t.Errorf("sent %d blobs, want %d", got, want)
	}
	found, err := published.Parse(raw(t, s, "1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if found.Index.Digest != older.Reader.Digest() || len(found.Blobs) != len(older.Reader.Blobs()) {
		t.Errorf("published is %s with %d blobs", found.Index.Digest, len(found.Blobs))
	}

	s.ForgetRequests()
	again := publish(t, older, publishOptions(s))
	if again.BytesSent != 0 || again.Digest != first.Digest || s.Count("PUT", ".") != 0 || s.Count("", "/blobs/") != 0 {
		t.Errorf("the second run sent %d bytes, with %d requests for blobs", again.BytesSent, s.Count("", "/blobs/"))
	}

	s.ForgetRequests()
	o := publishOptions(s)
	o.Tags = []string{"2", "1"}
	update := publish(t, newer, o)
	var lacking int64
	for _, b := range newer.Reader.Blobs() {
		if _, ok := older.Reader.Stat(b.Digest); !ok {
			lacking++
		}
	}
	// and index.json
	if got := int64(s.Count("PUT", "/blobs/uploads/")); got != lacking+1 || int64(update.BlobsSent) != got {
		t.Errorf("%d uploads and %d blobs sent, want %d", got, update.BlobsSent, lacking+1)
	}
	if s.Received() != update.BytesSent {
		t.Errorf("the registry got %d bytes, the summary says %d", s.Received(), update.BytesSent)
	}
	if update.Moved["1"] != first.Digest || len(update.Moved) != 1 {
		t.Errorf("moved %v, want tag 1 from %s", update.Moved, first.Digest)
	}
}

func raw(t *testing.T, s *registrytest.Server, tag string) []byte {
	t.Helper()
	return get(t, s, s.Host+"/bundles/site:"+tag).Manifest
}

func TestPublishGoesOnAfterFaults(t *testing.T) {
	t.Parallel()
	b, _ := twoVersions(t)
	for name, fault := range map[string]registrytest.Fault{
		"cut": {
			Method: "PUT", Path: regexp.MustCompile("/blobs/uploads/"),
			Effect: registrytest.CutRequest(1000),
		},
		"unavailable": {
			Path: regexp.MustCompile("/blobs/"), Times: 2,
			Effect: registrytest.Fail(http.StatusServiceUnavailable, "0"),
		},
		"lost blobs": {
			Method: "PUT", Path: regexp.MustCompile("/manifests/"),
			Effect: registrytest.FailWith(http.StatusBadRequest, "",
				`{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"blob unknown"}]}`),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{Faults: []registrytest.Fault{fault}})
			sum := publish(t, b, publishOptions(s))
			if got := get(t, s, s.Host+"/bundles/site:1").Digest.String(); got != sum.Digest.String() {
				t.Errorf("tag 1 is %s, want %s", got, sum.Digest)
			}
		})
	}
}

func TestPublishRefused(t *testing.T) {
	t.Parallel()
	b, _ := twoVersions(t)
	s := registrytest.Start(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	o := publishOptions(s)
	o.Auth = nil
	if _, err := registry.Publish(t.Context(), b.Reader, o); !errors.Is(err, registry.ErrLogin) {
		t.Errorf("without login: %v", err)
	}
	s.AddFaults(registrytest.Fault{
		Method: "PUT", Path: regexp.MustCompile("/blobs/uploads/"), Times: -1,
		Effect: registrytest.Fail(http.StatusInsufficientStorage, ""),
	})
	_, err := registry.Publish(t.Context(), b.Reader, publishOptions(s))
	if err == nil || !regexp.MustCompile("is full").MatchString(err.Error()) {
		t.Errorf("on a full registry: %v", err)
	}
	if n := s.Count("PUT", "/manifests/"); n != 0 {
		t.Errorf("%d manifests were sent though blobs are missing", n)
	}
	for _, name := range []string{s.Host, s.Host + "/UPPER", "https://" + s.Host + "/x"} {
		o := publishOptions(s)
		o.Repository = name
		if _, err := registry.Publish(t.Context(), b.Reader, o); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestPublishedSignatures(t *testing.T) {
	t.Parallel()
	b, _ := twoVersions(t)
	s := registrytest.Start(t, registrytest.Options{})
	o := publishOptions(s)
	o.Signatures = []published.Signature{
		{Suffix: "sigstore.json", Data: []byte("{}")},
		{Suffix: "ops.sigstore.json", Data: []byte("{}")},
	}
	publish(t, b, o)
	found, err := published.Parse(raw(t, s, "1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := ocispec.Descriptor{
		Digest: "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
		Size:   2,
	}
	for _, suffix := range []string{"sigstore.json", "ops.sigstore.json"} {
		if got := found.Signatures[suffix]; got.Digest != want.Digest || got.Size != want.Size {
			t.Errorf("%s is %v", suffix, got)
		}
	}
	o.Signatures = []published.Signature{{Suffix: "../sigstore.json"}}
	if _, err := registry.Publish(t.Context(), b.Reader, o); err == nil {
		t.Error("a name that leads elsewhere was taken")
	}
}
