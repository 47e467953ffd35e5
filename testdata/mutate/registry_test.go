//go:build linux

package mutate

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// Names of documents that upstream hosts publish, as they are mutated. The documents above one are made of it, so
// that digests fit.
const (
	docLayer      = "layer"
	docConfig     = "image config"
	docManifest   = "image manifest"
	docIndex      = "image index"
	docTags       = "tags list"
	docToken      = "token"
	docReferrers  = "referrers"
	docSignature  = "signature manifest"
	docChart      = "chart archive"
	docChartOCI   = "chart manifest"
	docHelm       = "Helm index"
	docChecksums  = "checksums"
	docPackages   = "Packages"
	docRelease    = "Release"
	docPrimary    = "primary.xml"
	docFilelists  = "filelists.xml"
	docRepomd     = "repomd.xml"
	docNone       = "" // only a header or the transfer is mutated
	upstreamHost  = "upstream.example"
	upstreamURL   = "https://" + upstreamHost
	upstreamToken = "/token"
)

func documents() []string {
	return []string{
		docLayer, docConfig, docManifest, docIndex, docTags, docToken, docReferrers, docSignature, docChart,
		docChartOCI, docHelm,
		docChecksums, docPackages, docRelease, docPrimary, docFilelists, docRepomd,
	}
}

type served struct {
	data            []byte
	mediaType, name string
	digest          digest.Digest // of a manifest
}

// An upstream is what hosts publish, by path.
type upstream struct {
	content map[string]served
	edit    func(name string, data []byte) []byte
}

func newUpstream(archive []byte, edit func(name string, data []byte) []byte) *upstream {
	u := &upstream{content: map[string]served{}, edit: edit}
	u.images()
	u.charts(archive)
	tool := []byte("tool")
	u.put("/files/tool", docNone, tool)
	u.put("/files/tool.sha256", docChecksums, []byte(hexSum(tool)+"  tool\n"))
	u.put("/files/notes", docNone, []byte("notes"))
	u.debs()
	u.rpms()
	u.put(upstreamToken, docToken,
		[]byte(`{"token": "good", "access_token": "good", "expires_in": 300, "issued_at": "2026-11-22T10:00:00Z"}`))
	return u
}

func hexSum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// put publishes a document, mutated if it is its turn, and returns its bytes.
func (u *upstream) put(at, name string, data []byte) []byte {
	if name != docNone {
		data = u.edit(name, data)
	}
	u.content[at] = served{data: data, name: name, mediaType: "application/octet-stream"}
	return data
}

func (u *upstream) blob(repo, name, mediaType string, data []byte) ocispec.Descriptor {
	if name != docNone {
		data = u.edit(name, data)
	}
	d := digest.FromBytes(data)
	u.content[path.Join("/v2", repo, "blobs", string(d))] = served{data: data, name: name}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

func (u *upstream) manifest(repo, name, mediaType string, m any, tags ...string) ocispec.Descriptor {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	data = u.edit(name, data)
	d := digest.FromBytes(data)
	for _, tag := range append(tags, string(d)) {
		u.content[path.Join("/v2", repo, "manifests", tag)] = served{
			data: data, name: name, mediaType: mediaType,
			digest: d,
		}
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

func (u *upstream) images() {
	version := specs.Versioned{SchemaVersion: 2}
	x := ocispec.Index{Versioned: version, MediaType: ocispec.MediaTypeImageIndex}
	for i, arch := range []string{"amd64", "arm64"} {
		config := u.blob("app", docConfig, ocispec.MediaTypeImageConfig,
			fmt.Appendf(nil, `{"os":"linux","architecture":%q,"config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%064d"]}}`, arch, i))
		layer := u.blob("app", docLayer, ocispec.MediaTypeImageLayerGzip, []byte("layer "+arch))
		d := u.manifest("app", docManifest, ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: version, MediaType: ocispec.MediaTypeImageManifest, Config: config,
			Layers: []ocispec.Descriptor{layer},
		})
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: arch}
		x.Manifests = append(x.Manifests, d)
	}
	root := u.manifest("app", docIndex, ocispec.MediaTypeImageIndex, x, "1.0")
	u.put("/v2/app/tags/list", docTags, []byte(`{"name":"app","tags":["1.0","1.1","0.9","latest"]}`))
	empty := u.blob("app", docNone, ocispec.MediaTypeEmptyJSON, []byte("{}"))
	signature := u.manifest("app", docSignature, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: version, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: published.MediaTypeSignature,
		Config:  empty,
		Layers:  []ocispec.Descriptor{u.blob("app", docNone, published.MediaTypeSignature, []byte("{}"))},
		Subject: &root,
	})
	signature.ArtifactType = published.MediaTypeSignature
	list, err := json.Marshal(ocispec.Index{
		Versioned: version, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{signature},
	})
	if err != nil {
		panic(err)
	}
	at := "/v2/app/referrers/" + string(root.Digest)
	u.put(at, docReferrers, list)
	p := u.content[at]
	p.mediaType = ocispec.MediaTypeImageIndex
	u.content[at] = p
}

