package smart_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/git/smart"
)

// served starts git http-backend over the directory above the repository.
func served(t *testing.T, dir string) string {
	t.Helper()
	s := httptest.NewServer(gittest.Backend(dir))
	t.Cleanup(s.Close)
	return s.URL
}

func remote(t *testing.T, address string, change func(*http.Request)) *smart.Remote {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return &smart.Remote{Address: u, Do: func(r *http.Request) (*http.Response, error) {
		change(r)
		return http.DefaultClient.Do(r)
	}}
}

func unchanged(*http.Request) {}

func turn() error { return nil }

// repository fetches everything from an address, and opens it.
func repository(t *testing.T, from *smart.Remote, depth int) *git.Repository {
	t.Helper()
	a, err := from.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := git.Wanted{Refs: a.Refs, Head: a.Head, Depth: depth}
	var ids []git.ID
	for _, r := range a.Refs {
		ids = append(ids, r.ID)
	}
	answer, err := from.Fetch(t.Context(), a, ids, depth)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	return opened(t, answer, want)
}

// TestFetch: from git http-backend, by both versions of the protocol, with and without a depth.
func TestFetch(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	address := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	old := func(r *http.Request) { r.Header.Del("Git-Protocol") }
	for _, change := range []func(*http.Request){unchanged, old} {
		for _, depth := range []int{0, 1} {
			repo := repository(t, remote(t, address, change), depth)
			if repo.Head != "refs/heads/main" || len(repo.Refs) != 5 {
				t.Errorf("head %s, %d refs", repo.Head, len(repo.Refs))
			}
			if shallow := len(repo.Shallow()) > 0; shallow != (depth > 0) {
				t.Errorf("depth %d: shallow is %v", depth, shallow)
			}
		}
	}
}

// handler serves one repository as NAME.git.
func handler(t *testing.T, repo *git.Repository, versions map[string]bool) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, r *http.Request, f func() error) {
		versions[r.Header.Get("Git-Protocol")] = true
		if err := f(); err != nil {
			var no *smart.RefusedError
			if !errors.As(err, &no) {
				t.Errorf("%s: %v", r.URL, err)
			}
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	}
	mux.HandleFunc("/x.git/"+smart.RefsPath, func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func() error { return smart.Advertise(w, r, repo) })
	})
	mux.HandleFunc("/x.git/"+smart.UploadPath, func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func() error { return smart.Upload(r.Context(), w, r, repo, turn) })
	})
	return mux
}

