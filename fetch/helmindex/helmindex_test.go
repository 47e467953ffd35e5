package helmindex

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sumA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

const indexYAML = `apiVersion: v1
entries:
  app:
  - apiVersion: v2
    description: |
      text
        other:
    digest: ` + sumA + `
    urls:
    - app-1.0.0.tgz
    version: 1.0.0
  - version: 0.9.0
    urls: [https://elsewhere.example/app-0.9.0.tgz]
  other:
    - version: 2.0.0
      urls:
        - charts/other-2.0.0.tgz
generated: "2026-01-01T00:00:00Z"
`

func TestParseIndex(t *testing.T) {
	t.Parallel()
	want := []Version{
		{Version: "1.0.0", URLs: []string{"app-1.0.0.tgz"}, Digest: sumA},
		{Version: "0.9.0", URLs: []string{"https://elsewhere.example/app-0.9.0.tgz"}},
	}
	quoted := strings.Replace(indexYAML, "  app:\n", "  \"app\":\n", 1)
	flow := "entries: {app: [{version: 1.0.0, urls: [app-1.0.0.tgz], digest: " + sumA +
		"}, {version: 0.9.0, urls: ['https://elsewhere.example/app-0.9.0.tgz']}]}\n"
	asJSON := `{"entries": {"app": [{"version": "1.0.0", "urls": ["app-1.0.0.tgz"], "digest": "` + sumA +
		`"}, {"version": "0.9.0", "urls": ["https://elsewhere.example/app-0.9.0.tgz"]}]}}`
	for name, text := range map[string]string{
		"as helm writes it": indexYAML, "quoted": quoted, "flow": flow,
		"json": asJSON,
	} {
		got, err := Parse([]byte(text), "app")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	hole := strings.Replace(indexYAML, "  - version: 0.9.0\n", "  -\n  - ~\n  - version: 0.9.0\n", 1)
	if got, err := Parse([]byte(hole), "app"); err != nil || len(got) != 2 {
		t.Errorf("empty entries, which Helm passes over: %v, %v", got, err)
	}
	if got, err := Parse([]byte(indexYAML), "other"); err != nil || len(got) != 1 || got[0].Version != "2.0.0" {
		t.Errorf("other: %v, %v", got, err)
	}
	if got, err := Parse([]byte(indexYAML), "none"); err != nil || got != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, bad := range []string{"<html></html>", "entries: 5\n", "{", "a: b\n"} {
		if _, err := Parse([]byte(bad), "app"); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if part, ok := section([]byte(indexYAML), "other"); !ok || strings.Contains(string(part), "app-1.0.0") ||
		strings.Contains(string(part), "generated") {
		t.Errorf("section: %v %s", ok, part)
	}
}

// FuzzParseIndex wants an answer, whatever somebody's server sends.
func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(indexYAML), "app")
	f.Add([]byte("entries:\n  a:\n  - version: 1\n"), "a")
	f.Fuzz(func(t *testing.T, data []byte, chart string) {
		if len(data) > 10_000 {
			return
		}
		_, _ = Parse(data, chart)
	})
}
