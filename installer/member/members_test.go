//go:build linux

package member

import (
	"testing"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	site := identity{"site", "v1.34.3"}
	for text, want := range map[string]identity{"site v1.34.3": site, "site": {name: "site"}, "": {}} {
		if got := parseIdentity(text); got != want || got.String() != text {
			t.Errorf("%q is %+v, which is written %q", text, got, got)
		}
	}
	if !site.sameName(identity{"site", "v1.35.0"}) || site.sameName(identity{"sites", "v1.34.3"}) {
		t.Error("names are compared wrongly")
	}
}
