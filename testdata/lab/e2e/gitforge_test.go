package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// Git servers, which have to be given.
const (
	softServeArchive = "github.com/charmbracelet/soft-serve/releases/download/v0.12.2/soft-serve_0.12.2_Linux_x86_64.tar.gz"
	giteaProgram     = "dl.gitea.com/gitea/1.26.0/gitea-1.26.0-linux-amd64"
)

// A gitForge is a Git server that creates repositories at a push.
type gitForge struct {
	url            string // below which the repositories are
	writer, reader string // tokens; the second one may not push
}

// pushes are the steps of pushes of a bundle's repository, of two versions, to a server.
func (s *gitopsSite) pushes(t *testing.T, f *gitForge) []step {
	t.Helper()
	refs := func() string { return gittest.Run(t, s.repo.Dir, "show-ref") }
	first, firstRefs := s.makeVersion(t, "1.0.0"), refs()
	s.repo.Write("more", "x")
	s.repo.Commit("more")
	second, secondRefs := s.makeVersion(t, "1.1.0"), refs()
	same := func(t *testing.T, want string) {
		t.Helper()
		clone := filepath.Join(t.TempDir(), "clone")
		gittest.Run(t, "/", "clone", "-q", "--mirror", strings.Replace(f.url, "://", "://x:"+f.writer+"@", 1)+"/deploy.git", clone)
		gittest.Run(t, clone, "fsck", "--full", "--strict")
		if got := gittest.Run(t, clone, "show-ref"); got != want {
			t.Errorf("the server has\n%s\nwant\n%s", got, want)
		}
		if head := gittest.Run(t, clone, "symbolic-ref", "HEAD"); head != "refs/heads/main\n" {
			t.Errorf("the default branch is %s", head)
		}
	}
	push := func(t *testing.T, token, file string, args ...string) result {
		t.Helper()
		return s.pushGit(t, f.url, token, file, args...)
	}
	return []step{
		{"a wrong token is refused", func(t *testing.T) {
			if r := push(t, "wrong", first).must(t, 15); !strings.Contains(r.stderr, "401 Unauthorized") ||
				!strings.Contains(r.stderr, "\n  -> put user and password or token") {
				t.Errorf("it says\n%s", r.stderr)
			}
		}},
		{"the repository is created, with all refs and the default branch", func(t *testing.T) {
			if r := push(t, f.writer, first).must(t, 0); strings.Count(r.stdout, "created ") != 5 {
				t.Errorf("it says\n%s", r.stdout)
			}
			same(t, firstRefs)
		}},
		{"another user's token may not push", func(t *testing.T) { push(t, f.reader, second).must(t, 15) }},
		{"a second push has nothing to do", func(t *testing.T) {
			if r := push(t, f.writer, first).must(t, 0); strings.Count(r.stdout, "same ") != 5 {
				t.Errorf("it says\n%s", r.stdout)
			}
		}},
		{"a newer version moves the branch on", func(t *testing.T) {
			if r := push(t, f.writer, second).must(t, 0); strings.Count(r.stdout, "updated ") != 1 {
				t.Errorf("it says\n%s", r.stdout)
			}
			same(t, secondRefs)
		}},
		{"the older version does not move it back, unless it is forced to", func(t *testing.T) {
			push(t, f.writer, first).must(t, 15)
			same(t, secondRefs)
			push(t, f.writer, first, "--git-force").must(t, 0)
			same(t, firstRefs)
			push(t, f.writer, second).must(t, 0)
			same(t, secondRefs)
		}},
	}
}

// pushGit pushes the Git repositories of a bundle with a token.
func (s *gitopsSite) pushGit(t *testing.T, url, token, file string, args ...string) result {
	t.Helper()
	return s.with(t, token, append([]string{"push", "--git", url, "--username", "x", "--password-stdin", file}, args...)...)
}