func (u *upstream) charts(archive []byte) {
	config := u.blob("charts/demo", docNone, bundle.MediaTypeChartConfig,
		[]byte(`{"apiVersion":"v2","name":"demo","version":"0.1.0"}`))
	layer := u.blob("charts/demo", docChart, bundle.MediaTypeChartContent, archive)
	u.manifest("charts/demo", docChartOCI, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Layers: []ocispec.Descriptor{layer},
	}, "0.1.0")
	u.put("/v2/charts/demo/tags/list", docTags, []byte(`{"name":"charts/demo","tags":["0.1.0","0.0.9"]}`))
	data := u.put("/charts/demo-0.1.0.tgz", docChart, archive)
	u.put("/charts/index.yaml", docHelm,
		[]byte("apiVersion: v1\nentries:\n  demo:\n  - {name: demo, version: 0.1.0, digest: "+hexSum(data)+
			", urls: [demo-0.1.0.tgz]}\n  - {name: demo, version: 0.0.9, urls: [\"https://"+upstreamHost+
			"/charts/demo-0.0.9.tgz\"]}\ngenerated: \"2026-11-22T10:00:00Z\"\n"))
	// Helm also accepts JSON: the second repository has it.
	u.put("/charts-json/demo-0.1.0.tgz", docNone, archive)
	u.put("/charts-json/index.yaml", docHelm, fmt.Appendf(nil,
		`{"apiVersion":"v1","entries":{"demo":[{"name":"demo","version":"0.1.0","digest":%q,"urls":["demo-0.1.0.tgz"]}]}}`, hexSum(archive)))
}

// debs publishes a flat repository without a signature.
func (u *upstream) debs() {
	deb := []byte("a package")
	u.put("/deb/app_1.0_amd64.deb", docNone, deb)
	list := u.edit(docPackages,
		fmt.Appendf(nil, "Package: app\nVersion: 1.0\nArchitecture: amd64\nDepends: lib (>= 1.0) | other, lib:any\nProvides: app-virtual (= 1.0)\nFilename: ./app_1.0_amd64.deb\nSize: %d\nSHA256: %s\nDescription: x\n\nPackage: lib\nVersion: 2:1.0-1\nArchitecture: all\nFilename: ./app_1.0_amd64.deb\nSize: %d\nSHA256: %s\n",
			len(deb), hexSum(deb), len(deb), hexSum(deb)))
	packed := compressGzip(list)
	u.put("/deb/Packages", docNone, list)
	u.put("/deb/Packages.gz", docNone, packed)
	u.put("/deb/Release", docRelease,
		fmt.Appendf(nil, "Suite: stable\nDate: Sun, 22 Nov 2026 10:00:00 UTC\nArchitectures: amd64\nSHA256:\n %s %d Packages\n %s %d Packages.gz\n", hexSum(list), len(list), hexSum(packed), len(packed)))
}