// TestServe: git clones, lists and fetches, by both versions of the protocol.
func TestServe(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	upstream := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	repo := repository(t, remote(t, upstream, unchanged), 0)
	// A clone of an earlier state, which fetches the rest.
	earlier := filepath.Join(t.TempDir(), "earlier")
	gittest.Run(t, r.Dir, "clone", "-q", "--no-local", "--single-branch", "--branch", "v1.0.0", r.Dir, earlier)
	for _, version := range []string{"2", "0"} {
		versions := map[string]bool{}
		s := httptest.NewServer(handler(t, repo, versions))
		address, dir := s.URL+"/x.git", t.TempDir()
		protocol := "protocol.version=" + version
		gittest.Run(t, dir, "-c", protocol, "clone", "-q", address, "whole")
		whole := filepath.Join(dir, "whole")
		gittest.Run(t, whole, "fsck", "--full", "--strict")
		if got, want := gittest.Run(t, whole, "rev-parse", "HEAD^{tree}"), gittest.Run(t, r.Dir, "rev-parse", "main^{tree}"); got != want {
			t.Errorf("version %s: another tree", version)
		}
		listed := gittest.Run(t, dir, "-c", protocol, "ls-remote", address)
		if want := gittest.Run(t, dir, "-c", protocol, "ls-remote", upstream); listed != want {
			t.Errorf("version %s: ls-remote says\n%s\nwant\n%s", version, listed, want)
		}
		gittest.Run(t, dir, "-c", protocol, "clone", "-q", "--depth", "1", "--branch", "main", address, "shallow")
		shallow := filepath.Join(dir, "shallow")
		if n := gittest.Run(t, shallow, "rev-list", "--count", "HEAD"); n != "1\n" {
			t.Errorf("version %s: %s commits in a shallow clone", version, n)
		}
		gittest.Run(t, shallow, "fsck", "--full", "--strict")
		gittest.Run(t, shallow, "-c", protocol, "fetch", "-q", "--depth", "5")
		gittest.Run(t, shallow, "fsck", "--full", "--strict")
		gittest.Run(t, shallow, "-c", protocol, "fetch", "-q", "--unshallow", "--tags")
		gittest.Run(t, shallow, "fsck", "--full", "--strict")
		if got, want := gittest.Run(t, shallow, "rev-list", "--count", "HEAD"), gittest.Run(t, r.Dir, "rev-list", "--count", "main"); got != want {
			t.Errorf("version %s: %s commits after unshallow, want %s", version, got, want)
		}
		more := filepath.Join(dir, "more")
		gittest.Run(t, dir, "clone", "-q", "--no-local", earlier, more)
		gittest.Run(t, more, "-c", protocol, "fetch", "-q", address, "main:refs/heads/now")
		gittest.Run(t, more, "fsck", "--full", "--strict")
		if out, err := gittest.Try(t, whole, "-c", protocol, "push", "origin", "HEAD:refs/heads/new"); err == nil ||
			!strings.Contains(out, "403") {
			t.Errorf("version %s: push: %v %s", version, err, out)
		}
		if version == "2" && !versions["version=2"] {
			t.Error("git did not speak version 2")
		}
		s.Close()
	}
}

// TestServeShallow: a repository of a limited depth can be cloned.
func TestServeShallow(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	upstream := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	s := httptest.NewServer(handler(t, repository(t, remote(t, upstream, unchanged), 2), map[string]bool{}))
	defer s.Close()
	for _, version := range []string{"2", "0"} {
		dir := t.TempDir()
		gittest.Run(t, dir, "-c", "protocol.version="+version, "clone", "-q", s.URL+"/x.git", "c")
		gittest.Run(t, filepath.Join(dir, "c"), "fsck", "--full", "--strict")
	}
}

// TestPush: to git http-backend, new and again, with an increment, and not over other commits.
func TestPush(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	above := filepath.Dir(r.Dir)
	upstream := served(t, above) + "/" + filepath.Base(r.Dir) + "/.git"
	target := t.TempDir()
	bare := gittest.Bare(t, target, "x")
	to := remote(t, served(t, target)+"/x.git", unchanged)
	push := func(force bool) ([]smart.Change, error) {
		p, err := to.PlanPush(t.Context(), repository(t, remote(t, upstream, unchanged), 0), force)
		if err != nil {
			return nil, err
		}
		return p.Changes, p.Run(t.Context())
	}
	state := func(list []smart.Change, ref string) smart.State {
		for _, c := range list {
			if c.Ref == ref {
				return c.State
			}
		}
		return ""
	}
	for _, want := range []smart.State{smart.StateCreated, smart.StateSame, smart.StateUpdated} {
		if want == smart.StateUpdated {
			r.Write("more", "x")
			r.Commit("more")
		}
		changes, err := push(false)
		if err != nil || state(changes, "refs/heads/main") != want {
			t.Fatalf("want %s, got %v %v", want, changes, err)
		}
		gittest.Run(t, bare, "fsck", "--full", "--strict")
		if got, want := gittest.Run(t, bare, "show-ref"), gittest.Run(t, r.Dir, "show-ref"); got != want {
			t.Fatalf("the server has\n%s\nwant\n%s", got, want)
		}
	}
	r.Git("commit", "-q", "--amend", "-m", "rewritten")
	_, err := push(false)
	var rewritten *smart.RewrittenError
	if !errors.As(err, &rewritten) || len(rewritten.Refs) != 1 || rewritten.Refs[0] != "refs/heads/main" {
		t.Fatalf("rewritten: %v", err)
	}
	if changes, err := push(true); err != nil || state(changes, "refs/heads/main") != smart.StateForced {
		t.Errorf("forced: %v %v", changes, err)
	}
	if got, want := gittest.Run(t, bare, "rev-parse", "main"), gittest.Run(t, r.Dir, "rev-parse", "main"); got != want {
		t.Errorf("main is %s, want %s", got, want)
	}
}

