package serve_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

const (
	app     = "docker.io/library/app"
	multi   = "registry.example_5000/team/multi"
	sparse  = "registry.example_5000/team/sparse"
	nowhere = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	sbom    = "application/vnd.example.sbom"
)

// A content is everything that the requirements are held against.
type content struct {
	path         string
	image        ocispec.Descriptor // of app:1.0
	manifest     ocispec.Manifest
	layer        []byte
	absent, kept digest.Digest // children of the sparse index
	referrers    []ocispec.Descriptor
	sparseRef    ocispec.Descriptor // what refers to the absent child
	index        ocispec.Descriptor
}

func newContent(t *testing.T) content {
	t.Helper()
	b := bundletest.NewBuilder(t)
	img := bundletest.RandomImage(t, 1, 2, 3000)
	b.Image(bundletest.ImageRef, img)
	for _, tag := range []string{"1.1", "1.10", "B", "a", "latest"} {
		b.Image("docker.io/library/app:"+tag, img)
	}
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	idx := bundletest.MultiImage(t, 7)
	b.ImageIndex("registry.example:5000/team/sparse:1", idx,
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "amd64" })
	b.File(bundletest.FileRef, "it", nil, []byte(bundletest.FileContent))
	b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	c := content{}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	c.kept, c.absent = digest.Digest(m.Manifests[0].Digest.String()), digest.Digest(m.Manifests[1].Digest.String())
	for _, it := range b.Index.Items {
		switch it.Ref {
		case bundletest.ImageRef:
			c.image = it.Descriptor
		case "registry.example:5000/team/sparse:1":
			c.index = it.Descriptor
		}
	}
	for i, kind := range []string{sbom, "application/vnd.example.signature"} {
		d := attach(b, "docker.io/library/app@"+nowhere[:70]+string(rune('1'+i)), kind, c.image.Digest, kind)
		c.referrers = append(c.referrers, d)
	}
	c.sparseRef = attach(b, "registry.example:5000/team/sparse@"+nowhere, sbom, c.absent, "about what is absent")
	artifact(b, bundle.KindReferrer, "docker.io/library/app:sha256-"+c.image.Digest.Encoded()+".sig",
		ocispec.Manifest{Config: b.Bytes([]byte("{}"))})
	x := b.Bundle()
	c.path = x.Path
	data, err := x.Reader.ReadBlob(t.Context(), c.image.Digest, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &c.manifest); err != nil {
		t.Fatal(err)
	}
	if c.layer, err = x.Reader.ReadBlob(t.Context(), c.manifest.Layers[0].Digest, 1<<20); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDistribution holds the requirements of the OCI distribution specification, version 1.1, for pull, content
