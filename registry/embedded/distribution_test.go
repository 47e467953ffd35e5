package embedded_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/registry/embedded"
)

// A site is a registry that requests go to.
type site struct{ host string }

// A reply has been read whole.
type reply struct {
	*http.Response
	body []byte
}

// ask sends a request: "METHOD path-or-address", a body, and headers as "Name: value". It accepts images and indexes.
func (s site) ask(t *testing.T, what, body string, headers ...string) reply {
	t.Helper()
	method, address, _ := strings.Cut(what, " ")
	if strings.HasPrefix(address, "/") {
		address = "http://" + s.host + address
	}
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest+", "+ocispec.MediaTypeImageIndex)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp, data}
}

// has checks the status, the error code where there has to be one ("" else), and headers. Locations may be absolute or
// relative: only their path is compared.
func (r reply) has(t *testing.T, status int, code string, headers ...string) reply {
	t.Helper()
	what := r.Request.Method + " " + r.Request.URL.Path
	if r.StatusCode != status {
		t.Fatalf("%s: %s, want %d: %.300s", what, r.Status, status, r.body)
	}
	for _, h := range headers {
		name, want, _ := strings.Cut(h, ": ")
		got := r.Header.Get(name)
		if u, err := url.Parse(got); err == nil && name == "Location" {
			got = u.Path
		}
		if got != want {
			t.Errorf("%s: %s is %q, want %q", what, name, got, want)
		}
	}
	if code == "" {
		return r
	}
	var e struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal(r.body, &e); err != nil || len(e.Errors) == 0 || e.Errors[0].Code != code {
		t.Errorf("%s: %s, want %s", what, r.body, code)
	}
	return r
}

// session begins an upload and returns its address.
func (s site) session(t *testing.T, repository string) string {
	t.Helper()
	return s.ask(t, "POST /v2/"+repository+"/blobs/uploads/", "").has(t, 202, "").location(t)
}

// location is where an upload continues; the specification has clients take the newest.
func (r reply) location(t *testing.T) string {
	t.Helper()
	u, err := r.Location()
	if err != nil {
		t.Fatal(err)
	}
	return u.String()
}

// closing is the address that ends an upload.
func closing(location string, d digest.Digest) string {
	separator := "?"
	if strings.Contains(location, "?") {
		separator = "&"
	}
	return location + separator + "digest=" + string(d)
}

func (s site) blob(t *testing.T, repository, content string) digest.Digest {
	t.Helper()
	d := digest.FromString(content)
	s.ask(t, "PUT "+closing(s.session(t, repository), d), content).has(t, 201, "")
	return d
}

// manifest is one of an image, whose blobs are pushed, as text.
func (s site) manifest(t *testing.T, repository string, change func(*ocispec.Manifest)) (string, digest.Digest) {
	t.Helper()
	m := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageConfig, Digest: s.blob(t, repository, "{}"),
			Size: 2,
		},
		Layers: []ocispec.Descriptor{{
			MediaType: ocispec.MediaTypeImageLayer, Digest: s.blob(t, repository, layer),
			Size: int64(len(layer)),
		}},
	}
	m.SchemaVersion = 2
	if change != nil {
		change(&m)
	}
	return text(t, m)
}

func text(t *testing.T, v any) (string, digest.Digest) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), digest.FromBytes(data)
}

const (
	layer     = "what an image is made of"
	nowhere   = digest.Digest("sha256:0000000000000000000000000000000000000000000000000000000000000000")
	imageType = "Content-Type: " + ocispec.MediaTypeImageManifest
	indexType = "Content-Type: " + ocispec.MediaTypeImageIndex
	octets    = "Content-Type: application/octet-stream"
)

// A requirement is named after its section and endpoint in the OCI distribution specification, version 1.1. Each has a
// repository of its own.
type requirement struct {
	name string
	test func(t *testing.T, s site, repository string)
}

func hold(t *testing.T, s site, all []requirement) {
	for i, r := range all {
		t.Run(r.name, func(t *testing.T) { r.test(t, s, fmt.Sprintf("registry.example_5000/team/r%d", i)) })
	}
}

