// Package gittest has repositories and servers of the real git, for tests.
package gittest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git"
)

// Run runs git in a directory and returns its output. A failure ends the test.
func Run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := Try(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs git in a directory, with settings of nobody, and returns both outputs.
func Try(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	return TryWith(t, dir, nil, args...)
}

// TryWith is Try with an input.
func TryWith(t testing.TB, dir string, input []byte, args ...string) (string, error) {
	t.Helper()
	return try(t, dir, input, nil, args)
}

func try(t testing.TB, dir string, input []byte, env, args []string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, bytes.NewReader(input), &out, &out
	cmd.Env = append(append(os.Environ(), environment()...), env...)
	err := cmd.Run()
	return out.String(), err
}

func environment() []string {
	return []string{
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.com",
		"NO_PROXY=127.0.0.1",
	}
}

// A Repo is a repository with a work tree, in which each commit is a minute after the one before.
type Repo struct {
	Dir  string
	t    testing.TB
	time int
}

// New makes a repository with branch main. The test is skipped on a machine without git.
func New(t testing.TB) *Repo {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	r := &Repo{Dir: t.TempDir(), t: t, time: 1767225600}
	Run(t, r.Dir, "init", "-q", "-b", "main")
	return r
}

// Git runs git in the repository, at the time of the last commit.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	now := fmt.Sprintf("@%d +0000", r.time)
	out, err := try(r.t, r.Dir, nil, []string{"GIT_COMMITTER_DATE=" + now, "GIT_AUTHOR_DATE=" + now}, args)
	if err != nil {
		r.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// Write writes a file of the work tree.
func (r *Repo) Write(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// Commit commits everything in the work tree, and returns the commit.
func (r *Repo) Commit(message string) string {
	r.t.Helper()
	r.time += 60
	r.Git("add", "-A")
	r.Git("commit", "-q", "--allow-empty", "-m", message)
	return r.Git("rev-parse", "HEAD")
}

// Sample makes a repository with what histories have: versions of large and small files, directories, a merge, a
// branch, tags of both kinds, a program, a symbolic link, an empty file.
func Sample(t testing.TB) *Repo {
	t.Helper()
	r := New(t)
	var large, in strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&large, "line %d of a long file, %d\n", i, i*i*31%9973)
	}
	file := func(mode, name, content string) {
		fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", mode, name, len(content), content)
	}
	commit := func(branch, message, more string) {
		r.time += 60
		who := fmt.Sprintf("A <a@example.com> %d +0000", r.time)
		fmt.Fprintf(&in, "commit refs/heads/%s\nauthor %s\ncommitter %s\ndata %d\n%s\n%s", branch, who, who, len(message),
			message, more)
	}
	commit("main", "first", "")
	file("100644", "README.md", "sample\n")
	file("100644", "deploy/app/values.yaml", large.String())
	file("100644", "deploy/app/empty", "")
	in.WriteString("reset refs/tags/v1.0.0\nfrom refs/heads/main\n")
	for i := range 60 {
		if i == 40 {
			in.WriteString("reset refs/heads/release\nfrom refs/heads/main\n")
		}
		commit("main", fmt.Sprintf("change %d", i), "")
		file("100644", "deploy/app/values.yaml", strings.Replace(large.String(), fmt.Sprintf("line %d of", i*50),
			fmt.Sprintf("changed %d", i), 1))
		file("100644", fmt.Sprintf("deploy/more/%d.yaml", i%7), fmt.Sprintf("kind: %d\n", i))
	}
	commit("release", "on a branch", "")
	file("100644", "RELEASE", "notes\n")
	commit("main", "merge", "merge refs/heads/release\n")
	file("100644", "RELEASE", "notes\n")
	commit("main", "a program and a link", "")
	file("100755", "run.sh", "#!/bin/sh\n")
	file("120000", "link", "README.md")
	if out, err := TryWith(t, r.Dir, []byte(in.String()), "fast-import", "--quiet"); err != nil {
		t.Fatal(err, out)
	}
	r.Git("reset", "-q", "--hard", "main")
	r.Git("tag", "-a", "-m", "two", "v2.0.0")
	r.Git("tag", "-a", "-m", "of a tag", "v2", "v2.0.0")
	return r
}

// Bare makes an empty repository for pushes in a directory, with the name NAME.git.
func Bare(t testing.TB, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name+".git")
	Run(t, dir, "init", "-q", "--bare", "-b", "main", path)
	Run(t, path, "config", "http.receivepack", "true")
	return path
}

// Backend serves the repositories below a directory over HTTP, as git http-backend does.
func Backend(dir string) http.Handler {
	path, err := exec.LookPath("git")
	if err != nil {
		return http.NotFoundHandler()
	}
	return &cgi.Handler{
		Path: path, Args: []string{"http-backend"}, Dir: "/", Stderr: io.Discard,
		Env:        append(environment(), "GIT_PROJECT_ROOT="+dir, "GIT_HTTP_EXPORT_ALL=1", "PATH="+os.Getenv("PATH")),
		InheritEnv: []string{"HOME"},
	}
}

// Pack returns the canonical pack of all refs of a repository, with its index and document.
func Pack(t testing.TB, r *Repo) (pack, index, document []byte) {
	t.Helper()
	p := Canonical(t, Receive(t, strings.NewReader(r.Packed())), git.Wanted{Head: "refs/heads/main", Refs: r.Refs()})
	return p.Pack, p.Index, p.Document
}

// Packed returns the pack that git makes of all refs.
func (r *Repo) Packed(args ...string) string {
	r.t.Helper()
	out, err := TryWith(r.t, r.Dir, nil, append([]string{"pack-objects", "-q", "--all", "--stdout"}, args...)...)
	if err != nil {
		r.t.Fatal(err, out)
	}
	return out
}

// Refs returns all refs.
func (r *Repo) Refs() []git.Ref {
	r.t.Helper()
	var list []git.Ref
	for line := range strings.Lines(r.Git("for-each-ref", "--format=%(objectname) %(refname)")) {
		text, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		id, ok := git.ParseID(text)
		if !ok {
			r.t.Fatal(line)
		}
		list = append(list, git.Ref{Name: name, ID: id})
	}
	return list
}

// Spool returns an empty file that is gone after the test.
func Spool(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Receive reads a pack.
func Receive(t testing.TB, pack io.Reader) *git.Received {
	t.Helper()
	p, err := git.Receive(t.Context(), pack, Spool(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A Packed is a canonical pack with its files, and what it was made of.
type Packed struct {
	Pack, Index, Document []byte
	Want                  git.Wanted
	Summary               *git.Summary
}

// Canonical makes the canonical pack.
func Canonical(t testing.TB, p *git.Received, want git.Wanted) Packed {
	t.Helper()
	var pack, index bytes.Buffer
	s, x, err := p.Canonical(t.Context(), &want, &pack)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteTo(&index); err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(git.NewDocument(&want, s))
	if err != nil {
		t.Fatal(err)
	}
	return Packed{pack.Bytes(), index.Bytes(), document, want, s}
}

// Open opens a canonical pack.
func (p Packed) Open(t testing.TB) *git.Repository {
	t.Helper()
	repo, err := git.Open(p.Document, bytes.NewReader(p.Pack), int64(len(p.Pack)), bytes.NewReader(p.Index),
		int64(len(p.Index)))
	if err != nil {
		t.Fatal(err)
	}
	return repo
}
