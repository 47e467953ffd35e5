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
	for i, name := range []string{
		"../../etc/passwd", "..", "", "/", "a/b", "b", "B", ".ssh", "nul\x00byte", "a\\..\\b",
		strings.Repeat("x", 400), strings.Repeat("x", 401),
	} {
		it := bundle.Item{Kind: bundle.KindFile, Name: name, Ref: name, Version: "../v1"}
		it.Descriptor = ocispec.Descriptor{Digest: digest.FromString(string(rune('a' + i)))}
		items = append(items, it)
		it.Kind, it.Descriptor.Platform = bundle.KindChart, &ocispec.Platform{OS: "..", Architecture: ".."}
		items = append(items, it)
	}
	seen := map[string]bool{}
	for i, p := range treePaths(items) {
		dir, base, _ := strings.Cut(p, "/")
		if dir != treeFiles && dir != treeCharts || strings.ContainsAny(base, "/\x00\\") || base == "" ||
			strings.HasPrefix(base, ".") || len(base) > 255 {
			t.Errorf("%q goes to %q", items[i].Name, p)
		}
		if seen[strings.ToLower(p)] {
			t.Errorf("%q goes where another is: %q", items[i].Name, p)
		}
		seen[strings.ToLower(p)] = true
	}
}

// TestFileNameIsPlain: the name of an item that a stranger made is no hidden file and no path.
func TestFileNameIsPlain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		item bundle.Item
		want string
	}{
		{bundle.Item{Kind: bundle.KindFile, Name: ".bashrc"}, "bashrc"},
		{bundle.Item{Kind: bundle.KindFile, Name: "a/../../.ssh/authorized_keys"}, "authorized_keys"},
		{bundle.Item{Kind: bundle.KindFile, Name: ".."}, "unnamed"},
		{bundle.Item{Kind: bundle.KindChart, Name: ".web", Version: "../.1"}, "web-1.tgz"},
		{bundle.Item{Kind: bundle.KindFile, Name: "kubeadm"}, "kubeadm"},
		{bundle.Item{Kind: bundle.KindFile, Name: "line\nbreak"}, "line_break"},
	} {
		if got := FileName(c.item); got != c.want {
			t.Errorf("%q: %q, want %q", c.item.Name, got, c.want)
		}
	}
}
