package fetch

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/helmindex"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	sumB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestFindChecksum(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ text, want, says string }{
		"bare":             {sumA, sumA, ""},
		"bare, upper case": {strings.ToUpper(sumA) + "\r\n", sumA, ""},
		"byte order mark":  {"\ufeff" + sumA + "\n", sumA, ""},
		"from a pipe":      {sumA + "  -\n", sumA, ""},
		"two spaces":       {sumA + "  f.tgz\n", sumA, ""},
		"asterisk":         {sumA + " *f.tgz\n", sumA, ""},
		"tab":              {sumA + "\tf.tgz\n", sumA, ""},
		"with folder":      {sumA + "  ./_output/release/f.tgz\n", sumA, ""},
		"bsd":              {"SHA512 (f.tgz) = " + sumA + sumA + "\nSHA256 (f.tgz) = " + sumA + "\n", sumA, ""},
		"many":             {sumB + "  g.tgz\n" + sumA + "  f.tgz\n" + sumB + "  f.tgz.asc\n", sumA, ""},
		"longer path wins": {sumB + "  arm64/f.tgz\n" + sumA + "  amd64/f.tgz\n", sumA, ""},
		"twice the same":   {sumA + "  f.tgz\n" + sumA + " *f.tgz\n", sumA, ""},
		"comments":         {"# release 1\n\n" + sumA + "  f.tgz\n", sumA, ""},
		"sha512 beside":    {sumB + sumB + "  f.tgz\n" + sumA + "  f.tgz\n", sumA, ""},
		"contradiction":    {sumA + "  f.tgz\n" + sumB + "  f.tgz\n", "", "different sha256"},
		"other names only": {sumA + "  g.tgz\n", "", "none for f.tgz"},
		"two bare":         {sumA + "\n" + sumB + "\n", "", "none for f.tgz"},
		"sha512 only":      {sumA + sumA + "  f.tgz\n", "", "no sha256"},
		"several hashes": {
			"f.tgz  " + sumA[:8] + "  " + sumA + "  " + sumB + "\n", "",
			"several unlabelled hashes",
		},
		"bsd with a hyphen":  {"MD5 (f.tgz) = 00\nSHA-256 (f.tgz) = " + sumA + "\n", sumA, ""},
		"a page":             {"<html>not found</html>", "", "no sha256"},
		"empty":              {"", "", "no sha256"},
		"name is a traverse": {sumA + "  ../../f.tgz\n", sumA, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := findChecksum([]byte(c.text), "/v1/amd64/f.tgz")
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("got %q, %v, want an error with %q", got, err, c.says)
				}
				return
			}
			if err != nil || got.Encoded() != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func FuzzFindChecksum(f *testing.F) {
	f.Add([]byte(sumA+"  f.tgz\n"), "/f.tgz")
	f.Add([]byte("SHA256 (f.tgz) = "+sumA), "/x/f.tgz")
	f.Add([]byte("\\"+sumA+" *a/b\\c\n"), "/c")
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		d, err := findChecksum(data, path)
		if err != nil {
			return
		}
		if checkDigest(d) != nil {
			t.Errorf("%q is no digest", d)
		}
		if !strings.Contains(strings.ToLower(string(data)), d.Encoded()) {
			t.Errorf("%s is not in the file", d)
		}
	})
}

func TestContentRange(t *testing.T) {
	t.Parallel()
	for value, want := range map[string][3]int64{
		"bytes 5-9/10": {5, 10, 1}, "bytes 0-0/1": {0, 1, 1}, "bytes 5-9/*": {5, -1, 1},
		"bytes 5-10/10": {}, "bytes 9-5/10": {}, "bytes */10": {}, "bytes -1-5/10": {}, "5-9/10": {}, "": {},
		"bytes 5-9": {}, "bytes a-b/c": {},
	} {
		start, total, ok := contentRange(value)
		if ok != (want[2] == 1) || ok && (start != want[0] || total != want[1]) {
			t.Errorf("%q: got %d, %d, %v", value, start, total, ok)
		}
	}
}

