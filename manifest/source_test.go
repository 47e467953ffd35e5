package manifest

import (
	"os"
	"strings"
	"testing"
)

func TestOverrideApply(t *testing.T) {
	t.Parallel()
	whole := Override{URL: "https://a.example/x_{arch}", With: "https://m.example/{arch}/x"}
	below := Override{Host: "A.example:443", Path: "/release/", With: "https://m.example/k8s/"}
	host := Override{Host: "a.example", With: "http://m.example"}
	for _, c := range []struct {
		o             Override
		address, want string
	}{
		{whole, "https://a.example/x_amd64", "https://m.example/amd64/x"},
		{whole, "https://a.example/x_arm64", ""},
		{whole, "https://a.example/x_amd64.sha256", ""},
		{below, "https://a.example/release/v1/x%2Fy?q=1", "https://m.example/k8s/v1/x%2Fy?q=1"},
		{below, "https://a.example/release", "https://m.example/k8s"},
		{below, "https://a.example/releases/v1", ""},
		{below, "https://b.example/release/v1", ""},
		{below, "https://a.example:8443/release/v1", ""},
		{host, "https://a.example/v1", "http://m.example/v1"},
		{host, "https://a.example", "http://m.example"},
		{host, "https://a.example?x", "http://m.example?x"},
		{Override{URL: "https://a.example/x", SHA256: Sums{"": "00"}}, "https://a.example/x", ""},
	} {
		got, ok := c.o.Apply(c.address, "linux/amd64")
		if ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s with %+v: got %q, %v, want %q", c.address, c.o, got, ok, c.want)
		}
	}
}

func TestOverrideChangesFingerprint(t *testing.T) {
	t.Parallel()
	b := &Bundle{Platforms: []string{"linux/amd64"}}
	print := func() string {
		d, err := b.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	plain := print()
	b.Overrides = []Override{{URL: "https://a.example/x", With: "https://m.example/x"}}
	if print() != plain {
		t.Error("where bytes come from does not make them others")
	}
	b.Overrides[0].SHA256 = Sums{"": "00"}
	if print() == plain {
		t.Error("a checksum decides what an item is")
	}
}

// TestSourcesDocs reads every example of the page about sources.
func TestSourcesDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/build/sources.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: 1.0.0}\nplatforms: [linux/amd64]\n"
	examples := strings.Split(string(page), "```yaml\n")[1:]
	for _, e := range examples {
		text, _, _ := strings.Cut(e, "```")
		if _, err := ParseBundle("docs/build/sources.md", []byte(head+text)); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
	if len(examples) < 4 {
		t.Errorf("%d examples", len(examples))
	}
}
