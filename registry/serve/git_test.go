package serve_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// TestGit: git clones from a bundle and fetches from a newer one; the page tells how, and pushes are refused.
func TestGit(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	made := func() string {
		b := bundletest.NewBuilder(t)
		pack, index, document := gittest.Pack(t, r)
		b.Git("https://git.example/ops/deploy", "deploy", pack, index, document)
		b.Git("https://git.example/bad", "../bad", pack, index, document)
		b.Git("https://git.example/damaged", "damaged", pack, index, []byte("{}"))
		return b.Bundle().Path
	}
	before := start(t, serve.Options{}, made())
	dir := t.TempDir()
	gittest.Run(t, dir, "clone", "-q", before.URL+"/git/deploy.git", "c")
	clone := filepath.Join(dir, "c")
	gittest.Run(t, clone, "fsck", "--full", "--strict")
	gittest.Run(t, dir, "clone", "-q", "--depth", "1", before.URL+"/git/deploy", "shallow")
	r.Write("new", "x")
	commit := r.Commit("new")
	after := start(t, serve.Options{}, made())
	gittest.Run(t, clone, "pull", "-q", after.URL+"/git/deploy.git", "main")
	gittest.Run(t, clone, "fsck", "--full", "--strict")
	if got := strings.TrimSpace(gittest.Run(t, clone, "rev-parse", "HEAD")); got != commit {
		t.Errorf("HEAD is %s, want %s", got, commit)
	}
	if out, err := gittest.Try(t, clone, "push", after.URL+"/git/deploy.git", "main"); err == nil {
		t.Errorf("pushed: %s", out)
	}
	if page := string(after.ask(t, "GET", "/?kind=git").body); !strings.Contains(page, "git clone "+after.URL+"/git/deploy.git") {
		t.Errorf("the page does not tell how to clone:\n%s", page)
	}
	for path, status := range map[string]int{
		"/git/":                       http.StatusFound, // to the page
		"/git/deploy.git/HEAD":        http.StatusNotFound,
		"/git/deploy.git/info/refs":   http.StatusForbidden, // the dumb protocol
		"/git/other.git/info/refs":    http.StatusNotFound,
		"/git/..%2Fbad.git/info/refs": http.StatusNotFound,
		"/git/damaged.git/info/refs?service=git-upload-pack": http.StatusInternalServerError,
		"/git/deploy.git/info/refs?service=git-receive-pack": http.StatusForbidden,
	} {
		if got := after.ask(t, "GET", path); got.StatusCode != status {
			t.Errorf("%s: %s, want %d: %s", path, got.Status, status, got.body)
		}
	}
	for path, status := range map[string]int{
		"/git/deploy.git/git-upload-pack":  http.StatusForbidden, // an empty request
		"/git/deploy.git/git-receive-pack": http.StatusNotFound,
		"/files/":                          http.StatusMethodNotAllowed,
	} {
		if got := after.ask(t, "POST", path); got.StatusCode != status {
			t.Errorf("POST %s: %s, want %d", path, got.Status, status)
		}
	}
}

// TestGitBusy: while all packs are being made, refs and common commits are answered, and a pack is refused soon.
func TestGitBusy(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	b := bundletest.NewBuilder(t)
	pack, index, document := gittest.Pack(t, r)
	b.Git("https://git.example/ops/deploy", "deploy", pack, index, document)
	s := start(t, serve.Options{}, b.Bundle().Path)
	s.server.SetLimits(time.Second)
	s.server.TakePacks()
	want := fmt.Sprintf("0032want %s\n", r.Git("rev-parse", "main"))
	for _, c := range []struct {
		version, body string
		status        int
	}{
		{"version=2", "0014command=ls-refs\n0000", http.StatusOK},
		{"version=2", "0012command=fetch\n0001" + want + "0000", http.StatusOK},
		{"version=2", "0012command=fetch\n0001" + want + "0009done\n0000", http.StatusServiceUnavailable},
		{"version=0", want + "00000032have 1111111111111111111111111111111111111111\n0000", http.StatusOK},
		{"version=0", want + "00000009done\n", http.StatusServiceUnavailable},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/git/deploy.git/git-upload-pack",
			strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Git-Protocol", c.version)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if busy := resp.Header.Get("Retry-After") != ""; resp.StatusCode != c.status || busy != (c.status != http.StatusOK) {
			t.Errorf("%s %q: %s, want %d: %s", c.version, c.body, resp.Status, c.status, text)
		}
	}
}