func TestValidator(t *testing.T) {
	t.Parallel()
	const old, now = "Mon, 02 Jan 2006 15:04:05 GMT", "Mon, 02 Jan 2006 15:10:05 GMT"
	for name, c := range map[string]struct {
		header http.Header
		want   string
	}{
		"strong":           {http.Header{"Etag": {`"x"`}}, `"x"`},
		"weak":             {http.Header{"Etag": {`W/"x"`}, "Last-Modified": {old}, "Date": {now}}, ""},
		"old enough":       {http.Header{"Last-Modified": {old}, "Date": {now}}, old},
		"just now":         {http.Header{"Last-Modified": {now}, "Date": {now}}, ""},
		"server's no date": {http.Header{"Last-Modified": {old}}, ""},
		"nothing":          {http.Header{}, ""},
	} {
		if got := validator(c.header); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestDiagnostics has a registry's codes with their messages, and a code alone where it sent no message.
func TestDiagnostics(t *testing.T) {
	t.Parallel()
	err := &transport.Error{Errors: []transport.Diagnostic{
		{Code: transport.DeniedErrorCode, Message: "no access"},
		{Code: transport.UnknownErrorCode},
	}}
	if got := diagnostics(fmt.Errorf("GET: %w", err)); got != "DENIED: no access; UNKNOWN" {
		t.Errorf("got %q", got)
	}
	if got := diagnostics(errors.New("<html>")); got != "" {
		t.Errorf("a page: got %q", got)
	}
}

func TestNextURL(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("http://r.site:5000/v2/app/tags/list?n=1000")
	if err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		`</v2/app/tags/list?n=2&last=b>; rel="next"`:                           "n=2&last=b",
		`<http://r.site/repository/proxy/v2/app/tags/list?last=b>; rel="next"`: "last=b",
		`<https://internal:8080/v2/app/tags/list?last=b>;rel=next`:             "last=b",
		`</v2/app/tags/list?n=2>; rel="prev", <?last=b>; rel="next"`:           "last=b",
		`<?last=b>; title="a, b"; REL='next last', <?last=z>; rel="last"`:      "last=b",
		`/v2/app/tags/list?last=b; rel="next"`:                                 "last=b",
		`</v2/app/tags/list?n=2>; rel="prev"`:                                  "",
		`<?last=b>; rel="nextish"; title="next"`:                               "",
		``:                                                                     "",
	} {
		to, err := nextURL(at, http.Header{"Link": {`<?first>; rel="first"`, link}})
		switch {
		case err != nil, (to == nil) != (want == ""):
			t.Errorf("%s: %v, %v", link, to, err)
		case to != nil && to.String() != "http://r.site:5000/v2/app/tags/list?"+want:
			t.Errorf("%s leads to %s", link, to)
		}
	}
}

func TestPickVersion(t *testing.T) {
	t.Parallel()
	list := []string{
		"4.13.9", "4.14.0", "4.14.10", "4.14.9", "4.15.0-rc.1", "v5.0.0", "nonsense", "4.14.10+build.1",
		"5.1.0-beta",
	}
	for want, exp := range map[string]string{
		"4.14.x": "4.14.10", "4.14.9": "4.14.9", "": "v5.0.0", "~4.13.0": "4.13.9", ">=4.13 <4.14.1": "4.14.0",
		"4.15.0-rc.1": "4.15.0-rc.1", "^4": "4.14.10", "5.0.0": "v5.0.0", ">5.0.0-0": "5.1.0-beta",
	} {
		got, err := pickVersion(list, want, func(s string) string { return s })
		if err != nil || got != exp {
			t.Errorf("%q: got %q, %v, want %q", want, got, err, exp)
		}
	}
	for want, says := range map[string]string{
		"6.x": "newest are 5.1.0-beta, v5.0.0, 4.15.0-rc.1",
		"one": "neither a version nor a range", "4.15.x": "newest",
	} {
		if _, err := pickVersion(list, want, func(s string) string { return s }); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want %q", want, err, says)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"https://h/charts", "app-1.tgz", "https://h/charts/app-1.tgz"},
		{"https://h/charts/", "sub/app-1.tgz", "https://h/charts/sub/app-1.tgz"},
		{"https://h/charts", "/app-1.tgz", "https://h/app-1.tgz"},
		{"https://h/charts", "https://x/app-1.tgz?a=b", "https://x/app-1.tgz?a=b"},
	} {
		got, err := archiveAddress(helmindex.Version{URLs: []string{c[1]}}, c[0])
		if err != nil || got != c[2] {
			t.Errorf("%v: got %s, %v", c, got, err)
		}
	}
}

func TestAddressWithSecret(t *testing.T) {
	t.Parallel()
	_, err := archiveAddress(helmindex.Version{URLs: []string{"https://bucket.example/app-1.tgz?X-Amz-Signature=s3cret"}}, "https://h/charts")
	if err == nil || !strings.Contains(err.Error(), "X-Amz-Signature") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	if got := printable("a\x1b[31m\nb" + strings.Repeat("x", 1000)); strings.ContainsAny(got, "\x1b\n") ||
		len(got) > 310 {
		t.Errorf("got %q", got)
	}
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string][2]string{
		"docker.io/library/nginx:1.29":            {"docker.io/library/nginx", "1.29"},
		"r:5000/a/b":                              {"r:5000/a/b", ""},
		"r:5000/a/b:v1@sha256:" + sumA:            {"r:5000/a/b", "v1"},
		"registry.k8s.io/pause:3.10.1":            {"registry.k8s.io/pause", "3.10.1"},
		"registry.k8s.io/coredns/coredns:v1.12.1": {"registry.k8s.io/coredns/coredns", "v1.12.1"},
	} {
		if got := [2]string{imageName(ref), imageVersion(ref)}; got != want {
			t.Errorf("%s: got %v, want %v", ref, got, want)
		}
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	n := newNetwork([]manifest.Source{
		{Host: "dl.k8s.io", Mirrors: manifest.Mirrors{"mirror.example:8443/k8s/"}},
		{Host: "docker.io", Mirrors: manifest.Mirrors{"mirror.example:8443/hub"}},
		{Host: "mirror.example:8443", MaxConcurrent: 3},
		{Host: "plain.example:80", PlainHTTP: true},
		{Host: "private.example", Mirrors: manifest.Mirrors{"cache.example/x"}, PlainHTTP: true},
	}, "", NewHosts(), nil)
	for raw, want := range map[string]string{
		"https://dl.k8s.io/release/v1/x%2Fy?q=1#f": "https://mirror.example:8443/k8s/release/v1/x%2Fy?q=1",
		"https://dl.k8s.io:443/x":                  "https://mirror.example:8443/k8s/x",
		"http://dl.k8s.io/x":                       "https://mirror.example:8443/k8s/x",
		"https://other.example/x":                  "https://other.example/x",
		"http://plain.example/x":                   "http://plain.example/x",
		"http://plain.example:80/x":                "http://plain.example/x",
	} {
		places, err := n.route(raw)
		if err != nil || places[0].url.String() != want {
			t.Errorf("%s: got %v, %v, want %s", raw, places, err, want)
			continue
		}
		gate := places[0].peer.server.gate
		if strings.Contains(want, "mirror") && cap(gate.slots) != 3 {
			t.Errorf("%s: %d at once", raw, cap(gate.slots))
		}
		last := places[len(places)-1]
		if strings.HasPrefix(raw, "https://dl.k8s.io") && (last.url.Host != "dl.k8s.io" || last.url.Scheme != "https" ||
			len(places) != 2) {
			t.Errorf("%s: asked last: %v", raw, last.url)
		}
	}
	if _, err := n.route("http://other.example/x"); err == nil {
		t.Error("plain HTTP without leave")
	}
	for host, want := range map[string]bool{
		"plain.example": true, "plain.example:80": true, "cache.example": true, "private.example": false,
		"other.example": false,
	} {
		if got := n.sources.plainHost(host); got != want {
			t.Errorf("plain HTTP to %s: %v", host, got)
		}
	}
	if p, err := n.peers("registry-1.docker.io"); err != nil || len(p) != 2 ||
		p[0].String() != "docker.io (mirror mirror.example:8443/hub)" || p[1].String() != "docker.io" {
		t.Errorf("%v, %v", p, err)
	}
}

// FuzzParseManifest holds for whatever a registry sends: no panic, and what is accepted has digests and sizes that
// can be asked for.
func FuzzParseManifest(f *testing.F) {
	d := sha256Of(nil).String()
	f.Add(true, []byte(`{"manifests":[{"digest":"`+d+
		`","size":1,"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`))
	f.Add(false, []byte(`{"config":{"digest":"`+d+`"},"layers":[{"digest":"`+d+`","size":2}],"subject":{"digest":"`+d+
		`"},"annotations":{"a":"b"}}`))
	f.Add(false, []byte(`{"layers":null,"blobs":[{"digest":"sha512:00","size":-1}]}`))
	f.Fuzz(func(t *testing.T, index bool, data []byte) {
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}
		if index {
			desc.MediaType = ocispec.MediaTypeImageIndex
		}
		doc, err := parseManifest(desc, data)
		if err != nil {
			return
		}
		w := &imageWalk{wanted: []string{"linux/arm/v7", "linux/amd64"}}
		chosen := w.choose(doc.Manifests)
		for _, child := range doc.Manifests {
			if checkDescriptor(child) != nil {
				t.Errorf("accepted: %+v", child)
			}
			w.takes(child, chosen)
		}
		doc.artifactType()
	})
}