// TestPushRefused: the server's reason is told, once for all refs. The hook stands in for that of Gitea 1.26.0, which says
// on its error output, and so on the band of notes, why it declines, between two empty errors.
func TestPushRefused(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	upstream := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	target := t.TempDir()
	hook(t, gittest.Bare(t, target, "x"), "pre-receive",
		"printf 'Receiving: 10%%\\rReceiving: 100%%\\n\\nerror:\\nerror: Not allowed to push to protected branch main\\nerror:\\n' >&2; exit 1")
	p, err := remote(t, served(t, target)+"/x.git", unchanged).PlanPush(t.Context(),
		repository(t, remote(t, upstream, unchanged), 0), false)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "pre-receive hook declined: Not allowed to push to protected branch main") {
		t.Errorf("got %v", err)
	}
	if n := strings.Count(fmt.Sprint(err), "pre-receive"); n != 1 {
		t.Errorf("the reason is there %d times, for %d refs: %v", n, len(p.Changes), err)
	}
	if !strings.Contains(fmt.Sprint(err), "refs/heads/main, refs/heads/release, refs/tags/v1.0.0 and 2 more: pre-receive") {
		t.Errorf("the refs are not named: %v", err)
	}
}

// hook gives a repository a hook in sh.
func hook(t *testing.T, bare, name, script string) {
	t.Helper()
	file := filepath.Join(bare, "hooks", name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// TestPushDefaultBranch: the bundle's default branch becomes that of a repository without one. The hook stands in for
// Gitea, which takes the first branch of a push (its services/repository/push.go at 00da10b1a722), or main or master if
// it is among the first thirty refs (routers/private/hook_post_receive.go at 000ce5c20881).
func TestPushDefaultBranch(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	r.Git("branch", "another", "v1.0.0")
	upstream := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	target := t.TempDir()
	bare := gittest.Bare(t, target, "x")
	hook(t, bare, "post-receive", "read -r old new ref; git symbolic-ref HEAD $ref")
	p, err := remote(t, served(t, target)+"/x.git", unchanged).PlanPush(t.Context(),
		repository(t, remote(t, upstream, unchanged), 0), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if head := gittest.Run(t, bare, "symbolic-ref", "HEAD"); head != "refs/heads/main\n" {
		t.Errorf("the default branch is %s", head)
	}
	if p.Changes[0].Ref != "refs/heads/another" {
		t.Errorf("the changes are not sorted: %v", p.Changes)
	}
}

// TestPushWaits: a push ends when the server has ended, after its report. Soft Serve 0.12.2, whose part a flushing git
// http-backend plays, sends the report at once, and ends git and its hooks when the client leaves.
func TestPushWaits(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	upstream := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	target := t.TempDir()
	bare := gittest.Bare(t, target, "x")
	hook(t, bare, "post-receive", "cat >/dev/null; sleep 1; touch done")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		gittest.Backend(target).ServeHTTP(flushing{w}, req)
	}))
	defer s.Close()
	p, err := remote(t, s.URL+"/x.git", unchanged).PlanPush(t.Context(),
		repository(t, remote(t, upstream, unchanged), 0), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bare, "done")); err != nil {
		t.Errorf("the push ended before the server: %v", err)
	}
}

// A flushing writer sends everything at once.
type flushing struct{ http.ResponseWriter }

func (w flushing) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	return n, errors.Join(err, http.NewResponseController(w.ResponseWriter).Flush())
}

