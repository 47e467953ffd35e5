package proxy_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/web/proxy"
)

// TestFromEnvironment wants no part of a password to be taken for a host.
func TestFromEnvironment(t *testing.T) {
	for address, host := range map[string]string{
		"http://proxy.site:3128":               "proxy.site:3128",
		"proxy.site:3128":                      "proxy.site:3128",
		"http://proxy.site:3128/":              "proxy.site:3128",
		"http://me:p%40s%23s@proxy.site":       "proxy.site",
		"http://me:p@ss@proxy.site:3128":       "proxy.site:3128",
		"socks5://me:pw@proxy.site:1080":       "proxy.site:1080",
		"":                                     "",
		"http://me:p@sekret#1@proxy.site:3128": "refused",
		"http://me:p@sekret/1@proxy.site:3128": "refused",
		"http://me:p@sekret?1@proxy.site:3128": "refused",
		"me:p@sekret?@proxy.site:3128":         "refused",
		"http://me:p@sekret#":                  "refused",
		"http://me:1/sekret@proxy.site:3128":   "refused",
		"http://me:sekret#1@proxy.site:3128":   "refused",
		"https://me:%zz@proxy.site":            "refused",
		"ftp://proxy.site":                     "refused",
	} {
		t.Setenv("HTTPS_PROXY", address)
		t.Setenv("NO_PROXY", "")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://registry.example/v2/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		u, err := proxy.FromEnvironment()(req)
		switch {
		case host == "refused":
			if !errors.Is(err, proxy.ErrAddress) || strings.Contains(err.Error(), "sekret") {
				t.Errorf("%s: %v, %v", address, u, err)
			}
		case err != nil, host == "" && u != nil, host != "" && (u == nil || u.Host != host):
			t.Errorf("%q: %v, %v; want %s", address, u, err, host)
		}
	}
}

// emptyPage is the type of an answer without content: some proxies give every answer one.
const emptyPage = "text/html; default"

// TestAnswered: what a proxy answers in place of a connection is told apart from the host's answer, without its password.
func TestAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		kind string
		says string // "" for a connection
	}{
		{200, "", ""},
		{200, "text/plain", ""},
		{200, emptyPage, ""},
		{200, "text/HTML; charset=utf-8", "answers 200 OK with a page"},
		{302, "", "answers 302 Found with a page"},
		{403, "text/html", "blocks this host"},
		{407, "text/html", "put user and password"},
		{502, "text/html", "cannot reach this host either"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{c.kind}
			if c.kind == "" {
				w.Header()["Content-Type"] = nil // not what the server finds
			}
			w.Header().Set("Location", "http://login.site/?s3kret")
			w.WriteHeader(c.code)
			if c.kind != emptyPage {
				_, _ = w.Write([]byte("<html>s3kret</html>"))
			}
		}))
		t.Cleanup(server.Close)
		address := &url.URL{Scheme: "http", User: url.UserPassword("me", "s3kret"), Host: server.Listener.Addr().String()}
		client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(address), OnProxyConnectResponse: proxy.Answered}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://registry.example/v2/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		refused, ok := errors.AsType[*proxy.Error](err)
		if ok != (c.says != "") || ok && !strings.Contains(refused.Error(), c.says) ||
			ok && (!strings.Contains(refused.Error(), address.Host) || strings.Contains(err.Error(), "s3kret")) {
			t.Errorf("%d %s: %v", c.code, c.kind, err)
		}
	}
}