// TestGitForge pushes a bundle's Git repository to a genuine Soft Serve, which creates it, and clones it from there.
// Soft Serve is given.
func TestGitForge(t *testing.T) {
	s, _ := newGitopsSite(t, softServeArchive)
	server := startSoftServe(t)
	steps(t, s.pushes(t, &gitForge{server.url, server.token(t, "admin"), server.token(t, "reader")}))
}

// TestGitea pushes a bundle to a genuine Gitea, its Git repository and the rest to Gitea's registry, which both refuse
// some, and builds a bundle from there. Gitea is given.
func TestGitea(t *testing.T) {
	s, _ := newGitopsSite(t, giteaProgram)
	g := startGitea(t)
	writer, reader := g.token(t, "writer"), g.token(t, "reader")
	list := s.pushes(t, &gitForge{g.url + "/site", writer, reader})
	second := filepath.Join(s.dir, "site-1.1.0.kkb")
	s.repo.Write("third", "x")
	s.repo.Commit("third")
	third := s.makeVersion(t, "1.2.0")
	refused := func(t *testing.T, below, says, remedy string) {
		t.Helper()
		if r := s.pushGit(t, g.url+below, writer, third).must(t, 15); !strings.Contains(r.stderr, says) || !strings.Contains(r.stderr, remedy) {
			t.Errorf("it says\n%s", r.stderr)
		}
	}
	steps(t, append(list, []step{
		{"a repository is not created where that is off", func(t *testing.T) {
			refused(t, "/writer", "403 Forbidden: Push to create is not enabled for users.\n", "  -> create the repository")
			g.api(t, http.MethodPost, "/admin/users/writer/repos", `{"name": "deploy"}`)
			s.pushGit(t, g.url+"/writer", writer, third).must(t, 0)
		}},
		{"an organization that is missing", func(t *testing.T) {
			refused(t, "/nobody", "404 Not Found", "  -> create the repository, and its organization,")
		}},
		{"a protected branch stays, with all other refs", func(t *testing.T) {
			g.api(t, http.MethodPost, "/repos/site/deploy/branch_protections", `{"rule_name": "main"}`)
			refused(t, "/site", "pre-receive hook declined: Not allowed to push to protected branch main\n", "")
			g.api(t, http.MethodDelete, "/repos/site/deploy/branch_protections/main", "")
		}},
		{"an archived repository stays", func(t *testing.T) {
			g.api(t, http.MethodPatch, "/repos/site/deploy", `{"archived": true}`)
			refused(t, "/site", "403 Forbidden: This repo is archived.", "  -> the server gives the reason")
			g.api(t, http.MethodPatch, "/repos/site/deploy", `{"archived": false}`)
		}},
		{"its registry takes the rest of the bundle", func(t *testing.T) { s.pushesToGitea(t, g, writer, reader, second) }},
		{"a bundle comes from it", func(t *testing.T) { s.buildsFromGitea(t, g, writer) }},
	}...))
}

// pushesToGitea pushes a bundle to Gitea's registry, and pulls from there.
func (s *gitopsSite) pushesToGitea(t *testing.T, g *gitea, writer, reader, bundle string) {
	t.Helper()
	address := g.host + "/site/mirror"
	push := func(token, user string) result {
		return s.with(t, token, "push", "--registry", address, "--username", user, "--password-stdin", bundle)
	}
	push("wrong", "writer").must(t, 15)
	push(reader, "reader").must(t, 15)
	push(writer, "writer").must(t, 0)
	if r := push(writer, "writer").must(t, 0); !strings.Contains(r.stderr+r.stdout, " 0 B sent") {
		t.Errorf("a second push sends something:\n%s%s", r.stdout, r.stderr)
	}
	pulled := filepath.Join(t.TempDir(), "pulled")
	run(t, exec.CommandContext(t.Context(), "skopeo", "copy", "-q", "--all", "--src-tls-verify=false", "--src-creds", "reader:"+reader,
		"docker://"+address+"/docker.io/lab/labapp:1", "dir:"+pulled)).must(t, 0)
	published := "oci://" + g.host + "/site/bundles/site"
	s.with(t, writer, "publish", bundle, published, "--username", "writer", "--password-stdin").must(t, 0)
	s.with(t, reader, "pull", published+":1.1.0", "-o", "pulled.kkb", "--username", "reader", "--password-stdin").must(t, 0)
	got, err := os.ReadFile(filepath.Join(s.dir, "pulled.kkb"))
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(bundle); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another bundle was pulled: %v", err)
	}
}

