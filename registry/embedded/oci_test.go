package embedded_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/registry/embedded"
)

// send sends content and returns the answer's status, header and body.
func send(t *testing.T, method, url, mediaType string, content []byte) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}

// putBlob uploads a blob under a digest.
func putBlob(t *testing.T, base string, content []byte, as digest.Digest) ocispec.Descriptor {
	t.Helper()
	status, header, _ := send(t, http.MethodPost, base+"/blobs/uploads/", "", nil)
	if status != http.StatusAccepted {
		t.Fatalf("an upload begins with %d", status)
	}
	to := header.Get("Location")
	if strings.HasPrefix(to, "/") {
		to = base[:strings.Index(base, "/v2/")] + to
	}
	sep := "?"
	if strings.Contains(to, "?") {
		sep = "&"
	}
	status, header, body := send(t, http.MethodPut, to+sep+"digest="+as.String(), "application/octet-stream", content)
	if status != http.StatusCreated || header.Get("Docker-Content-Digest") != as.String() {
		t.Fatalf("the blob %s: %d as %s: %s", as, status, header.Get("Docker-Content-Digest"), body)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: as, Size: int64(len(content))}
}

// putManifest stores an image with one layer and returns its descriptor.
func putManifest(t *testing.T, base, ref string, subject *ocispec.Descriptor,
	layer ocispec.Descriptor,
) ocispec.Descriptor {
	t.Helper()
	config := putBlob(t, base, []byte("{}"), digest.FromString("{}"))
	config.MediaType = ocispec.MediaTypeEmptyJSON
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "text/plain", Config: config,
		Layers: []ocispec.Descriptor{layer}, Subject: subject,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(data)
	if ref == "" {
		ref = d.String()
	}
	status, header, body := send(t, http.MethodPut, base+"/manifests/"+ref, ocispec.MediaTypeImageManifest, data)
	if status != http.StatusCreated {
		t.Fatalf("the manifest: %d %s", status, body)
	}
	if subject != nil && header.Get("OCI-Subject") != subject.Digest.String() {
		t.Errorf("OCI-Subject is %q, want %s", header.Get("OCI-Subject"), subject.Digest)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}
}

// referrersOf returns the digests that refer to a subject.
func referrersOf(t *testing.T, base string, subject digest.Digest) string {
	t.Helper()
	status, header, body := send(t, http.MethodGet, base+"/referrers/"+subject.String(), "", nil)
	var index ocispec.Index
	if err := json.Unmarshal(body, &index); err != nil || status != http.StatusOK ||
		header.Get("Content-Type") != ocispec.MediaTypeImageIndex {
		t.Fatalf("referrers: %d %s %s", status, header.Get("Content-Type"), body)
	}
	var found []string
	for _, d := range index.Manifests {
		if d.ArtifactType != "text/plain" {
			t.Errorf("%s has the artifact type %q", d.Digest, d.ArtifactType)
		}
		found = append(found, d.Digest.String())
	}
	return strings.Join(found, " ")
}

// TestReferrers asserts that a signature is listed from its push on, also by another process, and is garbage only
// after its subject.
func TestReferrers(t *testing.T) {
	dir := t.TempDir()
	host, stop := start(t, embedded.Options{Dir: dir, Delete: true})
	base := "http://" + host + "/v2/team/app"
	layer := putBlob(t, base, []byte("layer"), digest.FromString("layer"))
	image := putManifest(t, base, "1.0", nil, layer)
	if got := referrersOf(t, base, image.Digest); got != "" {
		t.Errorf("an image without referrers has %s", got)
	}
	signature := putManifest(t, base, "", &image, putBlob(t, base, []byte("signature"), digest.FromString("signature")))
	if got := referrersOf(t, base, image.Digest); got != signature.Digest.String() {
		t.Errorf("referrers: %s, want %s", got, signature.Digest)
	}
	stop()
	if c, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir, Untagged: true}); err != nil ||
		c != (embedded.Collected{}) {
		t.Errorf("a signature of an image with a tag is garbage: %+v, %v", c, err)
	}
	host, stop = start(t, embedded.Options{Dir: dir, Delete: true})
	base = "http://" + host + "/v2/team/app"
	if got := referrersOf(t, base, image.Digest); got != signature.Digest.String() {
		t.Errorf("referrers after a restart: %s, want %s", got, signature.Digest)
	}
	if status, _, _ := send(t, http.MethodDelete, base+"/manifests/"+image.Digest.String(), "",
		nil); status != http.StatusAccepted {
		t.Fatalf("the image is not deleted: %d", status)
	}
	stop()
	if c, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir, Untagged: true}); err != nil ||
		c.Manifests != 1 {
		t.Errorf("the signature of a deleted image is not garbage: %+v, %v", c, err)
	}
}