func (u *upstream) rpms() {
	rpm := []byte("a package")
	u.put("/rpm/x/app.rpm", docNone, rpm)
	files := map[string][]byte{
		docPrimary: fmt.Appendf(nil, `<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="1">
<package type="rpm"><name>app</name><arch>x86_64</arch><version epoch="0" ver="1.0" rel="1"/><checksum type="sha256" pkgid="YES">%s</checksum>
<summary>x</summary><size package="%d" installed="10" archive="10"/><location href="x/app.rpm"/>
<format><rpm:provides><rpm:entry name="app" flags="EQ" epoch="0" ver="1.0" rel="1"/></rpm:provides>
<rpm:requires><rpm:entry name="/usr/bin/it"/><rpm:entry name="(a if b)"/></rpm:requires><file>/usr/bin/app</file></format></package></metadata>`, hexSum(rpm), len(rpm)),
		docFilelists: []byte(`<?xml version="1.0" encoding="UTF-8"?>
<filelists xmlns="http://linux.duke.edu/metadata/filelists" packages="1"><package pkgid="x" name="app" arch="x86_64"><version epoch="0" ver="1.0" rel="1"/><file>/usr/bin/it</file></package></filelists>`),
	}
	text := `<?xml version="1.0" encoding="UTF-8"?><repomd xmlns="http://linux.duke.edu/metadata/repo"><revision>1</revision>`
	for _, name := range []string{docPrimary, docFilelists} {
		packed := compressGzip(u.edit(name, files[name]))
		u.put("/rpm/repodata/"+name+".gz", docNone, packed)
		text += fmt.Sprintf(`<data type="%s"><checksum type="sha256">%s</checksum><location href="repodata/%s.gz"/><size>%d</size></data>`, strings.TrimSuffix(name, ".xml"), hexSum(packed), name, len(packed))
	}
	u.put("/rpm/repodata/repomd.xml", docRepomd, []byte(text+"</repomd>"))
}

func compressGzip(data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(data)
	_ = z.Close()
	return b.Bytes()
}

// ServeHTTP answers like a registry with tokens and like a file server.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/v2/") && r.Header.Get("Authorization") == "" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+upstreamToken+`",service="upstream"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	p, ok := u.content[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if p.digest != "" {
		w.Header().Set("Docker-Content-Digest", string(p.digest))
	}
	w.Header().Set("Content-Type", p.mediaType)
	w.Header().Set("ETag", `"`+hexSum(p.data)+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.data))
}

// A way mutates an answer's headers or its way.
type way func(r *rand.Rand, next http.Handler, w http.ResponseWriter, q *http.Request)

func ways() map[string]way {
	header := func(key string, values ...string) way {
		return func(r *rand.Rand, next http.Handler, w http.ResponseWriter, q *http.Request) {
			next.ServeHTTP(headerWriter{w, func(h http.Header) { h.Set(key, pick(r, values...)) }}, q)
		}
	}
	return map[string]way{
		"content type": header("Content-Type", "", "text/html", ocispec.MediaTypeImageIndex,
			ocispec.MediaTypeImageManifest, "application/vnd.docker.distribution.manifest.v1+json",
			strings.Repeat("x", 100_000)),
		"digest": header("Docker-Content-Digest", "", "sha256:", "sha512:00", "md5:x",
			strings.Repeat("a", 100_000), "sha256:"+strings.Repeat("0", 64)),
		"etag": header("ETag", "", `"`, `W/"x"`, strings.Repeat("e", 100_000)),
		"content range": header("Content-Range", "bytes 0-9223372036854775807/9223372036854775807", "bytes 5-1/3",
			"bytes */0", "bytes -1-1/*", "x"),
		"last modified": header("Last-Modified", "x", "Mon, 01 Jan 9999999 00:00:00 GMT"),
		"link": header("Link", `</v2/app/tags/list?n=1>; rel="next"`, `<`+strings.Repeat("x", 10_000)+
			`>; rel="next"`, `<http://[::1>; rel="next"`, `<>; rel=next`, `;`, `</v2/app/referrers/x>; rel="next"`),
		"content encoding": header("Content-Encoding", "gzip", "zstd", "br", "deflate, gzip, gzip, gzip"),
		"many headers": func(_ *rand.Rand, next http.Handler, w http.ResponseWriter, q *http.Request) {
			for i := range 20_000 {
				w.Header().Add("X-Filler", strconv.Itoa(i))
			}
			next.ServeHTTP(w, q)
		},
		"challenge": func(r *rand.Rand, _ http.Handler, w http.ResponseWriter, q *http.Request) {
			w.Header().Set("WWW-Authenticate", pick(r, "", "Bearer", "Basic", `Bearer realm="`, `Bearer realm="http://`+
				q.Host+q.URL.Path+`"`, `Bearer realm="`+strings.Repeat("a", 100_000)+`"`,
				strings.Repeat(`Bearer realm="x",`, 5000), `Bearer realm="file:///etc/passwd"`))
			w.WriteHeader(http.StatusUnauthorized)
		},
		"status": func(r *rand.Rand, _ http.Handler, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", pick(r, "", "0", "-1", "99999999999999999999",
				"Fri, 31 Dec 9999 23:59:59 GMT", "x"))
			w.WriteHeader(pick(r, 204, 206, 301, 304, 400, 403, 404, 410, 416, 418, 429, 500, 503, 599))
			_, _ = io.WriteString(w, pick(r, "", strings.Repeat("[", 100_000), strings.Repeat("\x1b[2J", 10_000),
				`{"errors":[{"code":"X","message":"`+strings.Repeat("m", 1_000_000)+`"}]}`))
		},
		"redirect": func(r *rand.Rand, _ http.Handler, w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Location", pick(r, q.URL.Path, q.URL.Path+"x", "", "file:///etc/passwd", "//", "http://"+
				q.Host+"/"+strings.Repeat("x/", 10_000), "http://127.0.0.1:1/", "gopher://x"))
			w.WriteHeader(pick(r, 301, 302, 303, 307, 308))
		},
		"endless": func(r *rand.Rand, _ http.Handler, w http.ResponseWriter, q *http.Request) {
			junk := []byte(strings.Repeat(pick(r, "x", "[", `{"a":`, "a: {", " ", "\n", "<a>", "\x00", `["a",`, "- a\n",
				"Package: a\n\n"), 16<<10))
			for sent := 0; q.Context().Err() == nil && sent < 256*mib; sent += len(junk) {
				if _, err := w.Write(junk); err != nil || q.Method == http.MethodHead {
					return
				}
			}
		},
		"bomb": func(r *rand.Rand, _ http.Handler, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(textBomb(r))
		},
		"length": func(r *rand.Rand, _ http.Handler, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", pick(r, "0", "1", "9223372036854775807", "1099511627776"))
			_, _ = io.WriteString(w, "{}")
			panic(http.ErrAbortHandler)
		},
	}
}