// TestDistributionPushBlobs holds the requirements for pushing blobs.
func TestDistributionPushBlobs(t *testing.T) {
	host, _ := start(t, embedded.Options{Dir: t.TempDir()})
	d := digest.FromString(layer)
	hold(t, site{host}, []requirement{
		{"Determining Support/end-1/GET v2 is 200", func(t *testing.T, s site, _ string) {
			s.ask(t, "GET /v2/", "").has(t, 200, "", "Docker-Distribution-Api-Version: registry/2.0")
		}},
		{"Pushing a blob monolithically/end-4a, end-6/POST then PUT", func(t *testing.T, s site, r string) {
			put := "PUT " + closing(s.session(t, r), d)
			s.ask(t, put, layer, octets).has(t, 201, "", "Location: /v2/"+r+"/blobs/"+string(d),
				"Docker-Content-Digest: "+string(d))
			if got := s.ask(t, "GET /v2/"+r+"/blobs/"+string(d), "").has(t, 200, "", "Docker-Content-Digest: "+
				string(d)); string(got.body) != layer {
				t.Errorf("pulled %q", got.body)
			}
			s.ask(t, "HEAD /v2/"+r+"/blobs/"+string(d), "").has(t, 200, "",
				fmt.Sprintf("Content-Length: %d", len(layer)))
			s.ask(t, put, layer, octets).has(t, 404, "BLOB_UPLOAD_UNKNOWN") // the session is over
		}},
		{
			"Pushing a blob monolithically/end-6/the empty blob, and one that is there",
			func(t *testing.T, s site, r string) {
				for range 2 {
					s.blob(t, r, "")
					s.blob(t, r, layer)
				}
			},
		},
		// What came stays with the session, so a client begins another; nobody finishes this one, and it goes after a
		// week.
		{
			"Pushing a blob monolithically/end-6/another digest is 400, and nothing is stored",
			func(t *testing.T, s site, r string) {
				put := "PUT " + closing(s.session(t, r), d)
				s.ask(t, put, layer+"!", octets).has(t, 400, "DIGEST_INVALID")
				s.ask(t, put, layer, octets).has(t, 416, "RANGE_INVALID")
				s.ask(t, "HEAD /v2/"+r+"/blobs/"+string(d), "").has(t, 404, "")
				s.ask(t, "HEAD /v2/"+r+"/blobs/"+string(digest.FromString(layer+"!")), "").has(t, 404, "")
			},
		},
		{
			"Pushing a blob monolithically/end-6/no or no right digest is 400 and leaves the session",
			func(t *testing.T, s site, r string) {
				location := s.session(t, r)
				s.ask(t, "PUT "+location, layer, octets).has(t, 400, "DIGEST_INVALID")
				for _, wrong := range []digest.Digest{"sha256:xyz", "latest", "md5:" +
					digest.Digest(strings.Repeat("0", 32))} {
					s.ask(t, "PUT "+closing(location, wrong), layer, octets).has(t, 400, "DIGEST_INVALID")
				}
				s.ask(t, "PUT "+closing(location, d), layer, octets).has(t, 201, "")
			},
		},
		// A registry MAY leave it out, and SHOULD begin a session then: distribution does. Clients go on with PUT.
		{"Pushing a blob monolithically/end-4b/a single POST is a session", func(t *testing.T, s site, r string) {
			location := s.ask(t, "POST /v2/"+r+"/blobs/uploads/?digest="+string(d), layer, octets).has(t, 202,
				"").location(t)
			s.ask(t, "HEAD /v2/"+r+"/blobs/"+string(d), "").has(t, 404, "")
			s.ask(t, "PUT "+closing(location, d), layer, octets).has(t, 201, "")
		}},
		{"Pushing a blob in chunks/end-4a, end-5, end-6/in order", pushChunks},
		{"Pushing a blob in chunks/end-6/the last chunk with PUT", func(t *testing.T, s site, r string) {
			p := s.ask(t, "PATCH "+s.session(t, r), layer[:5], octets, "Content-Range: 0-4").has(t, 202, "",
				"Range: 0-4")
			s.ask(t, "PUT "+closing(p.location(t), d), layer[5:], octets,
				fmt.Sprintf("Content-Range: 5-%d", len(layer)-1)).has(t, 201, "")
		}},
		{"Pushing a blob in chunks/end-5/out of order is 416, and goes on where it was", pushDisorder},
		// Where a chunk's Content-Range is not a range, distribution answers 500, and 400 where it is not
		// Content-Length long.
		{"Pushing a blob in chunks/end-5/a range that is wrong is refused", func(t *testing.T, s site, r string) {
			location := s.session(t, r)
			s.ask(t, "PATCH "+location, layer, octets, "Content-Range: 0-3").has(t, 400, "SIZE_INVALID")
			s.ask(t, "PATCH "+location, layer, octets, "Content-Range: bytes 0-23/24").has(t, 500, "UNKNOWN")
			s.ask(t, "PATCH "+location, layer, octets, "Content-Range: 4-0").has(t, 416, "RANGE_INVALID")
			s.ask(t, "GET "+location, "").has(t, 204, "", "Range: 0-0")
		}},
		{"Pushing a blob in chunks/end-13/status of an upload", func(t *testing.T, s site, r string) {
			location := s.session(t, r)
			path := regexp.MustCompile(`^http://[^/]+([^?]+).*`).ReplaceAllString(location, "$1")
			// 0-0 is what distribution says of no byte, and of one.
			s.ask(t, "GET "+location, "").has(t, 204, "", "Range: 0-0", "Location: "+path)
			s.ask(t, "PATCH "+location, layer[:9], octets).has(t, 202, "")
			got := s.ask(t, "GET "+location, "").has(t, 204, "", "Range: 0-8", "Location: "+path)
			s.ask(t, "PATCH "+got.location(t), layer[9:], octets,
				fmt.Sprintf("Content-Range: 9-%d", len(layer)-1)).has(t, 202, "")
		}},
		{"Pushing a blob in chunks/end-5, end-6, end-13/no such session is 404", func(t *testing.T, s site, r string) {
			path := "/v2/" + r + "/blobs/uploads/4fd4ccd4-5a6b-4b0e-8b1c-000000000000"
			s.ask(t, "GET "+path, "").has(t, 404, "BLOB_UPLOAD_UNKNOWN")
			s.ask(t, "PATCH "+path, layer, octets).has(t, 404, "BLOB_UPLOAD_INVALID")
			s.ask(t, "PUT "+path+"?digest="+string(d), layer, octets).has(t, 404, "BLOB_UPLOAD_INVALID")
			other := strings.Replace(s.session(t, r), "/"+r+"/", "/"+r+"-other/", 1) // a session is its repository's
			s.ask(t, "PATCH "+other, layer, octets).has(t, 404, "BLOB_UPLOAD_INVALID")
		}},
		// Version 1.1 of the specification has no way to cancel: this is Docker's registry API, which push uses.
		{"not in 1.1/cancel an upload", func(t *testing.T, s site, r string) {
			location := s.session(t, r)
			s.ask(t, "DELETE "+location, "").has(t, 204, "")
			s.ask(t, "GET "+location, "").has(t, 404, "BLOB_UPLOAD_UNKNOWN")
			s.ask(t, "DELETE "+location, "").has(t, 404, "BLOB_UPLOAD_UNKNOWN")
		}},
		{"Mounting a blob from another repository/end-11/201 where it is", func(t *testing.T, s site, r string) {
			s.blob(t, r, layer)
			s.ask(t, "POST /v2/"+r+"-to/blobs/uploads/?mount="+string(d)+"&from="+r, "").
				has(t, 201, "", "Location: /v2/"+r+"-to/blobs/"+string(d), "Docker-Content-Digest: "+string(d))
			s.ask(t, "HEAD /v2/"+r+"-to/blobs/"+string(d), "").has(t, 200, "")
		}},
		{
			"Mounting a blob from another repository/end-11/a session where it is not, or from is missing or no name",
			func(t *testing.T, s site, r string) {
				s.blob(t, r, layer)
				for _, query := range []string{
					"mount=" + string(nowhere) + "&from=" + r, "mount=" + string(d) + "&from=none", "mount=" +
						string(d),
					"mount=xyz&from=" + r,
					"mount=" + string(d) + "&from=../UPPER",
				} {
					location := s.ask(t, "POST /v2/"+r+"-to/blobs/uploads/?"+query, "").has(t, 202, "").location(t)
					s.ask(t, "HEAD /v2/"+r+"-to/blobs/"+string(d), "").has(t, 404, "")
					s.ask(t, "GET "+location, "").has(t, 204, "")
				}
			},
		},
		{"Pushing blobs/a name that is none begins nothing", badNames},
	})
}