// TestErrorsByCause: items of a host that cannot be reached are one cause with one remedy.
func TestErrorsByCause(t *testing.T) {
	t.Parallel()
	peers, err := newNetwork(nil, "", NewHosts(), nil).peers("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	_, refused := peers[0].webClient().Get("https://localhost:1")
	gone, ok := errors.AsType[*unreachableError](refused)
	if !ok {
		t.Fatal(refused)
	}
	e := &Errors{Items: 30}
	for i := range 7 {
		e.Failed = append(e.Failed, &ItemError{
			Kind: "file", Ref: fmt.Sprintf("https://dl.example/%d", i),
			Platform: "linux/amd64", Err: fmt.Errorf("ask dl.example: %w (tried 3 times)", gone),
		})
	}
	e.Failed = append(e.Failed, &ItemError{Kind: "image", Ref: "a:1", Err: errors.New("a:1: 404 Not Found")},
		&ItemError{Kind: "image", Ref: "b:1", Err: errors.New("not signed")})
	got := e.Error()
	want := "9 of 30 items could not be fetched:\n  7 items: " + gone.Error() + `
    file https://dl.example/0 (linux/amd64)
    file https://dl.example/1 (linux/amd64)
    file https://dl.example/2 (linux/amd64)
    file https://dl.example/3 (linux/amd64)
    file https://dl.example/4 (linux/amd64)
    and 2 more
  image a:1: 404 Not Found
  image b:1: not signed`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestHostileManifest refuses a manifest of a million empty descriptors before they are made.
func TestHostileManifest(t *testing.T) {
	t.Parallel()
	data := []byte(`{"schemaVersion":2,"layers":[` + strings.Repeat("{},", maxManifest/3-20) + `{}]}`)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}
	if _, err := parseManifest(desc, data); err == nil || !strings.Contains(err.Error(), "values") {
		t.Error(err)
	}
	if bytes.Count(data, []byte(",")) < maxValues {
		t.Error("the manifest is not large enough")
	}
}
