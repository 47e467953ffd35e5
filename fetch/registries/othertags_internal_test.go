package registries

import (
	"slices"
	"testing"
)

func TestNearestTags(t *testing.T) {
	t.Parallel()
	all := []string{"1.28", "1.29", "1.29-alpine", "1.30", "latest", "stable", "2.0"}
	if got, want := nearestTags("1.31", all), []string{"1.30", "1.29", "1.28", "2.0", "stable"}; !slices.Equal(got,
		want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := nearestTags("1", nil); len(got) != 0 {
		t.Errorf("%q of no tags", got)
	}
}
