package gitpush_test

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/git/smart"
	"github.com/kkbundle/kkbundle/registry/gitpush"
	"github.com/kkbundle/kkbundle/web/logins"
)

// TestPush: with a login that only the server gets, past an answer that passes, and with large frames.
func TestPush(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	b := bundletest.NewBuilder(t)
	pack, index, document := gittest.Pack(t, r)
	b.Git("https://git.example/ops/deploy", "deploy", pack, index, document)
	from, err := bundle.Open(b.Bundle().Path)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	dir := t.TempDir()
	bare := gittest.Bare(t, dir, "deploy")
	busy := 1
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		user, password, _ := req.BasicAuth()
		switch {
		case user != "me" || password != "token":
			w.WriteHeader(http.StatusUnauthorized)
		case busy > 0:
			busy--
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			gittest.Backend(dir).ServeHTTP(w, req)
		}
	}))
	defer s.Close()
	o := gitpush.Options{Prefix: s.URL, Transport: http.DefaultTransport}
	if _, err := gitpush.Push(t.Context(), from, o); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a login: %v", err)
	}
	o.Login = logins.Login{User: "me", Password: "token"}
	done, err := gitpush.Push(t.Context(), from, o)
	if err != nil || len(done) != 1 || len(done[0].Refs) != 5 || done[0].Refs[0].State != smart.StateCreated {
		t.Fatalf("%+v %v", done, err)
	}
	gittest.Run(t, bare, "fsck", "--full", "--strict")
	if got, want := gittest.Run(t, bare, "show-ref"), gittest.Run(t, r.Dir, "show-ref"); got != want {
		t.Errorf("the server has\n%s\nwant\n%s", got, want)
	}
	o.Select = func(bundle.Item) bool { return false }
	if _, err := gitpush.Push(t.Context(), from, o); err == nil {
		t.Error("nothing was selected, and nothing said")
	}
	for _, bad := range []string{"gitea.site/x", "ssh://git@host/x", "https://me:secret@gitea.site/x", "https://h/?a=b"} {
		if _, err := gitpush.ParsePrefix(bad); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestPushGoesOn: a repository that a server refuses does not keep the next ones back, and each is named.
func TestPushGoesOn(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	dir := t.TempDir()
	b := bundletest.NewBuilder(t)
	for _, name := range []string{"first", "second", "third"} {
		pack, index, document := gittest.Pack(t, r)
		b.Git("https://git.example/"+name, name, pack, index, document)
		r.Commit("after " + name)
	}
	gittest.Bare(t, dir, "second")
	s := httptest.NewServer(gittest.Backend(dir))
	defer s.Close()
	from, err := bundle.Open(b.Bundle().Path)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	done, err := gitpush.Push(t.Context(), from, gitpush.Options{Prefix: s.URL, Transport: http.DefaultTransport})
	if len(done) != 1 || done[0].Name != "https://git.example/second" {
		t.Errorf("pushed %+v", done)
	}
	if err == nil || !strings.Contains(err.Error(), "/first.git: ") || !strings.Contains(err.Error(), "/third.git: ") {
		t.Errorf("got %v", err)
	}
}

// TestRefusedOnce: other commits on the server, and two repositories of one name, are no failures of the server.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	dir := t.TempDir()
	gittest.Bare(t, dir, "deploy")
	requests := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requests++
		gittest.Backend(dir).ServeHTTP(w, req)
	}))
	defer s.Close()
	push := func(names ...string) error {
		b := bundletest.NewBuilder(t)
		for _, name := range names {
			pack, index, document := gittest.Pack(t, r)
			b.Git("https://git.example/"+name, name, pack, index, document)
			r.Commit("after " + name)
		}
		from, err := bundle.Open(b.Bundle().Path)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		requests = 0
		_, err = gitpush.Push(t.Context(), from, gitpush.Options{Prefix: s.URL, Transport: http.DefaultTransport})
		return err
	}
	if err := push("deploy"); err != nil {
		t.Fatal(err)
	}
	r.Git("reset", "-q", "--hard", "HEAD~2")
	r.Commit("another")
	if _, ok := errors.AsType[*smart.RewrittenError](push("deploy")); !ok || requests != 1 {
		t.Errorf("rewritten: %v, %d requests", ok, requests)
	}
	if err := push("deploy", "Deploy"); err == nil || !strings.Contains(err.Error(), "would both be") || requests != 0 {
		t.Errorf("two of one name: %v, %d requests", err, requests)
	}
}

// carrying returns a bundle with a Git repository.
func carrying(t *testing.T) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	pack, index, document := gittest.Pack(t, gittest.Sample(t))
	b.Git("https://git.example/ops/deploy", "deploy", pack, index, document)
	from, err := bundle.Open(b.Bundle().Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := from.Close(); err != nil {
			t.Error(err)
		}
	})
	return from
}

// TestConnectionRemedies: a server that cannot be trusted, reached or asked in this scheme.
func TestConnectionRemedies(t *testing.T) {
	t.Parallel()
	from := carrying(t)
	nothing := http.NotFoundHandler()
	tls, plain, gone := httptest.NewTLSServer(nothing), httptest.NewServer(nothing), httptest.NewServer(nothing)
	defer tls.Close()
	defer plain.Close()
	gone.Close()
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, c := range []struct{ prefix, remedy string }{
		{tls.URL, "--ca FILE"},
		{strings.Replace(plain.URL, "http:", "https:", 1), "--plain-http"},
		{strings.Replace(tls.URL, "https:", "http:", 1), "https://"},
		{gone.URL, "check the address"},
	} {
		_, err := gitpush.Push(t.Context(), from, gitpush.Options{Prefix: c.prefix, Transport: http.DefaultTransport})
		if got := hintOf(err); !strings.Contains(got, c.remedy) {
			t.Errorf("%s: the remedy is %q, of %v", c.prefix, got, err)
		}
	}
}

func hintOf(err error) string {
	hinted, ok := errors.AsType[interface {
		error
		Hint() string
	}](err)
	if !ok {
		return ""
	}
	return hinted.Hint()
}

// TestRemedies: a server that answers no is quoted, and what to do fits its reason. The second answer is that of Gitea
// to the push of a repository that it has not (its routers/web/repo/githttp.go at 005de1782029).
func TestRemedies(t *testing.T) {
	t.Parallel()
	from := carrying(t)
	for _, c := range []struct {
		status       int
		says, remedy string
	}{
		{http.StatusNotFound, "Repository not found", "create the repository, and its organization,"},
		{http.StatusForbidden, "Push to create is not enabled for organizations.", "create the repository"},
		{http.StatusForbidden, "mirror repository is read-only", "the server gives the reason"},
		{http.StatusForbidden, "Forbidden", "check the rights of both"},
		{http.StatusUnauthorized, "Unauthorized", "put user and password"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, c.says, c.status) }))
		_, err := gitpush.Push(t.Context(), from, gitpush.Options{Prefix: s.URL, Transport: http.DefaultTransport})
		s.Close()
		if !strings.Contains(hintOf(err), c.remedy) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d %s: got %v", c.status, c.says, err)
		}
	}
}