// textBomb is little gzip that unpacks to much text.
func textBomb(r *rand.Rand) []byte {
	unit := pick(r, "[", `{"a":`, "{},", "[],", "- {}\n", "a: &a [*a,*a]\n", " ", "0,", `"",`, "Package: a\n\n", "<a/>",
		"a\n")
	start := pick(r, "", "[", `{"entries":{"demo":[`, `{"tags":[`, `{"manifests":[`,
		"apiVersion: v1\nentries:\n  demo:\n", "<metadata>")
	return compressGzip([]byte(start + strings.Repeat(unit, 16*mib/len(unit))))
}

type headerWriter struct {
	http.ResponseWriter
	change func(http.Header)
}

func (w headerWriter) WriteHeader(status int) {
	w.change(w.Header())
	w.ResponseWriter.WriteHeader(status)
}

// A scene is one mutated upstream.
type scene struct {
	*upstream
	way  way // of answers for documents whose name is at
	at   string
	seed uint64
}

// ServeHTTP implements http.Handler.
func (s *scene) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if s.way != nil && (s.content[q.URL.Path].name == s.at || s.at == docNone) {
		s.way(rand.New(rand.NewPCG(s.seed, uint64(len(q.URL.Path)))), s.upstream, w, q)
		return
	}
	s.upstream.ServeHTTP(w, q)
}

// mutateDocument changes documents in ways that fit their form.
func mutateDocument(r *rand.Rand, name string, data []byte) (string, []byte) {
	switch {
	case (name == docHelm || name == docChart || name == docPackages) && r.IntN(6) == 0:
		return "bomb", pick(r, textBomb(r), unpacked(textBomb(r)), zstdBomb())
	case strings.HasSuffix(name, ".xml") && r.IntN(4) == 0:
		text := string(data)
		unit := pick(r, "<file>/usr/bin/x</file>", "<rpm:entry name=\"a\"/>", "<x>", "<!-- -->", "<rpm:requires>",
			" a=\"b\"", "&lt;")
		at := strings.Index(text, pick(r, "<file>", "</package>", "<rpm:entry", "</format>", "<package"))
		if at < 0 {
			at = 0
		}
		return "elements", []byte(text[:at] + strings.Repeat(unit, 1<<r.IntN(18)) + text[at:])
	case bytes.HasPrefix(data, []byte("{")):
		return mutateJSON(r, data)
	}
	return mutateBytes(r, data)
}

func unpacked(packed []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil
	}
	data, _ := io.ReadAll(z)
	return data
}

