package manifest_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

const gitHead = "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: \"1\"}\nplatforms: [linux/amd64]\n"

// TestGitRepositories: both forms, default names, and each problem with its place.
func TestGitRepositories(t *testing.T) {
	t.Parallel()
	b, err := manifest.ParseBundle("a.yaml", []byte(gitHead+
		"git:\n- https://git.example/ops/app.git/\n- {url: \"https://git.example/lib\", name: base, refs: [main, \"v1.*\"], depth: 2}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Git[0]; got.RepositoryName() != "app" || got.Ref() != "https://git.example/ops/app.git" {
		t.Errorf("%+v: %s %s", got, got.RepositoryName(), got.Ref())
	}
	if got := b.Git[1]; got.RepositoryName() != "base" || !got.Wants("refs/tags/v1.2") || got.Wants("refs/tags/v2") {
		t.Errorf("%+v", got)
	}
	for text, want := range map[string]string{
		"https://me:token@git.example/a":                       "a.yaml:6:3",
		"ssh://git@git.example:22/a/b.git":                     "write https://git.example/a/b.git, and log in",
		"git@git.example:a/b.git":                              "a.yaml:6:3: git[0].url: is an address for SSH; write https://git.example/a/b.git",
		"https://git@git.example/a":                            "secrets never live in this file",
		"{url: \"https://git.example/a?x=y\"}":                 "no query",
		"{url: \"https://git.example/\"}":                      "it has no path",
		"{url: \"https://git.example/a\", name: ../b}":         "is not the name of a repository",
		"{url: \"https://git.example/a\", refs: [\"a b\"]}":    "is not the name of a branch or tag",
		"{url: \"https://git.example/a\", depth: -1}":          "is not a number of commits",
		"{url: \"https://git.example/a\", depth: 2147483648}":  "is not a number of commits",
		"{url: \"https://git.example/a\", group: x}":           "no group x",
		"https://git.example/a\n- https://git.example/b/A.git": "repository A is there twice",
	} {
		_, err := manifest.ParseBundle("a.yaml", []byte(gitHead+"git:\n- "+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "token") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestGitFits: which pins are those of a repository.
func TestGitFits(t *testing.T) {
	t.Parallel()
	pin := func(depth int, refs ...string) manifest.Pin {
		g := &manifest.LockedGit{Head: "refs/heads/main", Depth: depth}
		for _, name := range refs {
			g.Refs = append(g.Refs, manifest.LockedRef{Name: name})
		}
		return manifest.Pin{Git: g}
	}
	const main, one, two = "refs/heads/main", "refs/tags/v1", "refs/tags/v2"
	for _, c := range []struct {
		name string
		repo manifest.GitRepository
		pin  manifest.Pin
		want bool
	}{
		{"the default branch", manifest.GitRepository{}, pin(0, main), true},
		{"another depth", manifest.GitRepository{Depth: 1}, pin(0, main), false},
		{"names", manifest.GitRepository{Refs: []string{"main", "v*"}}, pin(0, main, one, two), true},
		{"a ref too many", manifest.GitRepository{Refs: []string{"main", "v1"}}, pin(0, main, one, two), false},
		{"a name without a ref", manifest.GitRepository{Refs: []string{"main", "x"}}, pin(0, main), false},
		{"no repository", manifest.GitRepository{}, manifest.Pin{}, false},
	} {
		if got := c.repo.Fits(c.pin); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestGitVariant: a variant replaces a repository by its name, and leaves one out.
func TestGitVariant(t *testing.T) {
	t.Parallel()
	b, err := manifest.ParseVariant("a.yaml", []byte(gitHead+
		"git:\n- https://git.example/app\n- https://git.example/lib\nvariants:\n  slim:\n    git: [{url: \"https://git.example/app\", depth: 1}]\n    without: {git: [lib]}\n"),
		nil, "slim", nil)
	if err != nil || len(b.Git) != 1 || b.Git[0].Depth != 1 {
		t.Errorf("%+v %v", b.Git, err)
	}
}

// TestGitLock: a lock of a repository is read back, and each fault of one found.
func TestGitLock(t *testing.T) {
	t.Parallel()
	const id = "1111111111111111111111111111111111111111"
	lock := func(kind, git string) error {
		_, err := manifest.ParseLock("l.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Lock\nmetadata: {name: a, version: \"1\"}\nmanifest: sha256:"+
			strings.Repeat("0", 64)+"\nitems:\n- {kind: "+kind+", ref: \"https://git.example/a\", name: a, digest: sha256:"+strings.Repeat("1", 64)+
			", size: 1, verified: upstream"+git+"}\n"))
		return err
	}
	if err := lock("git", ", git: {head: refs/heads/main, refs: [{name: refs/heads/main, id: "+id+"}]}"); err != nil {
		t.Error(err)
	}
	for _, c := range [][3]string{
		{"git", "", "has git"},
		{"file", ", git: {refs: [{name: refs/heads/main, id: " + id + "}]}", "nothing else has it"},
		{"git", ", git: {refs: [{name: main, id: " + id + "}]}", "is not the name of a ref"},
		{"git", ", git: {refs: [{name: refs/heads/main, id: 12}]}", "is not the name of an object"},
		{"git", ", git: {refs: [{name: refs/heads/main, id: " + strings.Repeat("0", 40) + "}]}", "is not the name of an object"},
		{"git", ", git: {refs: [{name: refs/meta/config, id: " + id + "}]}", "is not the name of a ref"},
		{"git", ", git: {head: refs/heads/x, refs: [{name: refs/heads/main, id: " + id + "}]}", "is none of the refs"},
	} {
		if err := lock(c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
