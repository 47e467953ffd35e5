package cli_test

import (
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
)

// harbor starts a stand-in for Harbor, whose address is in $HARBOR then, with a project "small" of 100 bytes.
func harbor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: harbor")
	}
	s, err := harbortest.New(harbortest.Options{Projects: []harbortest.Project{{Name: "small", Quota: 100}}})
	ts.Check(err)
	ts.Defer(func() {
		if v := s.Violations(); len(v) > 0 {
			ts.Fatalf("against Harbor's OpenAPI file: %v", v)
		}
		ts.Check(s.Close())
	})
	ts.Setenv("HARBOR", s.Host)
}

// proxy starts a proxy that brings every request to the plain registry, whatever its name, and puts it into
// $HTTP_PROXY.
func proxy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: proxy")
	}
	to, err := url.Parse(of(ts).plain.URL)
	ts.Check(err)
	s := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // which the registry's answers have in them
	}})
	ts.Defer(s.Close)
	ts.Setenv("HTTP_PROXY", s.URL)
}
