package harbor_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/registry/harbor"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
)

func client(t *testing.T, s *harbortest.Server) *harbor.Client {
	t.Helper()
	auth, err := s.Keychain().Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	login, err := auth.Authorization()
	if err != nil {
		t.Fatal(err)
	}
	return &harbor.Client{URL: s.URL(), Username: login.Username, Password: login.Password}
}

func TestProjects(t *testing.T) {
	t.Parallel()
	s := harbortest.Start(t, harbortest.Options{})
	c, name := client(t, s), harbortest.Unique("p.example_5000")
	if info, err := c.Info(t.Context()); err != nil || info.Version == "" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Project(t.Context(), name); !errors.Is(err, harbor.ErrAbsent) {
		t.Errorf("before: %v", err)
	}
	if err := c.CreateProject(t.Context(), harbor.Project{Name: name, Public: true, Quota: 5 << 20}); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Project(t.Context(), name); err != nil || !p.Public || p.Proxy {
		t.Errorf("%+v, %v", p, err)
	}
	if hard, used, err := c.Quota(t.Context(), name); err != nil || hard != 5<<20 || used != 0 {
		t.Errorf("quota %d, %d used, %v", hard, used, err)
	}
	if err := c.CreateProject(t.Context(), harbor.Project{Name: name}); !errors.Is(err, harbor.ErrExists) {
		t.Errorf("again: %v", err)
	}
	unlimited := harbortest.Unique("q")
	if err := c.CreateProject(t.Context(), harbor.Project{Name: unlimited, Quota: -5}); err != nil {
		t.Fatal(err)
	}
	if hard, _, err := c.Quota(t.Context(), unlimited); err != nil || hard != -1 {
		t.Errorf("quota %d, %v", hard, err)
	}
}

// TestRepositories lists what was pushed into a project, also by a user who is no administrator.
func TestRepositories(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{Projects: []harbortest.Project{{Name: "base", Members: []string{harbortest.User}}}})
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"base/app:1", "base/app:2", "base/team/side:1"} {
		ref, err := name.ParseReference(s.Host+"/"+tag, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, img, remote.WithAuthFromKeychain(s.Keychain())); err != nil {
			t.Fatal(err)
		}
	}
	c := client(t, s)
	c.Username, c.Password = harbortest.User, harbortest.UserPassword
	got, err := c.Repositories(t.Context(), "base")
	if want := []string{"base/app", "base/team/side"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := c.Repositories(t.Context(), "none"); err == nil {
		t.Error("an absent project has repositories")
	}
}

// TestNumberAsName: a project called 42 is not the one with that number.
func TestNumberAsName(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{Projects: []harbortest.Project{{Name: "42"}}})
	if p, err := client(t, s).Project(t.Context(), "42"); err != nil || p.Name != "42" {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestRefusedLogin has a user that no other test has: Harbor refuses a user's right password, too, for 1.5 s after a
// wrong one.
func TestRefusedLogin(t *testing.T) {
	t.Parallel()
	s := harbortest.Start(t, harbortest.Options{})
	c := client(t, s)
	c.Username, c.Password = "refused", "Wrong-Horse-1"
	_, err := c.GrantPull(t.Context(), "r", []string{"p"})
	e, ok := errors.AsType[*harbor.Error](err)
	if !ok || e.Status != http.StatusUnauthorized || strings.Contains(err.Error(), c.Password) {
		t.Errorf("got %v", err)
	}
}

// TestInfoElsewhere: what other registries and web servers answer is not taken for Harbor.
func TestInfoElsewhere(t *testing.T) {
	t.Parallel()
	for what, answer := range map[string]http.HandlerFunc{
		"404": http.NotFound,
		"html": func(w http.ResponseWriter,
			_ *http.Request,
		) {
			_, _ = w.Write([]byte("<html>hello</html>"))
		},
		"other json": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status":"ok"}`)) },
		"json array": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[]`)) },
		"login page": func(w http.ResponseWriter,
			r *http.Request,
		) {
			http.Redirect(w, r, "/login", http.StatusFound)
		},
		"wrong types": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"auth_mode":7}`)) },
		"not for us":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"bad gateway": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"empty":       func(http.ResponseWriter, *http.Request) {},
		"cut in the middle": func(w http.ResponseWriter,
			_ *http.Request,
		) {
			_, _ = w.Write([]byte(`{"auth_mode":"db`))
		},
	} {
		srv := httptest.NewServer(answer)
		_, err := (&harbor.Client{URL: srv.URL}).Info(t.Context())
		srv.Close()
		if !errors.Is(err, harbor.ErrNotHarbor) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestAnswersAreBounded: Harbor's words fit on a line, and an endless answer is refused.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"errors":[{"code":"BAD","message":"a\u001b[31m\n` + strings.Repeat("x", 9000) +
				`"}]}`))
			return
		}
		for range 100 {
			_, _ = w.Write([]byte(strings.Repeat(" ", 1<<20)))
		}
	}))
	defer srv.Close()
	c := &harbor.Client{URL: srv.URL}
	if err := c.CreateProject(t.Context(), harbor.Project{Name: "p"}); err == nil || len(err.Error()) > 700 ||
		strings.ContainsAny(err.Error(), "\n\x1b") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Project(t.Context(), "p"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v", err)
	}
}

func TestCheckRepository(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"docker.io/library/nginx": true, "registry.lab_5000/a": true, "k8s-gcr/x": true, "1.2.3.4_5000/a": true,
		"xn--bcher.example/a": false, "a__b/c": false, "nginx": false, "a/" + strings.Repeat("b", 253): true, "a/" +
			strings.Repeat("b", 254): false,
	} {
		if err := harbor.CheckRepository(name); (err == nil) != ok {
			t.Errorf("%.40s: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{
		"hosts": true, "a-b.c_d": true, "Hosts": false, "a+b": false, "": false,
		"a--b": false,
	} {
		if err := harbor.CheckRobot(name); (err == nil) != ok {
			t.Errorf("robot %q: %v", name, err)
		}
	}
}