func pushChunks(t *testing.T, s site, r string) {
	location, d := s.session(t, r), digest.FromString(layer)
	for from := 0; from < len(layer); from += 7 {
		to := min(from+7, len(layer))
		p := s.ask(t, "PATCH "+location, layer[from:to], octets, fmt.Sprintf("Content-Range: %d-%d", from, to-1))
		location = p.has(t, 202, "", fmt.Sprintf("Range: 0-%d", to-1)).location(t)
	}
	s.ask(t, "PUT "+closing(location, d), "").has(t, 201, "", "Location: /v2/"+r+"/blobs/"+string(d),
		"Docker-Content-Digest: "+string(d))
	if got := s.ask(t, "GET /v2/"+r+"/blobs/"+string(d), "").has(t, 200, ""); string(got.body) != layer {
		t.Errorf("pulled %q", got.body)
	}
}

func pushDisorder(t *testing.T, s site, r string) {
	first := s.session(t, r)
	location := s.ask(t, "PATCH "+first, layer[:5], octets, "Content-Range: 0-4").has(t, 202, "").location(t)
	rest := fmt.Sprintf("Content-Range: 5-%d", len(layer)-1)
	for _, e := range []struct{ location, chunk, header string }{
		{location, layer[9:], fmt.Sprintf("Content-Range: 9-%d", len(layer)-1)}, // a gap
		{location, layer[:5], "Content-Range: 0-4"},                             // again
		{first, layer[5:], rest},                                                // right, but where it was before
	} {
		s.ask(t, "PATCH "+e.location, e.chunk, octets, e.header).has(t, 416, "RANGE_INVALID")
	}
	s.ask(t, "PUT "+closing(location, digest.FromString(layer)), layer[9:], octets,
		fmt.Sprintf("Content-Range: 9-%d", len(layer)-1)).has(t, 416, "RANGE_INVALID")
	status := s.ask(t, "GET "+location, "").has(t, 204, "", "Range: 0-4")
	location = s.ask(t, "PATCH "+status.location(t), layer[5:], octets, rest).has(t, 202, "").location(t)
	s.ask(t, "PUT "+closing(location, digest.FromString(layer)), "").has(t, 201, "")
}

