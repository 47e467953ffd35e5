package fetch_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/manifest"
)

// gitServer serves the directory above a repository by git http-backend, through a handler around it.
func gitServer(t *testing.T, r *gittest.Repo, around func(http.Handler) http.Handler) string {
	t.Helper()
	s := httptest.NewServer(around(gittest.Backend(filepath.Dir(r.Dir))))
	t.Cleanup(s.Close)
	return s.URL + "/" + filepath.Base(r.Dir) + "/.git"
}

func asItIs(h http.Handler) http.Handler { return h }

func gitManifest(r manifest.GitRepository) *manifest.Bundle {
	return &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: []string{"linux/amd64"},
		Git: []manifest.GitRepository{r},
	}
}

// TestGitRepository: refs are pinned; the lock fits, is kept, and gives the same bytes from an empty cache, after the
// branch has moved on, too.
func TestGitRepository(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	address := gitServer(t, r, asItIs)
	b := gitManifest(manifest.GitRepository{URL: address, Name: "sample", Refs: []string{"main", "v2*"}})
	store := newStore(t)
	l, err := fetch.Resolve(t.Context(), b, options(store))
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.ParseLock("lock.yaml", text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := l.Covers(b); err != nil {
		t.Error(err)
	}
	pin := l.Items[0]
	want := manifest.LockedGit{Head: "refs/heads/main", Refs: []manifest.LockedRef{
		{Name: "refs/heads/main", ID: r.Git("rev-parse", "main")},
		{Name: "refs/tags/v2", ID: r.Git("rev-parse", "v2")},
		{Name: "refs/tags/v2.0.0", ID: r.Git("rev-parse", "v2.0.0")},
	}}
	if d := cmp.Diff(&want, pin.Git); d != "" || pin.Name != "sample" || pin.Kind != manifest.ItemGit {
		t.Errorf("%s\n%+v", d, pin)
	}
	r.Write("new", "x")
	r.Commit("after the lock")
	o := options(store)
	o.Keep = l
	again, err := fetch.Resolve(t.Context(), b, o)
	if err != nil || again.Items[0].Digest != pin.Digest {
		t.Errorf("kept: %v %v", again, err)
	}
	for _, s := range []fetch.Store{store, newStore(t)} {
		items, err := fetch.All(t.Context(), l, options(s))
		if err != nil || items[0].Descriptor.Digest != pin.Digest {
			t.Fatalf("%v %v", items, err)
		}
		content(t, s, pin.Digest)
	}
	moved, err := fetch.Resolve(t.Context(), b, options(store))
	if err != nil || moved.Items[0].Git.Refs[0].ID != r.Git("rev-parse", "main") {
		t.Errorf("anew: %v %v", moved, err)
	}
	b.Git[0].Refs = append(b.Git[0].Refs, "release")
	if err := l.Covers(b); err == nil {
		t.Error("the lock fits a manifest with another ref")
	}
}

// TestGitRefs: the default is the default branch; what no ref matches is named with its place by the caller.
func TestGitRefs(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	address := gitServer(t, r, asItIs)
	l, err := fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: address, Depth: 1}), options(newStore(t)))
	if err != nil || len(l.Items[0].Git.Refs) != 1 || l.Items[0].Git.Refs[0].Name != "refs/heads/main" {
		t.Fatalf("%v %v", l, err)
	}
	_, err = fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: address, Refs: []string{"main", "nope*"}}),
		options(newStore(t)))
	wantError(t, err, "no branch or tag nope*", "refs/heads/main")
}

// TestGitRefsThatAreNotCarried: what a pattern means and cannot be carried is left out, whoever made it upstream. What
// the manifest names is an error.
func TestGitRefsThatAreNotCarried(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	r.Git("tag", "key", "HEAD:README.md")
	r.Git("tag", "-a", "-m", "of a file", "key-2", "HEAD:README.md")
	r.Git("update-ref", "refs/heads/x\u009b31m", "main")
	r.Git("update-ref", "refs/heads/team/-wip", "main")
	r.Git("update-ref", "refs/heads/a./b", "main")
	address := gitServer(t, r, asItIs)
	b := gitManifest(manifest.GitRepository{URL: address, Name: "sample", Refs: []string{"*"}})
	l, err := fetch.Resolve(t.Context(), b, options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if l, err = manifest.ParseLock("lock.yaml", text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var names []string
	for _, ref := range l.Items[0].Git.Refs {
		names = append(names, ref.Name)
	}
	want := []string{
		"refs/heads/a./b", "refs/heads/main", "refs/heads/release", "refs/heads/team/-wip",
		"refs/tags/v1.0.0", "refs/tags/v2", "refs/tags/v2.0.0",
	}
	if d := cmp.Diff(names, want); d != "" {
		t.Errorf("refs (-got +want):\n%s", d)
	}
	if _, err := fetch.All(t.Context(), l, options(newStore(t))); err != nil {
		t.Errorf("from the lock: %v", err)
	}
	_, err = fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: address, Name: "sample", Refs: []string{"main", "key"}}),
		options(newStore(t)))
	wantError(t, err, "refs/tags/key", "leads to a blob")
	_, err = fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: address, Name: "sample", Refs: []string{"key*"}}),
		options(newStore(t)))
	wantError(t, err, "refs/tags/key, refs/tags/key-2 leads to no commit")
}

// TestGitRewritten: a commit of the lock that is gone is named with its ref and the remedy.
func TestGitRewritten(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	r.Write("a", "1")
	r.Commit("first")
	address := gitServer(t, r, asItIs)
	l, err := fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: address}), options(newStore(t)))
	if err != nil {
		t.Fatal(err)
	}
	r.Git("commit", "-q", "--amend", "-m", "rewritten")
	r.Git("reflog", "expire", "--expire=now", "--all")
	r.Git("gc", "-q", "--prune=now")
	_, err = fetch.All(t.Context(), l, options(newStore(t)))
	wantError(t, err, "refs/heads/main moved from "+l.Items[0].Git.Refs[0].ID, "kkbundle lock --update")
}

// TestGitLogin: the login of netrc is used, and its absence explained without the address's secrets.
func TestGitLogin(t *testing.T) {
	r := gittest.New(t)
	r.Write("a", "1")
	r.Commit("first")
	address := gitServer(t, r, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if user, password, _ := req.BasicAuth(); user != "me" || password != "token" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, req)
		})
	})
	b := gitManifest(manifest.GitRepository{URL: address})
	netrc := filepath.Join(t.TempDir(), "netrc")
	t.Setenv("NETRC", netrc)
	_, err := fetch.Resolve(t.Context(), b, options(newStore(t)))
	wantError(t, err, "requires a login", "netrc")
	if err := os.WriteFile(netrc, []byte("machine 127.0.0.1 login me password token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch.Resolve(t.Context(), b, options(newStore(t))); err != nil {
		t.Error(err)
	}
}

// TestGitOddServer: garbage is refused at once, and an answer that is cut off is asked for again.
func TestGitOddServer(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	cuts := 0
	address := gitServer(t, r, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if cuts++; strings.HasSuffix(req.URL.Path, "/git-upload-pack") && cuts < 4 {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, req)
				w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
				_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
				return
			}
			next.ServeHTTP(w, req)
		})
	})
	if _, err := fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: address}), options(newStore(t))); err != nil {
		t.Error(err)
	}
	asked := 0
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = w.Write([]byte("<html>hello"))
	}))
	defer page.Close()
	_, err := fetch.Resolve(t.Context(), gitManifest(manifest.GitRepository{URL: page.URL + "/x.git"}), options(newStore(t)))
	var failed *fetch.Errors
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "git clone takes") || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