// TestReferrersInPages asserts that a long list comes in pages that name the next one.
func TestReferrersInPages(t *testing.T) {
	host, _ := start(t, embedded.Options{Dir: t.TempDir()})
	base := "http://" + host + "/v2/app"
	layer := putBlob(t, base, []byte("layer"), digest.FromString("layer"))
	image := putManifest(t, base, "1.0", nil, layer)
	const all = 503
	for i := range all {
		text := fmt.Sprint(i)
		putManifest(t, base, "", &image, putBlob(t, base, []byte(text), digest.FromString(text)))
	}
	seen, pages := map[digest.Digest]bool{}, 0
	for to := "/v2/app/referrers/" + image.Digest.String(); to != ""; pages++ {
		_, header, body := send(t, http.MethodGet, "http://"+host+to, "", nil)
		var index ocispec.Index
		if err := json.Unmarshal(body, &index); err != nil {
			t.Fatal(err)
		}
		for _, d := range index.Manifests {
			seen[d.Digest] = true
		}
		to, _, _ = strings.Cut(strings.TrimPrefix(header.Get("Link"), "<"), ">")
	}
	if len(seen) != all || pages != 2 {
		t.Errorf("%d referrers in %d pages, want %d in 2", len(seen), pages, all)
	}
}

// TestSHA512 asserts that content with a SHA-512 digest is served under it, and is no garbage while a manifest names
// it so.
func TestSHA512(t *testing.T) {
	dir := t.TempDir()
	host, stop := start(t, embedded.Options{Dir: dir, Delete: true})
	base := "http://" + host + "/v2/app"
	layer := putBlob(t, base, []byte("layer"), digest.SHA512.FromString("layer"))
	image := putManifest(t, base, "1.0", nil, layer)
	_, _, data := send(t, http.MethodGet, base+"/manifests/1.0", "", nil)
	alias := digest.SHA512.FromBytes(data)
	if status, _, body := send(t, http.MethodPut, base+"/manifests/"+alias.String(), ocispec.MediaTypeImageManifest,
		data); status != http.StatusCreated {
		t.Fatalf("a manifest with a SHA-512 digest: %d %s", status, body)
	}
	wrong := digest.SHA512.FromString("another")
	if status, _, _ := send(t, http.MethodPut, base+"/manifests/"+wrong.String(), ocispec.MediaTypeImageManifest,
		data); status != http.StatusBadRequest {
		t.Errorf("a manifest with another's digest: %d", status)
	}
	stop()
	for _, untagged := range []bool{false, true} {
		if c, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir, Untagged: untagged}); err != nil ||
			c != (embedded.Collected{}) {
			t.Errorf("content with a SHA-512 digest is garbage: %+v, %v", c, err)
		}
	}
	host, stop = start(t, embedded.Options{Dir: dir, Delete: true})
	base = "http://" + host + "/v2/app"
	status, header, body := send(t, http.MethodGet, base+"/blobs/"+layer.Digest.String(), "", nil)
	if status != http.StatusOK || string(body) != "layer" ||
		header.Get("Docker-Content-Digest") != layer.Digest.String() {
		t.Errorf("the layer: %d %s %q", status, header.Get("Docker-Content-Digest"), body)
	}
	if status, _, _ := send(t, http.MethodDelete, base+"/manifests/"+image.Digest.String(), "",
		nil); status != http.StatusAccepted {
		t.Fatalf("the manifest is not deleted: %d", status)
	}
	if status, _, _ := send(t, http.MethodGet, base+"/manifests/"+alias.String(), "",
		nil); status != http.StatusNotFound {
		t.Errorf("a deleted manifest is still served under its other digest: %d", status)
	}
	stop()
	if c, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir}); err != nil || c.Blobs != 3 {
		t.Errorf("removed %+v, want 3 blobs: %v", c, err)
	}
}

// TestUndistributedLayers asserts that an image is taken whose layers lie elsewhere or nowhere, and not one that
// lacks others.
func TestUndistributedLayers(t *testing.T) {
	host, _ := start(t, embedded.Options{Dir: t.TempDir()})
	base := "http://" + host + "/v2/app"
	away := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayerNonDistributableGzip, //nolint:staticcheck // deprecated, and in use
		Digest:    digest.FromString("windows"), Size: 7,
	}
	putManifest(t, base, "nowhere", nil, away)
	away.URLs = []string{"https://mcr.example/layer"}
	putManifest(t, base, "elsewhere", nil, away)
	if status, _, _ := send(t, http.MethodGet, base+"/manifests/nowhere", "", nil); status != http.StatusOK {
		t.Errorf("the image is served with %d", status)
	}
	data := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":1},"layers":[{"mediaType":%q,"digest":%q,"size":7}]}`,
		ocispec.MediaTypeImageManifest, ocispec.MediaTypeEmptyJSON, digest.FromString("absent"), away.MediaType,
		away.Digest)
	if status, _, body := send(t, http.MethodPut, base+"/manifests/bad", ocispec.MediaTypeImageManifest,
		[]byte(data)); status != http.StatusBadRequest {
		t.Errorf("an image without its config: %d %s", status, body)
	}
}
