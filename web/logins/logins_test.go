package logins_test

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kkbundle/kkbundle/web/logins"
)

// machine has nothing but what a test gives it: files below the home directory, and helpers by the ends of their names.
func machine(t *testing.T, files, helpers map[string]string) {
	t.Helper()
	home, bin := t.TempDir(), t.TempDir()
	for _, key := range []string{"DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"} {
		t.Setenv(key, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	for path, text := range files {
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for helper, script := range helpers {
		if err := os.WriteFile(filepath.Join(bin, "docker-credential-"+helper), []byte("#!/bin/sh\n"+script+"\n"),
			0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// login returns user:password of an image's registry, and why a login could not be read.
func login(t *testing.T, k *logins.Keychain, image string) (string, error) {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	a, err := k.Resolve(ref.Context())
	if err != nil {
		return "", err
	}
	c, err := a.Authorization()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(c.Username+":"+c.Password+c.IdentityToken, ":"), logins.Unread(a)
}

func auth(user string) string {
	return `{"auth": "` + base64.StdEncoding.EncodeToString([]byte(user+":pw")) + `"}`
}

func TestKeychain(t *testing.T) {
	const docker, podman = ".docker/config.json", ".config/containers/auth.json"
	one := func(file, key string) map[string]string {
		return map[string]string{file: `{"auths": {"` + key + `": ` + auth("u") + `}}`}
	}
	spaces := `{"auths": {"r.site/team-a": ` + auth("a") + `, "r.site/team-a/deep/app": ` + auth("deep") +
		`, "r.site/team-b": ` + auth("b") + `}}`
	for what, c := range map[string]struct {
		files       map[string]string
		image, want string
	}{
		"host":         {one(docker, "r.site"), "r.site/app", "u:pw"},
		"another host": {one(docker, "r.site"), "r.site.example/app", ""},
		"old address":  {one(docker, "https://r.site/v1/"), "r.site/app", "u:pw"},
		"address":      {one(docker, "http://R.site/"), "r.site/app", "u:pw"},
		"podman":       {one(podman, "r.site"), "r.site/app", "u:pw"},
		"docker before podman": {map[string]string{
			docker: `{"auths": {"r.site": ` + auth("d") + `}}`,
			podman: `{"auths": {"r.site": ` + auth("p") + `}}`,
		}, "r.site/app", "d:pw"},
		"podman besides docker": {map[string]string{docker: `{}`, podman: `{"auths": {"r.site": ` + auth("p") +
			`}}`}, "r.site/app", "p:pw"},
		"Docker Hub":                  {one(docker, "https://index.docker.io/v1/"), "nginx", "u:pw"},
		"Docker Hub as podman has it": {one(podman, "docker.io/library"), "docker.io/library/nginx", "u:pw"},
		"path":                        {map[string]string{podman: spaces}, "r.site/team-a/app", "a:pw"},
		"longest path":                {map[string]string{podman: spaces}, "r.site/team-a/deep/app", "deep:pw"},
		"other path":                  {map[string]string{podman: spaces}, "r.site/team-b/app", "b:pw"},
		"path without a login":        {map[string]string{podman: spaces}, "r.site/team-ab/app", ""},
		"without padding": {
			map[string]string{docker: `{"auths": {"r.site": {"auth": "dTpw"}}}`},
			"r.site/app", "u:p",
		},
		"in clear": {
			map[string]string{docker: `{"auths": {"r.site": {"username": "u", "password": "p"}}}`},
			"r.site/app", "u:p",
		},
		"mark of an editor": {map[string]string{docker: "\xef\xbb\xbf" +
			`{"auths": {"r.site": {"username": "u", "password": "p"}}}`}, "r.site/app", "u:p"},
		"empty file": {map[string]string{docker: ""}, "r.site/app", ""},
		"helper": {
			map[string]string{docker: `{"credHelpers": {"r.site": "ok"}}`},
			"r.site/app",
			"r.site:s",
		},
		"helper of Docker Hub": {
			map[string]string{docker: `{"credsStore": "ok"}`},
			"nginx",
			"https://index.docker.io/v1/:s",
		},
		"helper without a login": {map[string]string{docker: `{"credsStore": "none", "auths": {"r.site": ` +
			auth("u") + `}}`}, "r.site/app", "u:pw"},
		"helper's empty entry": {
			map[string]string{docker: `{"credsStore": "none", "auths": {"r.site": {}}}`},
			"r.site/app", "",
		},
		"token of a helper": {map[string]string{docker: `{"credsStore": "token"}`}, "r.site/app", ":T"},
	} {
		t.Run(what, func(t *testing.T) {
			machine(t, c.files, map[string]string{
				"ok":    `read server; printf '{"Username": "%s", "Secret": "s"}' "$server"`,
				"none":  "echo credentials not found in native keychain; exit 1",
				"token": `echo '{"Username": "<token>", "Secret": "T"}'`,
			})
			got, unread := login(t, logins.New(nil), c.image)
			if got != c.want || unread != nil {
				t.Errorf("got %q, want %q; %v", got, c.want, unread)
			}
		})
	}
}

// TestHelpersThatDoNotWork: what a registry gives to everybody needs no helper, and whoever needs one learns what is
// wrong with it.
func TestHelpersThatDoNotWork(t *testing.T) {
	machine(t, map[string]string{".docker/config.json": `{"credsStore": "desktop", "credHelpers": {"broken.site": "broken", "r.site": "../../bin/sh"},
		"auths": {"kept.site": ` + auth("u") + `}}`}, map[string]string{"broken": "echo the vault is locked; exit 2"})
	k := logins.New(nil)
	for image, want := range map[string]string{
		"a.site/app": "docker-credential-desktop is not installed", "broken.site/app": "the vault is locked",
		"r.site/app": "no name of a credential helper",
	} {
		got, unread := login(t, k, image)
		if got != "" || unread == nil || !strings.Contains(unread.Error(), want) ||
			!strings.Contains(unread.Error(), "config.json (credsStore, credHelpers)") {
			t.Errorf("%s: %q, %v", image, got, unread)
		}
	}
	if got, unread := login(t, k, "kept.site/app"); got != "u:pw" || unread != nil {
		t.Errorf("the login in the file was not used: %q, %v", got, unread)
	}
}

// TestHelperOfOtherServers: a helper that fails for one server is asked for others, and for that one only once.
func TestHelperOfOtherServers(t *testing.T) {
	machine(t, map[string]string{".docker/config.json": `{"credsStore": "clouds"}`}, map[string]string{
		"clouds": `read -r server; echo "$server" >>"$HOME/asked"
case $server in lost.site) echo "no account" >&2; exit 1;; esac
echo '{"Username": "u", "Secret": "pw"}'`,
	})
	k := logins.New(nil)
	for range 2 {
		if got, unread := login(t, k, "lost.site/app"); got != "" || unread == nil {
			t.Errorf("lost.site: %q, %v", got, unread)
		}
	}
	if got, unread := login(t, k, "kept.site/app"); got != "u:pw" || unread != nil {
		t.Errorf("kept.site: %q, %v", got, unread)
	}
	asked, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), "asked"))
	if err != nil || string(asked) != "lost.site\nkept.site\n" {
		t.Errorf("asked for %q, %v", asked, err)
	}
}

// TestHelperWithAnAgent wants the login of a helper that leaves an agent behind, and never a login in an error.
func TestHelperWithAnAgent(t *testing.T) {
	machine(t, map[string]string{".docker/config.json": `{"credHelpers": {"agent.site": "agent", "failing.site": "failing"}}`}, map[string]string{
		"agent":   `sleep 5 & echo '{"Username":"u","Secret":"pw"}'`,
		"failing": `echo '{"Username":"u","Secret":"s3cret"}'; exit 1`,
	})
	k := logins.New(nil)
	if got, unread := login(t, k, "agent.site/app"); got != "u:pw" || unread != nil {
		t.Errorf("%q, %v", got, unread)
	}
	if got, unread := login(t, k, "failing.site/app"); got != "" || unread == nil ||
		strings.Contains(unread.Error(), "s3cret") {
		t.Errorf("%q, %v", got, unread)
	}
}

// TestFilesOutOfReach wants no error for files of logins that this user cannot have.
func TestFilesOutOfReach(t *testing.T) {
	machine(t, nil, nil)
	t.Setenv("HOME", os.DevNull)
	t.Setenv("DOCKER_CONFIG", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got, unread := login(t, logins.New(nil), "r.site/app"); got != "" || unread != nil {
		t.Errorf("%q, %v", got, unread)
	}
}

func TestBrokenFile(t *testing.T) {
	machine(t, map[string]string{".docker/config.json": `{"auths": {"r.site": {"password": "s3cret"`}, nil)
	if _, err := login(t, logins.New(nil), "r.site/app"); err == nil || !strings.Contains(err.Error(), "config.json") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
	if a := authn.Anonymous; logins.Unread(a) != nil {
		t.Error("nothing was to be read")
	}
}

func TestSettle(t *testing.T) {
	const settled = `Bearer realm="https://r.site/token-service",service="svc"`
	base, standIn := &url.URL{Scheme: "https", Host: "r.site", Path: "/v2/"},
		&url.URL{Scheme: "https", Host: "r.site", Path: "/token-service"}
	for what, c := range map[string]struct {
		values        []string
		want, service string
	}{
		"one": {
			[]string{`Bearer realm="https://auth.site/t?a=b,c",service="svc"`},
			settled,
			"https://auth.site/t?a=b,c",
		},
		"unquoted": {
			[]string{`Bearer realm=https://auth.site/t,service=svc`},
			settled,
			"https://auth.site/t",
		},
		"lower case": {
			[]string{`bearer Realm="https://auth.site/t", SERVICE = "svc"`},
			settled,
			"https://auth.site/t",
		},
		"joined": {
			[]string{`Basic realm="r, s", Bearer realm="https://auth.site/t",service="svc"`},
			settled, "https://auth.site/t",
		},
		"after others": {[]string{
			"Negotiate", `Basic realm="r"`,
			`Bearer realm="https://auth.site/t",service="svc"`,
		}, settled, "https://auth.site/t"},
		"trailing comma": {
			[]string{`Bearer realm="https://auth.site/t",service="svc",`},
			settled,
			"https://auth.site/t",
		},
		"relative":           {[]string{`Bearer realm="/t",service="svc"`}, settled, "https://r.site/t"},
		"password":           {[]string{"Negotiate, NTLM", `basic realm="say \"x\""`}, `Basic realm="say \"x\""`, ""},
		"nothing answerable": {[]string{"Negotiate"}, "Negotiate", ""},
		"no realm":           {[]string{"Bearer", "Negotiate"}, "Bearer", ""},
		"no web address":     {[]string{`Bearer realm="file:///etc/passwd"`}, `Bearer realm="file:///etc/passwd"`, ""},
	} {
		h := http.Header{"Www-Authenticate": c.values}
		service := logins.Settle(h, base, standIn)
		got := ""
		if service != nil {
			got = service.String()
		}
		if h.Get("WWW-Authenticate") != c.want || got != c.service {
			t.Errorf("%s: %q, service %q", what, h.Values("WWW-Authenticate"), got)
		}
	}
}

// FuzzSettle wants a challenge to lead to the stand-in or to be left as it is.
func FuzzSettle(f *testing.F) {
	f.Add(`Bearer realm="https://auth.example/token",service="x"`)
	f.Add(`Basic realm="x", Negotiate`)
	f.Add(`bearer scope="a",realm="http://[::1"`)
	f.Fuzz(func(t *testing.T, challenge string) {
		h := http.Header{"Www-Authenticate": []string{challenge}}
		service := logins.Settle(h, &url.URL{Scheme: "https", Host: "r.example"},
			&url.URL{Scheme: "https", Host: "r.example", Path: "/stand-in"})
		if got := h.Get("WWW-Authenticate"); service != nil &&
			!strings.Contains(got, `realm="https://r.example/stand-in"`) {
			t.Errorf("%q leads elsewhere: %q", challenge, got)
		} else if service == nil && got != challenge && !strings.HasPrefix(got, "Basic") {
			t.Errorf("%q became %q", challenge, got)
		}
	})
}
