package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParseChain(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"odd+name.kkb+x.kkd", "base", "split.kkb.001"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string][]string{ // OLD, then the deltas
		"a.kkb+b.kkd":             {"a.kkb", "b.kkd"},
		"/x/a.kkb+../b.kkd+c.kkd": {"/x/a.kkb", "../b.kkd", "c.kkd"},
		"a-1+2.kkb+b-2+3.kkd":     {"a-1+2.kkb", "b-2+3.kkd"},
		"a.kkb.age+b.kkd":         {"a.kkb.age", "b.kkd"},
		"a.kkb.001+b.kkd":         {"a.kkb.001", "b.kkd"},
		"a.kkb.parts.json+b.kkd":  {"a.kkb.parts.json", "b.kkd"},
		"split.kkb+b.kkd":         {"split.kkb", "b.kkd"},
		"base+b.kkd":              {"base", "b.kkd"},
		"a.kkp":                   {"", "a.kkp"},
		"a+1.kkp+b.kkd":           {"", "a+1.kkp", "b.kkd"},
		"a.kkb":                   nil,
		"a.kkd":                   nil,
		"a.kkb+b.kkb":             nil,
		"a.kkb+b.kkd+c":           nil,
		"+a.kkd":                  nil,
		"other+b.kkd":             nil,
		"odd+name.kkb+x.kkd":      nil, // a file
		"-":                       nil,
		"":                        nil,
	} {
		c, ok := parseChain(text)
		var got []string
		if ok {
			got = append([]string{c.old}, c.deltas...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
	}
	c, _ := parseChain("a.kkb+dir/site-1.5.0.kkd")
	if got := sidecarName(sidecarBase("a.kkb+dir/site-1.5.0.kkd"), ""); c.result() != "dir/site-1.5.0.kkb" ||
		got != "dir/site-1.5.0.kkb.sigstore.json" {
		t.Errorf("the result is %s with the signature %s", c.result(), got)
	}
}

func FuzzParseChain(f *testing.F) {
	for _, s := range []string{"a.kkb+b.kkd", "a.kkp", "a+.kkd+b.kkd+", "a.kkb.001+b+c.kkd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := parseChain(text)
		if !ok {
			return
		}
		all := c.deltas
		if c.old != "" {
			all = append([]string{c.old}, all...)
		}
		if len(c.deltas) == 0 || strings.Join(all, chainSign) != text {
			t.Errorf("%q gives %q", text, all)
		}
	})
}
