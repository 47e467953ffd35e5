package software

import (
	"slices"
	"strings"
	"testing"
)

func TestParseReleases(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]Release{
		"":                          {Bookworm},
		"bullseye":                  {Bullseye},
		"bullseye, bookworm,trixie": {Bullseye, Bookworm, Trixie},
	} {
		if got, err := ParseReleases(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v", list, got, err)
		}
	}
	for list, want := range map[string]string{"testing": "cgroup v2", "buster": "bullseye", "trixie,": "bullseye"} {
		if _, err := ParseReleases(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", list, err, want)
		}
	}
}

// Hosts of the default release use the file system that every build makes.
func TestRootsOfReleases(t *testing.T) {
	t.Parallel()
	s := &Software{RootFS: "/default", Roots: map[Release]string{Bullseye: "/old"}}
	if got := s.RootsOf([]Release{Bookworm, Bullseye}); !slices.Equal(got, []string{"/default", "/old"}) {
		t.Errorf("got %q", got)
	}
}
