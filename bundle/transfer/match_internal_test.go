package transfer

import (
	"testing"
)

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"a*", "ab/c", true},
		{"*c", "ab/c", true},
		{"*b*", "abc", true},
		{"a*a", "a", false},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "a-c-b", false},
		{"*", "", true},
		{"**", "x", true},
		{"https://x/y?z", "https://x/y?z", true},
		{"a?c", "abc", true},
		{"a?", "a", false},
		{"*b?", "abbc", true},
		{"*ab", "aab", true},
		{"a*", "b", false},
		{"", "a", false},
		{"abc*", "ab", false},
	} {
		if got := glob(tc.pattern, tc.name); got != tc.want {
			t.Errorf("glob(%q, %q) = %v", tc.pattern, tc.name, got)
		}
	}
}
