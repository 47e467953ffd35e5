package extract

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

// However items are called, a tree's files stay below it and apart from one another.
func TestTreePaths(t *testing.T) {
	t.Parallel()
	var items []bundle.Item
	for i, name := range []string{"../../etc/passwd", "..", "", "/", "a/b", "b", "B", ".ssh", "nul\x00byte", "a\\..\\b", strings.Repeat("x", 400), strings.Repeat("x", 401)} {
		it := bundle.Item{Kind: bundle.KindFile, Name: name, Ref: name, Version: "../v1"}
		it.Descriptor = ocispec.Descriptor{Digest: digest.FromString(string(rune('a' + i)))}
		items = append(items, it)
		it.Kind, it.Descriptor.Platform = bundle.KindChart, &ocispec.Platform{OS: "..", Architecture: ".."}
		items = append(items, it)
	}
	seen := map[string]bool{}
	for i, p := range treePaths(items) {
		dir, base, _ := strings.Cut(p, "/")
		if dir != treeFiles && dir != treeCharts || strings.ContainsAny(base, "/\x00\\") || base == "" || strings.HasPrefix(base, ".") || len(base) > 255 {
			t.Errorf("%q goes to %q", items[i].Name, p)
		}
		if seen[strings.ToLower(p)] {
			t.Errorf("%q goes where another is: %q", items[i].Name, p)
		}
		seen[strings.ToLower(p)] = true
	}
}