// badNames has names outside the specification's grammar, which has NAME_INVALID for them: distribution knows no such
// address (404), and fails (500) where a name is too long.
func badNames(t *testing.T, s site, _ string) {
	for name, status := range map[string]int{"UPPER": 404, "a/-b": 404, "a..b": 404, strings.Repeat("a", 256): 500} {
		for _, what := range []string{"POST /v2/" + name + "/blobs/uploads/", "PUT /v2/" + name + "/manifests/1"} {
			if r := s.ask(t, what, "{}", imageType).has(t, status, ""); r.Header.Get("Location") != "" {
				t.Errorf("%s: it has a Location", what)
			}
		}
	}
}

// TestDistributionPushManifests holds the requirements for pushing manifests.
func TestDistributionPushManifests(t *testing.T) {
	host, _ := start(t, embedded.Options{Dir: t.TempDir()})
	hold(t, site{host}, []requirement{
		{"Pushing Manifests/end-7/by tag", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			s.ask(t, "PUT /v2/"+r+"/manifests/1.0", m, imageType).has(t, 201, "", "Location: /v2/"+r+"/manifests/"+
				string(d), "Docker-Content-Digest: "+string(d))
			for _, ref := range []string{"1.0", string(d)} {
				got := s.ask(t, "GET /v2/"+r+"/manifests/"+ref, "")
				if got.has(t, 200, "", imageType, "Docker-Content-Digest: "+string(d)); string(got.body) != m {
					t.Errorf("%s: another manifest: %s", ref, got.body)
				}
			}
		}},
		{"Pushing Manifests/end-7/by digest", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			s.ask(t, "PUT /v2/"+r+"/manifests/"+string(d), m, imageType).has(t, 201, "", "Location: /v2/"+r+
				"/manifests/"+string(d), "Docker-Content-Digest: "+string(d))
			s.ask(t, "HEAD /v2/"+r+"/manifests/"+string(d), "").has(t, 200, "")
		}},
		// Accept is a SHOULD; without it distribution gives Docker's media types only.
		{"Pulling manifests/end-3/404 to who does not accept its type", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 201, "")
			for _, accept := range []string{"", "*/*", "application/vnd.docker.distribution.manifest.v2+json"} {
				for _, ref := range []string{"1", string(d)} {
					s.ask(t, "GET /v2/"+r+"/manifests/"+ref, "", "Accept: "+accept).has(t, 404, "MANIFEST_UNKNOWN")
				}
			}
		}},
		{"Pushing Manifests/end-7/another digest is 400", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			s.ask(t, "PUT /v2/"+r+"/manifests/"+string(nowhere), m, imageType).has(t, 400, "DIGEST_INVALID")
			for _, ref := range []string{string(nowhere), string(d)} {
				s.ask(t, "HEAD /v2/"+r+"/manifests/"+ref, "").has(t, 404, "")
			}
		}},
		{"Pushing Manifests/end-7/a tag moves", func(t *testing.T, s site, r string) {
			first, d := s.manifest(t, r, nil)
			second, e := s.manifest(t, r, func(m *ocispec.Manifest) { m.Annotations = map[string]string{"a": "b"} })
			for _, m := range []string{first, second} {
				s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 201, "")
			}
			s.ask(t, "HEAD /v2/"+r+"/manifests/1", "").has(t, 200, "", "Docker-Content-Digest: "+string(e))
			s.ask(t, "HEAD /v2/"+r+"/manifests/"+string(d), "").has(t, 200, "")
		}},
		{"Pushing Manifests/end-7/blobs that are not there are named", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, func(m *ocispec.Manifest) { m.Layers[0].Digest = nowhere })
			if got := s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 400,
				"MANIFEST_BLOB_UNKNOWN"); !bytes.Contains(got.body, []byte(nowhere)) {
				t.Errorf("%s does not say which", got.body)
			}
			s.ask(t, "HEAD /v2/"+r+"/manifests/"+string(d), "").has(t, 404, "")
			other, _ := s.manifest(t, r+"-other", nil) // its blobs are another repository's
			s.ask(t, "PUT /v2/"+r+"-new/manifests/1", other, imageType).has(t, 400, "MANIFEST_BLOB_UNKNOWN")
		}},
		{"Pushing Manifests/end-7/an artifact with the empty config", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, func(m *ocispec.Manifest) {
				m.ArtifactType, m.Config.MediaType = "application/vnd.example.it", ocispec.MediaTypeEmptyJSON
				m.Layers[0].MediaType = "application/vnd.example.part"
			})
			s.ask(t, "PUT /v2/"+r+"/manifests/"+string(d), m, imageType).has(t, 201, "")
		}},
		// The specification lets a registry refuse an index whose manifests are not there; ours takes it (sparse
		// bundles).
		{"Pushing Manifests/end-7/an index, its manifests may be missing", func(t *testing.T, s site, r string) {
			m, d := sparseIndex(t)
			s.ask(t, "PUT /v2/"+r+"/manifests/1", m, indexType).has(t, 201, "", "Docker-Content-Digest: "+string(d))
			s.ask(t, "HEAD /v2/"+r+"/manifests/"+string(nowhere), "").has(t, 404, "")
		}},
		{"Pushing Manifests/end-7/what is no manifest is 400", func(t *testing.T, s site, r string) {
			for _, m := range []string{"", "{", "[]", `{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex +
				`"}`} {
				s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 400, "MANIFEST_INVALID")
			}
			m, _ := s.manifest(t, r, nil)
			s.ask(t, "PUT /v2/"+r+"/manifests/1", m, "Content-Type: application/vnd.example").has(t, 400,
				"MANIFEST_INVALID")
			// A version of schema that is none is the client's mistake too; distribution answers 500.
			s.ask(t, "PUT /v2/"+r+"/manifests/1", strings.Replace(m, `"schemaVersion":2`, `"schemaVersion":3`, 1),
				imageType).has(t, 500, "UNKNOWN")
			s.ask(t, "HEAD /v2/"+r+"/manifests/1", "").has(t, 404, "")
		}},
		// The specification would have 413.
		{"Pushing Manifests/end-7/more than 4 MiB is 400", func(t *testing.T, s site, r string) {
			s.ask(t, "PUT /v2/"+r+"/manifests/1", strings.Repeat(" ", 4<<20+1), imageType).has(t, 400,
				"MANIFEST_INVALID")
			m, d := s.manifest(t, r,
				func(m *ocispec.Manifest) { m.Annotations = map[string]string{"a": strings.Repeat("a", 3<<20)} })
			s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 201, "", "Docker-Content-Digest: "+string(d))
		}},
		{"Pushing Manifests/end-7/a tag that is none", func(t *testing.T, s site, r string) {
			m, _ := s.manifest(t, r, nil)
			for _, tag := range []string{"-a", ".a", "a+b", strings.Repeat("a", 129)} {
				s.ask(t, "PUT /v2/"+r+"/manifests/"+tag, m, imageType).has(t, 404, "")
			}
			s.ask(t, "PUT /v2/"+r+"/manifests/_"+strings.Repeat("A", 127), m, imageType).has(t, 201, "")
		}},
		{"Pushing Manifests with Subject/end-7, end-12a/taken, and listed", subject},
		{"Content Discovery/end-8a/tags that were pushed", func(t *testing.T, s site, r string) {
			m, _ := s.manifest(t, r, nil)
			for _, tag := range []string{"b", "a", "c"} {
				s.ask(t, "PUT /v2/"+r+"/manifests/"+tag, m, imageType).has(t, 201, "")
			}
			// end-8b
			for query, want := range map[string]string{
				"": `["a","b","c"]`, "?n=2": `["a","b"]`,
				"?n=2&last=b": `["c"]`,
			} {
				got := s.ask(t, "GET /v2/"+r+"/tags/list"+query, "").has(t, 200, "")
				if strings.TrimSpace(string(got.body)) != `{"name":"`+r+`","tags":`+want+`}` ||
					(query == "?n=2") != (got.Header.Get("Link") != "") {
					t.Errorf("%q: %s, Link: %s", query, got.body, got.Header.Get("Link"))
				}
			}
		}},
	})
}

