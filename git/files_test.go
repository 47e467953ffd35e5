package git_test

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/gittest"
)

// TestEachFile visits each content once, in the directories and with the names that are wanted.
func TestEachFile(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	r.Write("app.yaml", "one")
	r.Write("copy/app.yaml", "one")
	r.Write("deep/er/tool.yaml", "tool")
	r.Write("closed/secret.yaml", "closed")
	r.Write("chart/Chart.yaml", "a chart")
	r.Write("chart/values.yaml", "of a chart")
	r.Write("README.md", "no")
	r.Commit("one")
	r.Git("tag", "-a", "-m", "v1", "v1")
	r.Write("app.yaml", "two")
	r.Commit("two")
	repository := gittest.Canonical(t, received(t, r), git.Wanted{Refs: r.Refs(), Head: "refs/heads/main"}).Open(t)

	var have []string
	walk := git.Walk{
		Enter: func(dir string) bool { return path.Base(dir) != "closed" },
		Takes: func(names []string) bool { return !slices.Contains(names, "Chart.yaml") },
		Wants: func(name string) bool { return strings.HasSuffix(name, ".yaml") },
	}
	err := repository.EachFile(t.Context(), walk, func(f git.TreeFile) error {
		data, ok, err := repository.ReadFile(f, 4)
		have = append(have, f.Ref+" "+f.Path+" "+string(data))
		if !ok {
			t.Errorf("%s is too large", f.Path)
		}
		if _, small, err := repository.ReadFile(f, 2); small || err != nil {
			t.Errorf("%s is not too large, %v", f.Path, err)
		}
		return err
	})
	if want := []string{
		"refs/heads/main app.yaml two", "refs/heads/main copy/app.yaml one", "refs/heads/main deep/er/tool.yaml tool",
	}; err != nil || !slices.Equal(have, want) {
		t.Errorf("%q, %v", have, err)
	}

	stop := errors.New("enough")
	if err := repository.EachFile(t.Context(), walk, func(git.TreeFile) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of the caller: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err = repository.EachFile(ended, walk, func(git.TreeFile) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
