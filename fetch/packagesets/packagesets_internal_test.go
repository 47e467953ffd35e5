package packagesets

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/manifest"
)

// A package answers to the names under install that it provides.
func TestAnswers(t *testing.T) {
	t.Parallel()
	c := choice{set: manifest.PackageSet{Install: []string{
		"iptables=1.8", "ebtables", "socat", "iptables-nft",
		"/usr/sbin/iptables",
	}}}
	p := &packages.Package{Name: "iptables-nft", Provides: []packages.Relation{
		{Name: "iptables"},
		{Name: "ebtables"},
		{Name: "arptables"},
		{Name: "/usr/sbin/iptables"},
	}}
	if got := c.answers(p); !slices.Equal(got, []string{"ebtables", "iptables"}) {
		t.Errorf("%q", got)
	}
}