func sparseIndex(t *testing.T) (string, digest.Digest) {
	t.Helper()
	x := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{{
		MediaType: ocispec.MediaTypeImageManifest, Digest: nowhere, Size: 7,
		Platform: &ocispec.Platform{OS: "linux", Architecture: "arm64"},
	}}}
	x.SchemaVersion = 2
	return text(t, x)
}

// subject pushes what refers to an image that is not there, as the specification has it taken. It is listed at once,
// and a client that keeps an index under the tag of the referrers tag schema is not hindered.
func subject(t *testing.T, s site, r string) {
	image := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: nowhere, Size: 7}
	m, d := s.manifest(t, r,
		func(m *ocispec.Manifest) { m.ArtifactType, m.Subject = "application/vnd.example.sbom", &image })
	put := s.ask(t, "PUT /v2/"+r+"/manifests/"+string(d), m, imageType).has(t, 201, "", "Docker-Content-Digest: "+
		string(d))
	if got := put.Header.Get("Oci-Subject"); got != string(nowhere) {
		t.Errorf("OCI-Subject is %q, want %s", got, nowhere)
	}
	s.ask(t, "GET /v2/"+r+"/referrers/"+string(nowhere), "").has(t, 200, "", indexType)
	filtered := s.ask(t, "GET /v2/"+r+"/referrers/"+string(nowhere)+"?artifactType=application/vnd.example.other",
		"").has(t, 200, "", indexType)
	if strings.Contains(string(filtered.body), string(d)) ||
		filtered.Header.Get("Oci-Filters-Applied") != "artifactType" {
		t.Errorf("the filter is not applied: %s %s", filtered.Header.Get("Oci-Filters-Applied"), filtered.body)
	}
	list := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.example.sbom", Digest: d,
		Size: int64(len(m)),
	}}}
	list.SchemaVersion = 2
	x, _ := text(t, list)
	tag := "/v2/" + r + "/manifests/" + strings.Replace(string(nowhere), ":", "-", 1)
	s.ask(t, "PUT "+tag, x, indexType).has(t, 201, "")
	if got := s.ask(t, "GET "+tag, "").has(t, 200, "", indexType); string(got.body) != x {
		t.Errorf("the list is %s", got.body)
	}
}

