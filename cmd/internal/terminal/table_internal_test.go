package terminal

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestFolded(t *testing.T) {
	t.Parallel()
	table := [][]string{
		{"KIND", "NAME", "REASON"},
		{
			"image", "registry.k8s.io/sig-storage/nfs-subdir-external-provisioner:v4.0.2",
			"a text of several words, one with a comma",
		},
		{"file", "x", ""},
	}
	got := folded(table, 60)
	want := [][]string{
		{"KIND", "NAME", "REASON"},
		{"image", "registry.k8s.io/", "a text of several words,"},
		{"", "sig-storage/", "one with a comma"},
		{"", "nfs-subdir-external-provisioner:v4.0.2", ""},
		{"file", "x", ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(table, folded(table, 200)); d != "" {
		t.Errorf("a table that fits was changed: %s", d)
	}
	for _, width := range []int{1, 20, 40, 80} {
		for _, line := range folded([][]string{{"A", "B"}, {strings.Repeat("word ", 30), strings.Repeat("a/b,", 40)}},
			width) {
			if n := utf8.RuneCountInString(line[0]) + columnGap + utf8.RuneCountInString(line[1]); n > max(width,
				2*leastColumn+columnGap) {
				t.Errorf("width %d: a line of %d characters: %q", width, n, line)
			}
		}
	}
}