// buildsFromGitea builds a bundle of a private repository, a chart and its image, all of Gitea's.
func (s *gitopsSite) buildsFromGitea(t *testing.T, g *gitea, token string) {
	t.Helper()
	write(t, s.dir, map[string]string{
		".netrc": "machine 127.0.0.1 login writer password " + token + "\n",
		"from.yaml": strings.ReplaceAll(`apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: from, version: 1.0.0}
platforms: [linux/amd64]
charts: [{name: web, repo: "oci://HOST/site/mirror/charts.lab.example/stable", version: 1.0.0}]
git: [{url: "http://HOST/site/deploy.git", refs: ["*"], imagesListed: true}]
sources: [{host: docker.io, mirror: HOST/site/mirror/docker.io, plainHTTP: true, mirrorOnly: true}]
`, "HOST", g.host),
	})
	s.with(t, token, "login", g.host, "--username", "writer", "--password-stdin").must(t, 0)
	s.connected(t, "build", "-o", "from.kkb", "from.yaml").must(t, 0)
	shown := s.connected(t, "inspect", "from.kkb").must(t, 0).stdout
	for line := range strings.Lines(gittest.Run(t, s.repo.Dir, "show-ref", "--heads", "--tags")) {
		_, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.Contains(shown, ref) {
			t.Errorf("%s is missing:\n%s", ref, shown)
		}
	}
}

// A gitea is a running Gitea with an organization site, whose user writer may push and whose user reader may not.
type gitea struct{ program, config, host, url, admin string }

func startGitea(t *testing.T) *gitea {
	t.Helper()
	program, _, err := software.Given(giteaProgram)
	if err != nil {
		t.Fatal(err)
	}
	dir, host := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	g := &gitea{program: program, config: filepath.Join(dir, "app.ini"), host: host, url: "http://" + host}
	_, port, _ := strings.Cut(host, ":")
	write(t, dir, map[string]string{"app.ini": strings.NewReplacer("@DIR", dir, "@PORT", port).Replace(`RUN_USER = root
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = @DIR
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = @PORT
ROOT_URL = http://127.0.0.1:@PORT/
DISABLE_SSH = true
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
[security]
INSTALL_LOCK = true
[repository]
ENABLE_PUSH_CREATE_ORG = true
[log]
MODE = console
`)})
	background(t, dir, "/usr/bin", "env", "USER=root", "HOME="+dir, program, "web", "--config", g.config)
	eventually(t, "Gitea answers", func() bool {
		resp, err := http.Get(g.url + "/api/v1/version") //nolint:noctx // it answers at once, or is not there
		return err == nil && resp.Body.Close() == nil
	})
	for _, user := range []string{"admin", "writer", "reader"} {
		args := []string{"user", "create", "--username", user, "--random-password", "--email", user + "@example.com", "--must-change-password=false"}
		if user == "admin" {
			args = append(args, "--admin")
		}
		run(t, g.command(t, args...)).must(t, 0)
	}
	g.admin = g.token(t, "admin")
	g.api(t, http.MethodPost, "/orgs", `{"username": "site"}`)
	for user, right := range map[string]string{"writer": "write", "reader": "read"} {
		var team struct{ ID int }
		answer := g.api(t, http.MethodPost, "/orgs/site/teams", fmt.Sprintf(`{"name": "%[1]ss", "permission": %[2]q, "includes_all_repositories": true,
			"can_create_org_repo": %[3]t, "units_map": {"repo.code": %[2]q, "repo.packages": %[2]q}}`, user, right, right == "write"))
		if err := json.Unmarshal(answer, &team); err != nil {
			t.Fatal(err)
		}
		g.api(t, http.MethodPut, fmt.Sprintf("/teams/%d/members/%s", team.ID, user), "")
	}
	return g
}