// TestDistributionDelete holds the requirements of content management.
func TestDistributionDelete(t *testing.T) {
	host, _ := start(t, embedded.Options{Dir: t.TempDir(), Delete: true})
	d := digest.FromString(layer)
	hold(t, site{host}, []requirement{
		{"Deleting tags/end-9/the tag goes, its manifest and other tags stay", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			for _, tag := range []string{"1", "2"} {
				s.ask(t, "PUT /v2/"+r+"/manifests/"+tag, m, imageType).has(t, 201, "")
			}
			s.ask(t, "DELETE /v2/"+r+"/manifests/1", "").has(t, 202, "")
			s.ask(t, "GET /v2/"+r+"/manifests/1", "").has(t, 404, "MANIFEST_UNKNOWN")
			s.ask(t, "DELETE /v2/"+r+"/manifests/1", "").has(t, 404, "MANIFEST_UNKNOWN")
			for _, ref := range []string{"2", string(d)} {
				s.ask(t, "HEAD /v2/"+r+"/manifests/"+ref, "").has(t, 200, "")
			}
		}},
		{"Deleting Manifests/end-9/with all its tags", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			for _, tag := range []string{"1", "2"} {
				s.ask(t, "PUT /v2/"+r+"/manifests/"+tag, m, imageType).has(t, 201, "")
			}
			s.ask(t, "DELETE /v2/"+r+"/manifests/"+string(d), "").has(t, 202, "")
			for _, ref := range []string{"1", "2", string(d)} {
				s.ask(t, "GET /v2/"+r+"/manifests/"+ref, "").has(t, 404, "MANIFEST_UNKNOWN")
			}
			s.ask(t, "DELETE /v2/"+r+"/manifests/"+string(d), "").has(t, 404, "MANIFEST_UNKNOWN")
			s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 201, "") // its blobs stay
		}},
		{"Deleting Manifests/end-9/only in its repository", func(t *testing.T, s site, r string) {
			m, d := s.manifest(t, r, nil)
			s.manifest(t, r+"-other", nil)
			for _, name := range []string{r, r + "-other"} {
				s.ask(t, "PUT /v2/"+name+"/manifests/1", m, imageType).has(t, 201, "")
			}
			s.ask(t, "DELETE /v2/"+r+"/manifests/"+string(d), "").has(t, 202, "")
			s.ask(t, "HEAD /v2/"+r+"-other/manifests/1", "").has(t, 200, "")
		}},
		{"Deleting Manifests/end-9/what is not there is 404", func(t *testing.T, s site, r string) {
			s.blob(t, r, layer)
			for _, ref := range []string{"none", string(nowhere)} {
				s.ask(t, "DELETE /v2/"+r+"/manifests/"+ref, "").has(t, 404, "MANIFEST_UNKNOWN")
			}
		}},
		{"Deleting Blobs/end-10/202, then 404, and only in its repository", func(t *testing.T, s site, r string) {
			s.blob(t, r, layer)
			s.blob(t, r+"-other", layer)
			s.ask(t, "DELETE /v2/"+r+"/blobs/"+string(d), "").has(t, 202, "")
			s.ask(t, "GET /v2/"+r+"/blobs/"+string(d), "").has(t, 404, "BLOB_UNKNOWN")
			s.ask(t, "DELETE /v2/"+r+"/blobs/"+string(d), "").has(t, 404, "BLOB_UNKNOWN")
			s.ask(t, "HEAD /v2/"+r+"-other/blobs/"+string(d), "").has(t, 200, "")
			s.blob(t, r, layer)
			s.ask(t, "HEAD /v2/"+r+"/blobs/"+string(d), "").has(t, 200, "")
		}},
		{"Deleting Blobs/end-10/what is not there is 404, what is no digest 400", func(t *testing.T, s site, r string) {
			s.ask(t, "DELETE /v2/"+r+"/blobs/"+string(nowhere), "").has(t, 404, "BLOB_UNKNOWN")
			for _, what := range []string{"DELETE /v2/" + r + "/blobs/sha256:abc", "DELETE /v2/" + r + "/blobs/md5:" +
				strings.Repeat("0", 32)} {
				s.ask(t, what, "").has(t, 400, "DIGEST_INVALID")
			}
		}},
	})
}