// discovery and errors, each under the name of its section.
func TestDistribution(t *testing.T) {
	t.Parallel()
	c := newContent(t)
	s := start(t, serve.Options{}, c.path)
	image, layer := "/v2/"+app+"/manifests/"+string(c.image.Digest), "/v2/"+app+"/blobs/"+
		string(c.manifest.Layers[0].Digest)
	has := func(t *testing.T, r reply, status int, headers ...string) {
		t.Helper()
		if r.StatusCode != status {
			t.Errorf("%s %s: %s, want %d: %.200s", r.Request.Method, r.Request.URL, r.Status, status, r.body)
		}
		for _, h := range headers {
			if name, value, _ := strings.Cut(h, ": "); r.Header.Get(name) != value {
				t.Errorf("%s %s: %s is %q, want %q", r.Request.Method, r.Request.URL, name, r.Header.Get(name), value)
			}
		}
	}
	run := func(section string, f func(t *testing.T)) { t.Run(section, f) }

	run("Determining Support/GET v2 is 200", func(t *testing.T) {
		for _, path := range []string{"/v2/", "/v2"} {
			has(t, s.ask(t, "GET", path), 200, "Docker-Distribution-Api-Version: registry/2.0")
		}
	})
	run("Pulling manifests/by digest and tag with digest and type", func(t *testing.T) {
		for _, path := range []string{image, "/v2/" + app + "/manifests/1.0", "/v2/" + app + "/manifests/latest"} {
			r := s.ask(t, "GET", path)
			has(t, r, 200, "Docker-Content-Digest: "+string(c.image.Digest), "Content-Type: "+c.image.MediaType)
			if digest.FromBytes(r.body) != c.image.Digest {
				t.Errorf("%s: another manifest", path)
			}
		}
	})
	run("Pulling manifests/children of an index by digest", func(t *testing.T) {
		r := s.ask(t, "GET", "/v2/"+multi+"/manifests/2.1")
		has(t, r, 200, "Content-Type: "+ocispec.MediaTypeImageIndex)
		var idx ocispec.Index
		if err := json.Unmarshal(r.body, &idx); err != nil || len(idx.Manifests) != 2 {
			t.Fatalf("%d manifests: %v", len(idx.Manifests), err)
		}
		for _, d := range idx.Manifests {
			has(t, s.ask(t, "GET", "/v2/"+multi+"/manifests/"+string(d.Digest)), 200, "Content-Type: "+d.MediaType)
			has(t, s.ask(t, "GET", "/v2/"+app+"/manifests/"+string(d.Digest)), 404)
		}
	})
	run("Pulling manifests/sparse index keeps its bytes", func(t *testing.T) {
		r := s.ask(t, "GET", "/v2/"+sparse+"/manifests/1")
		has(t, r, 200, "Docker-Content-Digest: "+string(c.index.Digest))
		has(t, s.ask(t, "GET", "/v2/"+sparse+"/manifests/"+string(c.kept)), 200)
		r = s.ask(t, "GET", "/v2/"+sparse+"/manifests/"+string(c.absent))
		has(t, r, 404)
		if r.code(t) != "MANIFEST_UNKNOWN" || !strings.Contains(string(r.body), "not selected") {
			t.Errorf("%s", r.body)
		}
	})
	run("Pulling manifests/unknown is 404", func(t *testing.T) {
		for _, ref := range []string{nowhere, "2.0", "-no-tag", string(c.manifest.Layers[0].Digest), "sha512:" +
			strings.Repeat("0", 128)} {
			r := s.ask(t, "GET", "/v2/"+app+"/manifests/"+ref)
			if has(t, r, 404); r.code(t) != "MANIFEST_UNKNOWN" {
				t.Errorf("%s: %s", ref, r.body)
			}
		}
	})
	run("Pulling blobs/whole", func(t *testing.T) {
		r := s.ask(t, "GET", layer)
		has(t, r, 200, "Docker-Content-Digest: "+string(c.manifest.Layers[0].Digest), "Accept-Ranges: bytes",
			"Cache-Control: max-age=31536000, immutable")
		if !bytes.Equal(r.body, c.layer) {
			t.Error("another blob")
		}
		has(t, s.ask(t, "GET", "/v2/"+app+"/blobs/"+string(c.manifest.Config.Digest)), 200)
	})
	run("Pulling blobs/Range", func(t *testing.T) {
		r := s.ask(t, "GET", layer, "Range: bytes=10-19")
		has(t, r, 206, "Content-Length: 10", "Content-Range: bytes 10-19/"+
			r.Header.Get("Content-Range")[len("bytes 10-19/"):])
		if !bytes.Equal(r.body, c.layer[10:20]) {
			t.Error("another range")
		}
		has(t, s.ask(t, "GET", layer, "Range: bytes=1000000-"), 416, "Content-Range: bytes */"+
			strconv.Itoa(len(c.layer)))
	})
	run("Pulling blobs/unknown is 404", func(t *testing.T) {
		for _, d := range []string{nowhere, string(c.kept), "sha512:" + strings.Repeat("0", 128)} {
			r := s.ask(t, "GET", "/v2/"+app+"/blobs/"+d)
			if has(t, r, 404); r.code(t) != "BLOB_UNKNOWN" {
				t.Errorf("%s: %s", d, r.body)
			}
		}
	})
	run("Checking if content exists/HEAD", func(t *testing.T) {
		for path, size := range map[string]int64{image: c.image.Size, layer: int64(len(c.layer)), "/v2/" + app +
			"/manifests/1.0": c.image.Size} {
			r := s.ask(t, "HEAD", path)
			has(t, r, 200)
			if r.ContentLength != size || r.Header.Get("Docker-Content-Digest") == "" || len(r.body) != 0 {
				t.Errorf("%s: %d bytes, want %d", path, r.ContentLength, size)
			}
		}
		for _, path := range []string{
			"/v2/" + app + "/manifests/2.0", "/v2/" + app + "/blobs/" + nowhere,
			"/v2/none/manifests/1",
		} {
			if r := s.ask(t, "HEAD", path); r.StatusCode != 404 || len(r.body) != 0 {
				t.Errorf("%s: %s", path, r.Status)
			}
		}
	})
	run("Content Discovery/Listing Tags", func(t *testing.T) { listTags(t, s, c) })
	run("Content Discovery/Listing Referrers", func(t *testing.T) { listReferrers(t, s, c) })
	run("Backwards Compatibility/Catalog", func(t *testing.T) {
		var got, page struct{ Repositories []string }
		decode(t, s.ask(t, "GET", "/v2/_catalog").body, &got)
		want := []string{"charts.example/stable/demo", app, "files.example/tool/v1/linux/amd64/it", multi, sparse}
		if diff := cmp.Diff(want, got.Repositories); diff != "" {
			t.Error(diff)
		}
		r := s.ask(t, "GET", "/v2/_catalog?n=2")
		decode(t, r.body, &page)
		has(t, r, 200, `Link: </v2/_catalog?last=docker.io%2Flibrary%2Fapp&n=2>; rel="next"`)
		if diff := cmp.Diff(want[:2], page.Repositories); diff != "" {
			t.Error(diff)
		}
		r = s.ask(t, "GET", "/v2/_catalog?n=9&last=docker.io%2Flibrary%2Fapp")
		decode(t, r.body, &page)
		if diff := cmp.Diff(want[2:], page.Repositories); diff != "" || r.Header.Get("Link") != "" {
			t.Error(diff, r.Header.Get("Link"))
		}
	})
	run("Error Codes", func(t *testing.T) {
		for _, e := range []struct {
			method, path string
			status       int
			code         string
		}{
			{"GET", "/v2/none/manifests/1", 404, "NAME_UNKNOWN"},
			{"GET", "/v2/none/tags/list", 404, "NAME_UNKNOWN"},
			{"GET", "/v2/none/referrers/" + nowhere, 404, "NAME_UNKNOWN"},
			{"GET", "/v2/none/blobs/" + nowhere, 404, "NAME_UNKNOWN"},
			{"GET", "/v2/UPPER/manifests/1", 400, "NAME_INVALID"},
			{"GET", "/v2/a/-b/tags/list", 400, "NAME_INVALID"},
			{"GET", "/v2/" + strings.Repeat("a", 256) + "/tags/list", 400, "NAME_INVALID"},
			{"GET", "/v2/" + app + "/blobs/sha256:xyz", 400, "DIGEST_INVALID"},
			{"GET", "/v2/" + app + "/blobs/latest", 400, "DIGEST_INVALID"},
			{"GET", "/v2/" + app + "/manifests/sha256:xyz", 400, "DIGEST_INVALID"},
			{"GET", "/v2/" + app + "/referrers/sha256:xyz", 400, "DIGEST_INVALID"},
			{"GET", "/v2/" + app + "/tags/list?n=many", 400, "PAGINATION_NUMBER_INVALID"},
			{"GET", "/v2/" + app + "/tags/list?n=-1", 400, "PAGINATION_NUMBER_INVALID"},
			{"GET", "/v2/" + app + "/strange/1", 404, "UNSUPPORTED"},
			{"POST", "/v2/" + app + "/blobs/uploads/", 405, "UNSUPPORTED"},
			{"GET", "/v2/" + app + "/blobs/uploads/1", 405, "UNSUPPORTED"},
			{"PATCH", "/v2/" + app + "/blobs/uploads/1", 405, "UNSUPPORTED"},
			{"PUT", "/v2/" + app + "/manifests/1.0", 405, "UNSUPPORTED"},
			{"DELETE", "/v2/" + app + "/manifests/1.0", 405, "UNSUPPORTED"},
			{"DELETE", layer, 405, "UNSUPPORTED"},
		} {
			r := s.ask(t, e.method, e.path)
			if has(t, r, e.status, "Content-Type: application/json; charset=utf-8"); r.code(t) != e.code {
				t.Errorf("%s %s: %s, want %s", e.method, e.path, r.body, e.code)
			}
			if e.method != "GET" && r.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s: it does not say what is allowed", e.path)
			}
		}
	})
	run("containerd/ns", func(t *testing.T) {
		for path, status := range map[string]int{
			"/v2/library/app/manifests/1.0?ns=docker.io":                                  200,
			"/v2/team/multi/manifests/2.1?ns=registry.example:5000":                       200,
			"/v2/" + app + "/manifests/1.0?ns=docker.io":                                  200,
			"/v2/library/app/manifests/1.0?ns=registry-1.docker.io":                       200,
			"/v2/library/app/manifests/1.0?ns=other.example":                              404,
			"/v2/library/app/manifests/1.0":                                               404,
			"/v2/library/app/blobs/" + string(c.manifest.Config.Digest) + "?ns=docker.io": 200,
		} {
			if r := s.ask(t, "GET", path); r.StatusCode != status {
				t.Errorf("%s: %s, want %d", path, r.Status, status)
			}
		}
	})
	run("Checking if content exists/HEAD is GET without a body", func(t *testing.T) {
		for _, path := range []string{
			"/v2/", "/v2/_catalog", image, "/v2/" + app + "/manifests/1.0", layer, "/v2/" + app + "/tags/list", "/v2/" +
				app + "/tags/list?n=2",
			"/v2/" + app + "/referrers/" + string(c.image.Digest) + "?artifactType=" + sbom, "/v2/" + sparse +
				"/referrers/" + nowhere,
			"/v2/" + app + "/manifests/none", "/v2/" + app + "/blobs/" + nowhere, "/v2/" + app + "/blobs/sha256:xyz",
			"/v2/none/tags/list",
		} {
			get, head := s.ask(t, "GET", path), s.ask(t, "HEAD", path)
			if has(t, head, get.StatusCode); len(head.body) != 0 || head.ContentLength != int64(len(get.body)) {
				t.Errorf("HEAD %s: %d bytes, and %d announced, want %d", path, len(head.body), head.ContentLength,
					len(get.body))
			}
			get.Header.Del("Date")
			head.Header.Del("Date")
			if diff := cmp.Diff(get.Header, head.Header); diff != "" {
				t.Errorf("HEAD %s: %s", path, diff)
			}
		}
	})
	run("Pulling blobs/Range of manifests and whole ranges", func(t *testing.T) {
		has(t, s.ask(t, "GET", image, "Range: bytes=0-0"), 206, "Content-Length: 1", "Docker-Content-Digest: "+
			string(c.image.Digest))
		whole := s.ask(t, "GET", layer, "Range: bytes=0-")
		if has(t, whole, 206); !bytes.Equal(whole.body, c.layer) {
			t.Error("another blob")
		}
		last := s.ask(t, "GET", layer, "Range: bytes=-5")
		if has(t, last, 206, "Content-Length: 5"); !bytes.Equal(last.body, c.layer[len(c.layer)-5:]) {
			t.Error("another range")
		}
		for _, header := range []string{"bytes=" + strconv.Itoa(len(c.layer)) + "-", "bytes=-0"} {
			r := s.ask(t, "GET", layer, "Range: "+header)
			if has(t, r, 416, "Content-Range: bytes */"+strconv.Itoa(len(c.layer))); r.code(t) != "RANGE_INVALID" {
				t.Errorf("%s: %s", header, r.body)
			}
		}
		// ignored, as RFC 9110 allows
		for _, header := range []string{"bytes=5-1", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4"} {
			if r := s.ask(t, "GET", layer, "Range: "+header); r.StatusCode != 200 || !bytes.Equal(r.body, c.layer) {
				t.Errorf("%s: %s", header, r.Status)
			}
		}
	})
	run("Pulling manifests/Accept does not change the bytes", func(t *testing.T) {
		for _, accept := range []string{"application/vnd.docker.distribution.manifest.v2+json", "text/html", "*/*"} {
			r := s.ask(t, "GET", "/v2/"+app+"/manifests/1.0", "Accept: "+accept)
			if has(t, r, 200, "Content-Type: "+c.image.MediaType); digest.FromBytes(r.body) != c.image.Digest {
				t.Errorf("%s: another manifest", accept)
			}
		}
	})
	run("Content Discovery/pages that do not exist", func(t *testing.T) {
		for path, want := range map[string]string{
			"/v2/" + app + "/tags/list?last=zzz":               `{"name":"` + app + `","tags":[]}`,
			"/v2/_catalog?last=zzz":                            `{"repositories":[]}`,
			"/v2/_catalog?n=0":                                 `{"repositories":[]}`,
			"/v2/" + app + "/tags/list?n=1&last=latest&x=y%0a": "",
		} {
			r := s.ask(t, "GET", path)
			if has(t, r, 200, "Content-Type: application/json"); want != "" &&
				strings.TrimSpace(string(r.body)) != want {
				t.Errorf("%s: %s, want %s", path, r.body, want)
			}
			if strings.ContainsAny(r.Header.Get("Link"), "\r\n") {
				t.Errorf("%s: Link: %q", path, r.Header.Get("Link"))
			}
		}
	})
	run("Content Discovery/referrers of what nothing refers to", func(t *testing.T) {
		r := s.ask(t, "GET", "/v2/"+app+"/referrers/"+nowhere+"?artifactType="+sbom)
		has(t, r, 200, "Content-Type: "+ocispec.MediaTypeImageIndex, "OCI-Filters-Applied: artifactType")
		if strings.TrimSpace(string(r.body)) != `{"schemaVersion":2,"mediaType":"`+ocispec.MediaTypeImageIndex+
			`","manifests":[]}` {
			t.Errorf("%s", r.body)
		}
	})
	// end-4 to end-7, end-9 to end-11
	run("Pushing, Content Management/every way to write is refused", func(t *testing.T) {
		for _, e := range []string{
			"POST /v2/" + app + "/blobs/uploads/", "POST /v2/" + app + "/blobs/uploads/?digest=" + nowhere,
			"POST /v2/" + app + "/blobs/uploads/?mount=" + nowhere + "&from=" + multi,
			"GET /v2/" + app + "/blobs/uploads/id", "PATCH /v2/" + app + "/blobs/uploads/id", "PUT /v2/" + app +
				"/blobs/uploads/id?digest=" + nowhere, "DELETE /v2/" + app + "/blobs/uploads/id",
			"PUT /v2/" + app + "/manifests/new", "DELETE /v2/" + app + "/manifests/1.0", "DELETE " + image, "DELETE " +
				layer,
		} {
			method, path, _ := strings.Cut(e, " ")
			r := s.ask(t, method, path)
			if has(t, r, 405); r.code(t) != "UNSUPPORTED" || r.Header.Get("Location") != "" {
				t.Errorf("%s: %s", e, r.body)
			}
		}
		has(t, s.ask(t, "GET", image), 200)
	})
	run("Conditional requests", func(t *testing.T) {
		tag := s.ask(t, "GET", layer).Header.Get("ETag")
		has(t, s.ask(t, "GET", layer, "If-None-Match: "+tag), 304)
		has(t, s.ask(t, "GET", layer, `If-None-Match: "other"`), 200)
		has(t, s.ask(t, "GET", layer, "Range: bytes=0-1", "If-Range: "+tag), 206)
		has(t, s.ask(t, "GET", layer, "Range: bytes=0-1", `If-Range: "other"`), 200)
	})
}

