package e2e

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

const softServeArchive = "github.com/charmbracelet/soft-serve/releases/download/v0.12.2/soft-serve_0.12.2_Linux_x86_64.tar.gz"

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