// TestDistributionRefused has what a registry refuses that does not delete, only reads, or wants a login.
func TestDistributionRefused(t *testing.T) {
	const r = "team/app"
	dir := t.TempDir()
	host, stop := start(t, embedded.Options{Dir: dir})
	s := site{host}
	m, d := s.manifest(t, r, nil)
	s.ask(t, "PUT /v2/"+r+"/manifests/1", m, imageType).has(t, 201, "")
	deletes := []string{
		"DELETE /v2/" + r + "/manifests/1", "DELETE /v2/" + r + "/manifests/" + string(d), "DELETE /v2/" + r +
			"/blobs/" + string(digest.FromString(layer)),
	}
	writes := []string{
		"POST /v2/" + r + "/blobs/uploads/", "POST /v2/" + r + "/blobs/uploads/?digest=" + string(nowhere),
		"POST /v2/" + r + "-to/blobs/uploads/?mount=" + string(digest.FromString(layer)) + "&from=" + r, "PUT /v2/" +
			r + "/manifests/2",
	}
	path := regexp.MustCompile(`^http://[^/]+`).ReplaceAllString(s.session(t, r), "")
	uploads := []string{"PATCH " + path, "PUT " + closing(path, nowhere), "DELETE " + path}
	unchanged := func(t *testing.T, s site, headers ...string) {
		t.Helper()
		s.ask(t, "HEAD /v2/"+r+"/manifests/1", "", headers...).has(t, 200, "", "Docker-Content-Digest: "+string(d))
		s.ask(t, "HEAD /v2/"+r+"/manifests/2", "", headers...).has(t, 404, "")
		s.ask(t, "HEAD /v2/"+r+"/blobs/"+string(digest.FromString(layer)), "", headers...).has(t, 200, "")
	}
	again := func(t *testing.T, o embedded.Options) site {
		t.Helper()
		http.DefaultClient.CloseIdleConnections()
		stop()
		o.Dir = dir
		host, stop = start(t, o)
		return site{host}
	}
	t.Run("Content Management/end-9, end-10/405 without --delete", func(t *testing.T) {
		for _, what := range deletes {
			s.ask(t, what, "").has(t, 405, "UNSUPPORTED")
		}
		unchanged(t, s)
	})
	t.Run("Pushing, Content Management/end-4 to end-7, end-9 to end-11/405 with --read-only", func(t *testing.T) {
		s := again(t, embedded.Options{ReadOnly: true, Delete: true})
		for _, what := range slices.Concat(writes, deletes) {
			if got := s.ask(t, what, m, imageType).has(t, 405, ""); got.Header.Get("Location") != "" ||
				!strings.Contains(got.Header.Get("Allow"), "GET") {
				t.Errorf("%s: Location %q, Allow %q", what, got.Header.Get("Location"), got.Header.Get("Allow"))
			}
		}
		// Sessions of before are not known: a registry that only reads does not take up the secret that signs their
		// state.
		for _, what := range uploads {
			s.ask(t, what, "", octets).has(t, 404, "BLOB_UPLOAD_INVALID")
		}
		unchanged(t, s)
	})
	t.Run("Error Codes/all endpoints/401 without a right login", func(t *testing.T) {
		hash, err := bcrypt.GenerateFromPassword([]byte("correct-horse"), bcrypt.MinCost)
		users := filepath.Join(t.TempDir(), "users")
		if err == nil {
			err = os.WriteFile(users, []byte("ops:"+string(hash)+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		s := again(t, embedded.Options{Delete: true, Users: users})
		basic := func(login string) string {
			return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(login))
		}
		for _, what := range slices.Concat(writes, uploads, deletes,
			[]string{"GET /v2/", "GET /v2/" + r + "/manifests/1", "GET /v2/_catalog"}) {
			for _, header := range []string{imageType, basic("ops:wrong-horse"), "Authorization: Bearer x"} {
				got := s.ask(t, what, m, header).has(t, 401, "UNAUTHORIZED")
				if !strings.HasPrefix(got.Header.Get("WWW-Authenticate"), "Basic realm=") ||
					got.Header.Get("Location") != "" {
					t.Errorf("%s: WWW-Authenticate %q, Location %q", what, got.Header.Get("WWW-Authenticate"),
						got.Header.Get("Location"))
				}
			}
		}
		unchanged(t, s, basic("ops:correct-horse"))
		s.ask(t, deletes[0], "", basic("ops:correct-horse")).has(t, 202, "")
	})
}