func decode(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
}

func listTags(t *testing.T, s *site, c content) {
	type list struct {
		Name string
		Tags []string
	}
	get := func(path string) (list, http.Header) {
		var l list
		r := s.ask(t, "GET", path)
		decode(t, r.body, &l)
		return l, r.Header
	}
	cosign := "sha256-" + c.image.Digest.Encoded() + ".sig"
	want := []string{"1.0", "1.1", "1.10", "a", "B", "latest", cosign}
	got, _ := get("/v2/" + app + "/tags/list")
	if diff := cmp.Diff(list{app, want}, got); diff != "" {
		t.Error(diff)
	}
	var paged []string
	for path, pages := "/v2/"+app+"/tags/list?n=3", 0; path != ""; pages++ {
		l, h := get(path)
		if paged = append(paged, l.Tags...); len(l.Tags) > 3 || pages > 3 {
			t.Fatalf("%s: %q", path, l.Tags)
		}
		path, _, _ = strings.Cut(strings.TrimPrefix(h.Get("Link"), "<"), ">")
	}
	if diff := cmp.Diff(want, paged); diff != "" {
		t.Error(diff)
	}
	for query, want := range map[string][]string{
		"n=0": {}, "last=a": want[4:], "last=zz": {}, "last=1.05&n=1": {"1.1"},
		"n=99999999": want,
	} {
		if l, h := get("/v2/" + app + "/tags/list?" + query); !slices.Equal(l.Tags, want) || l.Tags == nil ||
			strings.HasPrefix(query, "n=0") && h.Get("Link") != "" {
			t.Errorf("%s: %q, want %q; %s", query, l.Tags, want, h.Get("Link"))
		}
	}
}