// TestRefusalSays: a server that answers no with a text has its text told. The answers are those of Gitea
// (its routers/web/repo/githttp.go at 005de1782029), of Soft Serve, and of a proxy with a page.
func TestRefusalSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, body, want string }{
		{"text/plain;charset=utf-8", "Push to create is not enabled for users.", "403 Forbidden: Push to create is not enabled for users."},
		{"text/plain; charset=utf-8", "Forbidden\n", "403 Forbidden"},
		{"text/plain; charset=utf-8", "403 Forbidden\n", "403 Forbidden"}, // Soft Serve's way
		{"text/plain", "first\nsecond\x1b[31m " + strings.Repeat("x", 4000), "403 Forbidden: first second"},
		{"text/html", "<html>no", "403 Forbidden"},
		{"", "", "403 Forbidden"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(c.body))
		}))
		_, err := remote(t, s.URL+"/x.git", unchanged).List(t.Context())
		if got := fmt.Sprint(err); !strings.HasPrefix(got, c.want) || len(got) > len(c.want)+300 || len(c.body) < 100 && got != c.want || strings.Contains(got, "\x1b") {
			t.Errorf("%.80q: got %.80q, want %q", c.body, got, c.want)
		}
		s.Close()
	}
}

// TestPushOfDepthRefused: git's servers take no shallow push unless they are told to, and the error says what to do.
func TestPushOfDepthRefused(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	upstream := served(t, filepath.Dir(r.Dir)) + "/" + filepath.Base(r.Dir) + "/.git"
	target := t.TempDir()
	gittest.Bare(t, target, "x")
	p, err := remote(t, served(t, target)+"/x.git", unchanged).PlanPush(t.Context(),
		repository(t, remote(t, upstream, unchanged), 1), false)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(t.Context())
	var said *smart.RemoteError
	if !errors.As(err, &said) || !strings.Contains(said.Hint(), "without depth") {
		t.Errorf("got %v", err)
	}
}

// TestOddServers: answers that are none of Git's are errors.
func TestOddServers(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"a page": "<html>", "nothing": "", "a length of letters": "zzzz", "a length that is too small": "0003",
		"cut short": "001e# service=git-upload-pack\n0000004f", "an error": "0015ERR access denied",
		"sha256": "000eversion 2\n001aobject-format=sha256\n0000",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = w.Write([]byte(body))
		}))
		if a, err := remote(t, s.URL+"/x.git", unchanged).List(t.Context()); err == nil {
			t.Errorf("%s: %+v", name, a)
		}
		s.Close()
	}
}

// FuzzUpload answers any request.
func FuzzUpload(f *testing.F) {
	f.Add([]byte("0014command=ls-refs\n0000"), true)
	f.Add([]byte("0012command=fetch\n0001000ddeepen 1\n0009done\n0000"), true)
	f.Add([]byte("0032want 1111111111111111111111111111111111111111\n00000009done\n"), false)
	repo := small(f)
	f.Fuzz(func(t *testing.T, body []byte, second bool) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
		if second {
			r.Header.Set("Git-Protocol", "version=2")
		}
		_ = smart.Upload(t.Context(), httptest.NewRecorder(), r, repo, turn)
	})
}

// small is a repository of one commit, made without a server.
func small(t testing.TB) *git.Repository {
	t.Helper()
	r := gittest.New(t)
	r.Write("a", "b")
	r.Commit("c")
	out, err := gittest.TryWith(t, r.Dir, nil, "pack-objects", "-q", "--all", "--stdout")
	if err != nil {
		t.Fatal(err, out)
	}
	id, _ := git.ParseID(r.Git("rev-parse", "HEAD"))
	return opened(t, strings.NewReader(out), git.Wanted{Refs: []git.Ref{{Name: "refs/heads/main", ID: id}}})
}

// opened opens the repository of a pack that a server sent.
func opened(t testing.TB, answer io.Reader, want git.Wanted) *git.Repository {
	t.Helper()
	return gittest.Canonical(t, gittest.Receive(t, answer), want).Open(t)
}
