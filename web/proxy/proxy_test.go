package proxy_test

import (
	"errors"
	"net/http"
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
