package serve

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

var single = regexp.MustCompile(`^bytes=([0-9]+-[0-9]*|-0*[1-9][0-9]*)$`)

// FuzzRange holds that no header makes a range that is not within the content, and that what net/http's own server
// makes of a single range is what this one does.
func FuzzRange(f *testing.F) {
	for _, h := range []string{
		"bytes=0-0", "bytes=-1", "bytes=5-", "bytes=0-0,2-3", "bytes=9-5", "bytes=-0", "bytes=10-", "items=0-1",
		"bytes=", "bytes=-",
		"bytes=99999999999999999999-", "bytes=0-99999999999999999999", "bytes=+1-2", "bytes= 1 - 2 ", "bytes=--1",
		"bytes=1-2-3",
	} {
		f.Add(h, int64(10))
	}
	f.Add("bytes=0-", int64(0))
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		s, partial, ok := parseRange(header, size)
		switch {
		case ok && (s.start < 0 || s.length < 0 || s.start+s.length > size || s.start+s.length < 0):
			t.Errorf("%q of %d: %+v", header, size, s)
		case ok && partial && s.length == 0:
			t.Errorf("%q of %d: an empty range", header, size)
		case ok && !partial && s != span{0, size}:
			t.Errorf("%q of %d: %+v for the whole", header, size, s)
		}
		// net/http takes signs too, and answers -0 with nothing
		if size > 1<<16 || size == 0 || !single.MatchString(header) {
			return
		}
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Range", header)
		w := httptest.NewRecorder()
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(strings.Repeat("x", int(size))))
		if w.Code == http.StatusPartialContent && (!partial || int64(w.Body.Len()) != s.length) {
			t.Errorf("%q of %d: %+v, partial %v; net/http sends %d bytes", header, size, s, partial, w.Body.Len())
		}
	})
}

// FuzzRoute holds that names and references never have what the file system or another route would take for its own.
func FuzzRoute(f *testing.F) {
	for _, p := range []string{
		"/v2/", "/v2/a/manifests/1", "/v2/a/manifests/b/manifests/1", "/v2/a/blobs/uploads/", "/v2/a/blobs/uploads/x",
		"/v2/blobs/uploads/",
		"/v2/a/tags/list", "/v2/tags/list", "/v2/a/referrers/sha256:0", "/v2/_catalog", "/v2/a/b", "/v2//manifests/",
		"/v2/a/manifests/",
	} {
		f.Add(strings.TrimPrefix(p, "/v2/"))
	}
	f.Fuzz(func(t *testing.T, path string) {
		path = "/v2/" + path
		r := parseRoute(path)
		if strings.Contains(r.ref, "/") && r.kind != "uploads" {
			t.Errorf("%q: reference %q", path, r.ref)
		}
		if (r.kind == "manifests" || r.kind == "blobs" || r.kind == "referrers") && (r.ref == "" ||
			r.name+"/"+r.kind+"/"+r.ref != strings.TrimPrefix(path, "/v2/")) {
			t.Errorf("%q: %+v", path, r)
		}
		if clean := cleanPath(path); strings.HasPrefix(clean, "/") || strings.Contains("/"+clean+"/", "/../") ||
			strings.Contains("/"+clean+"/", "/./") || strings.Contains(clean, "//") {
			t.Errorf("%q: path %q", path, clean)
		}
	})
}
