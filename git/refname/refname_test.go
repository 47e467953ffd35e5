package refname_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git/refname"
)

// TestCheck: names that are taken, and those that are refused.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"refs/heads/main", "refs/tags/v1.0", "refs/heads/team/a-b_c", "refs/heads/日本", "refs/heads/-a", "refs/heads/a./b"} {
		if err := refname.Check(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"", "main", "HEAD", "refs/heads", "refs/meta/config", "refs/pull/1/head", "refs/heads/", "refs/heads/a..b", "refs/heads/.a", "refs/heads/a.lock",
		"refs/heads/a b", "refs/heads/a\n", "refs/heads/a~1", "refs/heads/a^", "refs/heads/a:b", "refs/heads/a?",
		"refs/heads/a*", "refs/heads/[a", "refs/heads/a\\b", "refs/heads/a@{1}", "refs/heads//a", "refs/heads/a.",
		"refs/heads/\u009b31m", "refs/../../etc/passwd", "refs/heads/" + strings.Repeat("x", 2000), "refs/heads/\xff",
	} {
		if refname.Check(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

// TestMatches: whole names, short names and patterns.
func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"main", "refs/heads/main", true},
		{"main", "refs/tags/main", true},
		{"refs/tags/main", "refs/heads/main", false},
		{"v1.*", "refs/tags/v1.2.3", true},
		{"v1.*", "refs/tags/v11", false},
		{"*", "refs/heads/a/b", true},
		{"a*c*e", "refs/heads/abcde", true},
		{"a*c*e", "refs/heads/abde", false},
		{"refs/heads/*", "refs/heads/x", true},
		{"main", "refs/heads/main2", false},
		{"*-x", "refs/heads/x", false},
	} {
		if got := refname.Matches(c.pattern, c.name); got != c.want {
			t.Errorf("%s %s: %v", c.pattern, c.name, got)
		}
		if err := refname.CheckPattern(c.pattern); err != nil {
			t.Error(err)
		}
	}
}
