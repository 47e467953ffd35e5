package report

import (
	"slices"
	"testing"
)

// TestTogether has several hosts with one warning, one with its own, and one that is nobody's.
func TestTogether(t *testing.T) {
	t.Parallel()
	got := together([]string{"a: no route", "the file: names nobody", "b: no route", "b: no name", "no host: but said"},
		[]string{"a", "b"})
	want := []string{"a, b: no route", "the file: names nobody", "b: no name", "no host: but said"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