func zstdBomb() []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		return nil
	}
	return w.EncodeAll(make([]byte, 64*mib), nil)
}

func prepareRegistry(t *testing.T) func(context.Context, *rand.Rand, func()) string {
	archive := bundletest.ChartArchive(t, "demo", "0.1.0")
	var current atomic.Pointer[scene]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		q *http.Request,
	) {
		current.Load().ServeHTTP(w, q)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	mirror := strings.TrimPrefix(server.URL, "http://")
	all := ways()
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range all {
			if !yield(name) {
				return
			}
		}
	})
	whole := &scene{upstream: newUpstream(archive, func(_ string, data []byte) []byte { return data })}
	current.Store(whole)
	if err := download(t, mirror, 0); err != nil {
		t.Fatalf("without a mutation: %v", err)
	}
	return func(_ context.Context, r *rand.Rand, ready func()) string {
		s := &scene{upstream: whole.upstream, at: pick(r, documents()...), seed: r.Uint64()}
		label := s.at + ": "
		if r.IntN(3) == 0 {
			name := pick(r, names...)
			s.way = all[name]
			label += name
		} else {
			did := ""
			s.upstream = newUpstream(archive, func(name string, data []byte) []byte {
				if name != s.at || did != "" && r.IntN(2) == 0 {
					return data
				}
				did, data = mutateDocument(r, name, data)
				return data
			})
			label += did
		}
		ready()
		current.Store(s)
		_ = download(t, mirror, 1+r.IntN(4)) //nolint:contextcheck // its own time limit; an error is the right answer
		return label
	}
}

// download resolves and fetches a part of the manifest, 0 for all of it: the less there is, the likelier it meets the
// mutation.
func download(t *testing.T, mirror string, part int) (err error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "registry") //nolint:usetesting // removed after each mutation
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := cache.Open(dir, bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	o := fetch.Options{
		Store: store, Jobs: 2, Keychain: authn.NewMultiKeychain(), MaxUnknown: mib, Hosts: fetch.NewHosts(),
		Retry: fetch.Retry{
			Attempts: 2, Wait: time.Millisecond, MaxWait: 2 * time.Millisecond,
			MaxRetryAfter: 10 * time.Millisecond, Idle: 10 * time.Second,
		},
		Sources: []sources.Source{{
			Host: upstreamHost, Mirrors: sources.Mirrors{mirror}, MirrorOnly: true,
			PlainHTTP: true,
		}},
	}
	b := &manifest.Bundle{Metadata: manifest.Metadata{Name: "w", Version: "1"}, Platforms: []string{"linux/amd64"}}
	if part == 0 || part == 1 {
		b.Images = []manifest.Image{{Name: upstreamHost + "/app:1.0"}}
	}
	if part == 0 || part == 2 {
		b.Charts = []manifest.Chart{
			{Name: "demo", Repo: "oci://" + upstreamHost + "/charts", Version: "0.x"},
			{Name: "demo", Repo: upstreamURL + "/charts", Version: "0.1.x"},
			{Name: "demo", Repo: upstreamURL + "/charts-json", Version: "0.1.0"},
		}
	}
	if part == 0 || part == 3 {
		b.Files = []manifest.File{
			{Name: "tool", URL: upstreamURL + "/files/tool", Checksums: upstreamURL + "/files/tool.sha256"},
			{Name: "notes", URL: upstreamURL + "/files/notes"},
		}
	}
	if part == 0 || part == 4 {
		b.Packages = []manifest.PackageSet{
			{
				Distribution: "site/1", OnlyRepositories: true, Install: []string{"app"}, Closure: "full",
				Repositories: []manifest.Repository{{URL: upstreamURL + "/deb", Suite: "./", AllowUnsigned: true}},
			},
			{
				Distribution: "site/2", OnlyRepositories: true, Install: []string{"app"}, Closure: "full",
				Repositories: []manifest.Repository{{URL: upstreamURL + "/rpm", AllowUnsigned: true}},
			},
		}
	}
	l, err := fetch.Resolve(t.Context(), b, o)
	if l == nil || len(l.Items) == 0 {
		return err
	}
	_, more := fetch.All(t.Context(), l, o)
	if err == nil {
		err = more
	}
	_, _ = fetch.Outdated(t.Context(), l.Items, o)
	return err
}