// command runs a command of an administrator's.
func (g *gitea) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), g.program, append([]string{"admin", "--config", g.config}, args...)...)
	cmd.Env = append(os.Environ(), "USER=root")
	return cmd
}

// token makes a token of a user's with all rights that the user has.
func (g *gitea) token(t *testing.T, user string) string {
	t.Helper()
	out := run(t, g.command(t, "user", "generate-access-token", "--username", user, "--token-name", "kkbundle", "--scopes", "all", "--raw")).must(t, 0).stdout
	words := strings.Fields(out) // the token is behind a warning about root
	return words[len(words)-1]
}

// api asks Gitea's API as its administrator.
func (g *gitea) api(t *testing.T, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, g.url+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "token "+g.admin)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		t.Fatalf("%s %s: %s %v\n%s", method, path, resp.Status, err, answer)
	}
	return answer
}

// A softServe is a running server.
type softServe struct {
	dir, url string
	ssh      int // its port
}

func startSoftServe(t *testing.T) *softServe {
	t.Helper()
	ports := freePorts(t, 4)
	s := &softServe{dir: t.TempDir(), url: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), ssh: ports[1]}
	unpackGiven(t, softServeArchive, "soft", s.dir)
	for _, user := range []string{"admin", "reader"} {
		run(t, exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, user))).must(t, 0)
	}
	key := func(user string) string {
		text, err := os.ReadFile(filepath.Join(s.dir, user+".pub"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	background(t, s.dir, "/usr/bin", "env", "SOFT_SERVE_DATA_PATH="+filepath.Join(s.dir, "data"),
		"SOFT_SERVE_INITIAL_ADMIN_KEYS="+key("admin"), "SOFT_SERVE_HTTP_PUBLIC_URL="+s.url,
		fmt.Sprintf("SOFT_SERVE_HTTP_LISTEN_ADDR=127.0.0.1:%d", ports[0]),
		fmt.Sprintf("SOFT_SERVE_SSH_LISTEN_ADDR=127.0.0.1:%d", ports[1]),
		fmt.Sprintf("SOFT_SERVE_GIT_LISTEN_ADDR=127.0.0.1:%d", ports[2]),
		fmt.Sprintf("SOFT_SERVE_STATS_LISTEN_ADDR=127.0.0.1:%d", ports[3]), filepath.Join(s.dir, "soft"), "serve")
	eventually(t, "Soft Serve answers", func() bool { return run(t, s.as(t, "admin", "info")).code == 0 })
	run(t, s.as(t, "admin", "user", "create", "reader", "-k", "'"+key("reader")+"'")).must(t, 0)
	return s
}

// as runs a command of the server's, over SSH.
func (s *softServe) as(t *testing.T, user string, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), "ssh", append([]string{
		"-q", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes",
		"-i", filepath.Join(s.dir, user), "-p", fmt.Sprint(s.ssh), "127.0.0.1",
	}, args...)...)
}

// token makes a token for a user.
func (s *softServe) token(t *testing.T, user string) string {
	t.Helper()
	return strings.TrimSpace(run(t, s.as(t, user, "token", "create", "kkbundle")).must(t, 0).stdout)
}

// unpackGiven writes a program of a given archive into a directory.
func unpackGiven(t *testing.T, url, name, dir string) {
	t.Helper()
	file, _, err := software.Given(url)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for members := tar.NewReader(unzipped); ; {
		member, err := members.Next()
		if err != nil {
			t.Fatalf("%s has no program %s: %v", file, name, err)
		}
		if path.Base(member.Name) != name || member.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(members)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return
	}
}
