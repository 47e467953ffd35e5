package gather

import (
	"errors"
	"path"
	"testing"
)

func TestMatcher(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		patterns []string
		tag      string
		want     bool
	}{
		{nil, "1", true},
		{[]string{"app:1*"}, "1.2", true},
		{[]string{"app:1*"}, "2.1", false},
		{[]string{"*:2*", "*:1*"}, "1", true},
		{[]string{"host/*:1"}, "1", false},
		{[]string{"host/team/*:1"}, "1", true},
	} {
		keep, err := matcher(one.patterns)
		if err != nil {
			t.Fatal(err)
		}
		if got := keep("host/team/app", one.tag); got != one.want {
			t.Errorf("%q, tag %s: %t", one.patterns, one.tag, got)
		}
	}
	if _, err := matcher([]string{"["}); !errors.Is(err, path.ErrBadPattern) {
		t.Errorf("a wrong pattern: %v", err)
	}
}
