package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/manifest/sources"
)

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

func TestPrintable(t *testing.T) {
	t.Parallel()
	if got := Printable("a\x1b[31m\nb" + strings.Repeat("x", 1000)); strings.ContainsAny(got, "\x1b\n") ||
		len(got) > 310 {
		t.Errorf("got %q", got)
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	n := NewNetwork([]sources.Source{
		{Host: "dl.k8s.io", Mirrors: sources.Mirrors{"mirror.example:8443/k8s/"}},
		{Host: "docker.io", Mirrors: sources.Mirrors{"mirror.example:8443/hub"}},
		{Host: "mirror.example:8443", MaxConcurrent: 3},
		{Host: "plain.example:80", PlainHTTP: true},
		{Host: "private.example", Mirrors: sources.Mirrors{"cache.example/x"}, PlainHTTP: true},
	}, "", NewHosts(), nil)
	for raw, want := range map[string]string{
		"https://dl.k8s.io/release/v1/x%2Fy?q=1#f": "https://mirror.example:8443/k8s/release/v1/x%2Fy?q=1",
		"https://dl.k8s.io:443/x":                  "https://mirror.example:8443/k8s/x",
		"http://dl.k8s.io/x":                       "https://mirror.example:8443/k8s/x",
		"https://other.example/x":                  "https://other.example/x",
		"http://plain.example/x":                   "http://plain.example/x",
		"http://plain.example:80/x":                "http://plain.example/x",
	} {
		places, err := n.Route(raw)
		if err != nil || places[0].URL.String() != want {
			t.Errorf("%s: got %v, %v, want %s", raw, places, err, want)
			continue
		}
		gate := places[0].Peer.server.gate
		if strings.Contains(want, "mirror") && cap(gate.slots) != 3 {
			t.Errorf("%s: %d at once", raw, cap(gate.slots))
		}
		last := places[len(places)-1]
		if strings.HasPrefix(raw, "https://dl.k8s.io") && (last.URL.Host != "dl.k8s.io" || last.URL.Scheme != "https" ||
			len(places) != 2) {
			t.Errorf("%s: asked last: %v", raw, last.URL)
		}
	}
	if _, err := n.Route("http://other.example/x"); err == nil {
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
	if p, err := n.Peers("registry-1.docker.io"); err != nil || len(p) != 2 ||
		p[0].String() != "docker.io (mirror mirror.example:8443/hub)" || p[1].String() != "docker.io" {
		t.Errorf("%v, %v", p, err)
	}
}