func listReferrers(t *testing.T, s *site, c content) {
	get := func(path string) (ocispec.Index, http.Header) {
		var idx ocispec.Index
		r := s.ask(t, "GET", path)
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != ocispec.MediaTypeImageIndex {
			t.Errorf("%s: %s %s", path, r.Status, r.Header.Get("Content-Type"))
		}
		decode(t, r.body, &idx)
		if idx.SchemaVersion != 2 || idx.MediaType != ocispec.MediaTypeImageIndex || idx.Manifests == nil {
			t.Errorf("%s: %s", path, r.body)
		}
		return idx, r.Header
	}
	all, h := get("/v2/" + app + "/referrers/" + string(c.image.Digest))
	if len(all.Manifests) != 2 || h.Get("OCI-Filters-Applied") != "" {
		t.Fatalf("%d referrers, want 2; filters %q", len(all.Manifests), h.Get("OCI-Filters-Applied"))
	}
	some, h := get("/v2/" + app + "/referrers/" + string(c.image.Digest) + "?artifactType=" + sbom)
	if len(some.Manifests) != 1 || h.Get("OCI-Filters-Applied") != "artifactType" {
		t.Fatalf("%d referrers, want 1; filters %q", len(some.Manifests), h.Get("OCI-Filters-Applied"))
	}
	want := c.referrers[0]
	want.Annotations = map[string]string{"org.example.made": sbom}
	if diff := cmp.Diff(want, some.Manifests[0]); diff != "" {
		t.Error(diff)
	}
	if r := s.ask(t, "GET", "/v2/"+app+"/manifests/"+string(want.Digest)); r.StatusCode != 200 {
		t.Errorf("a referrer cannot be pulled: %s", r.Status)
	}
	for path, n := range map[string]int{
		"/v2/" + app + "/referrers/" + nowhere:             0,
		"/v2/" + sparse + "/referrers/" + string(c.absent): 1, // the subject is not in the bundle
		"/v2/" + sparse + "/referrers/" + string(c.kept):   0,
		"/v2/" + multi + "/referrers/" + string(c.absent):  0, // another repository's
	} {
		if idx, _ := get(path); len(idx.Manifests) != n {
			t.Errorf("%s: %d referrers, want %d", path, len(idx.Manifests), n)
		}
	}
}
