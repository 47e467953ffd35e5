package host_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
	"github.com/kkbundle/kkbundle/internal/pace"
)

// secret returns a Secret that is always the same.
func secret(value string) host.Secret {
	return func(context.Context) (string, error) { return value, nil }
}

// patience is for hosts that work: a busy machine fails nothing, and the test's own time limit ends what hangs.
const patience = time.Hour

func dial(t *testing.T, o host.SSHOptions) host.Host {
	t.Helper()
	o.Patience = cmp.Or(o.Patience, patience)
	h, err := host.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

func TestLocalHost(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h, err := host.Local(t.Context(), host.LocalOptions{Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	suite(t, h)
}

func TestServerHost(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the server inside the process has its rights")
	}
	s := hosttest.Start(t, hosttest.Options{})
	suite(t, dial(t, host.SSHOptions{
		Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
		KnownHosts: []string{s.KnownHosts},
	}))
}

func TestNoisyLogin(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := hosttest.Start(t, hosttest.Options{Noise: "Welcome!\nLast login: never\n\x1b[31mno newline at the end"})
	suite(t, dial(t, host.SSHOptions{
		Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
		KnownHosts: []string{s.KnownHosts},
	}))
}

func TestSSHDHost(t *testing.T) {
	t.Parallel()
	s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Config: "Banner " + writeTemp(t, "AUTHORIZED USE ONLY\n")})
	base := host.SSHOptions{
		Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile},
		KnownHosts: []string{s.KnownHosts},
	}
	for _, c := range []struct{ name, user, sudo string }{
		{"root", "root", ""},
		{"sudo without password", hosttest.UserSudoFree, ""},
		{"sudo with password", hosttest.UserSudoPassword, hosttest.Password},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := base
			o.User = c.user
			if c.sudo != "" {
				o.SudoPassword = secret(c.sudo)
			}
			suite(t, dial(t, o))
		})
	}
}

// TestEnvironment: variables of the login, such as proxies of /etc/environment, do not reach commands.
func TestEnvironment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, name := range []string{"http_proxy", "HTTPS_PROXY", "KUBECONFIG", "TZ"} {
		t.Setenv(name, "x")
	}
	h, err := host.Local(t.Context(), host.LocalOptions{Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := h.Run(t.Context(), host.Cmd{Args: []string{"env"}, Env: []string{"MINE=1"}, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(out.String())
	slices.Sort(got)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if want := []string{
		"HOME=/root", "LC_ALL=C", "MINE=1",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}; !slices.Equal(got, want) {
		t.Errorf("the environment is %q, want %q", got, want)
	}
}

// The shells that hosts have as login shells, and sudo with a terminal of its own.
func TestSSHDShells(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"/bin/bash", busybox(t), "/usr/bin/fish", "/usr/bin/tcsh", "/usr/bin/zsh"} {
		t.Run(filepath.Base(shell), func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat(shell); err != nil {
				t.Skipf("needs %s", shell)
			}
			s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Shell: shell, Sudoers: "Defaults use_pty"})
			h := dial(t, host.SSHOptions{
				Address: s.Host, Port: s.Port, User: hosttest.UserSudoPassword, SudoPassword: secret(hosttest.Password),
				Keys: []string{s.KeyFile}, KnownHosts: []string{s.KnownHosts},
			})
			testArguments(t, h)
			testStreams(t, h)
			testCancel(t, h)
		})
	}
}

// busybox returns a path of busybox under which it is a shell.
func busybox(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kktest") //nolint:usetesting // other users must get in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/busybox", dir+"/ash"); err != nil {
		t.Fatal(err)
	}
	return dir + "/ash"
}

func writeTemp(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// suite is what every Host must do.
func suite(t *testing.T, h host.Host) {
	t.Helper()
	t.Run("arguments", func(t *testing.T) { testArguments(t, h) })
	t.Run("streams", func(t *testing.T) { testStreams(t, h) })
	t.Run("codes", func(t *testing.T) { testCodes(t, h) })
	t.Run("environment", func(t *testing.T) { testEnvironment(t, h) })
	t.Run("cancel", func(t *testing.T) { testCancel(t, h) })
	t.Run("files", func(t *testing.T) { testFiles(t, h) })
	t.Run("stream", func(t *testing.T) { testStream(t, h) })
	t.Run("many", func(t *testing.T) { testMany(t, h) })
}

func testArguments(t *testing.T, h host.Host) {
	var all []byte
	for b := 1; b < 256; b++ {
		all = append(all, byte(b))
	}
	for _, arg := range []string{
		string(all), "", " ", "'", `\`, `\'`, `'\''`, "$HOME", "`id`", "a\nb", "!!", "*", "~", "-n", "--", "héllo",
		"%s%n",
	} {
		got, err := host.Output(t.Context(), h, "printf", "%s|", arg, "end")
		if err != nil {
			t.Fatalf("%q: %v", arg, err)
		}
		if want := arg + "|end|"; string(got) != want {
			t.Errorf("argument %q arrived as %q", arg, got)
		}
	}
	for _, args := range [][]string{nil, {""}, {"a=b"}, {"-x"}, {"echo", "a\x00b"}} {
		if err := h.Run(t.Context(), host.Cmd{Args: args}); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func testStreams(t *testing.T, h host.Host) {
	id, err := host.Output(t.Context(), h, "id", "-u")
	if err != nil || string(id) != "0\n" {
		t.Fatalf("id -u: %q, %v", id, err)
	}
	data := make([]byte, 3<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err = h.Run(t.Context(), host.Cmd{
		Args: []string{"sh", "-c", "tee /dev/stderr"}, Stdin: bytes.NewReader(data), Stdout: &out, Stderr: &errs,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), data) || !bytes.Equal(errs.Bytes(), data) {
		t.Errorf("%d bytes came back as %d and %d", len(data), out.Len(), errs.Len())
	}
	// A password given to sudo would be the first line that the command reads.
	if got, err := host.Output(t.Context(), h, "cat"); err != nil || len(got) != 0 {
		t.Errorf("a command without input read %q, %v", got, err)
	}
	// A reader that never ends must not keep Run from returning.
	blocked, unblock := io.Pipe()
	defer func() { _ = unblock.Close() }()
	if err := h.Run(t.Context(), host.Cmd{Args: []string{"true"}, Stdin: blocked}); err != nil {
		t.Error(err)
	}
	if err := h.Run(t.Context(), host.Cmd{Args: []string{"yes"}, Stdout: failing{}}); err == nil ||
		!strings.Contains(err.Error(), "enough") {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("enough") }

func testCodes(t *testing.T, h host.Host) {
	err := h.Run(t.Context(),
		host.Cmd{Args: []string{"sh", "-c", "head -c 10000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 7"}})
	var exit *host.ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || exit.Host != h.String() {
		t.Fatalf("got %v, want an ExitError with code 7", err)
	}
	if len(exit.Stderr) > 4<<10 || !strings.HasSuffix(exit.Stderr, "the end\n") {
		t.Errorf("standard error: %d bytes, ending in %q", len(exit.Stderr), exit.Stderr[len(exit.Stderr)-20:])
	}
	err = h.Run(t.Context(), host.Cmd{Args: []string{"sh", "-c", "kill -KILL $$"}})
	if !errors.As(err, &exit) || exit.Code != 137 {
		t.Errorf("killed: %v, want exit code 137", err)
	}
	err = h.Run(t.Context(), host.Cmd{Args: []string{"no-such-program"}})
	if !errors.As(err, &exit) || exit.Code != 127 || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("no such program: %v", err)
	}
}

func testEnvironment(t *testing.T, h host.Host) {
	var out bytes.Buffer
	err := h.Run(t.Context(), host.Cmd{
		Args: []string{"sh", "-c", `printf '%s\n' "$LC_ALL" "$A" "$B"; printf '%s' "$PATH"`},
		Env:  []string{"A=x y", "B='\n'", "B=last"}, Stdout: &out,
	})
	want := "C\nx y\nlast\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if err != nil || out.String() != want {
		t.Errorf("got %q, %v, want %q", out.String(), err, want)
	}
	if err := h.Run(t.Context(), host.Cmd{Args: []string{"true"}, Env: []string{"=x"}}); err == nil {
		t.Error("an entry without a name: no error")
	}
}

// testCancel checks that a cancelled command is gone with all that it has started. If it is not, the test does not
// end: it would run for longer than tests may.
func testCancel(t *testing.T, h host.Host) {
	ctx, cancel := context.WithCancel(t.Context())
	pids := make(chan string, 1)
	ended := make(chan error, 1)
	r, w := io.Pipe()
	go func() {
		line := make([]byte, 100)
		n, _ := r.Read(line)
		pids <- string(line[:n])
		_, _ = io.Copy(io.Discard, r)
	}()
	go func() {
		ended <- h.Run(ctx, host.Cmd{Args: []string{
			"sh", "-c",
			`sleep 3600 & echo $$ $!; trap '' TERM; wait; wait; sleep 3600`,
		}, Stdout: w})
	}()
	fields := strings.Fields(<-pids)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	for _, pid := range fields {
		if _, err := strconv.Atoi(pid); err != nil {
			t.Fatalf("%q is no process id", pid)
		}
		for alive(pid) { // it was killed; the kernel takes its time on a busy machine
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// alive tells whether a process runs; one that only waits to be collected does not.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func testFiles(t *testing.T, h host.Host) {
	dir := t.TempDir()
	name := dir + "/a b/'c'/file.conf"
	content := []byte("secret\x00\n\xff")
	step := func(what string, mode fs.FileMode, data []byte, want bool) {
		t.Helper()
		changed, err := host.WriteFile(t.Context(), h, name, mode, data)
		if err != nil || changed != want {
			t.Fatalf("%s: changed %v, %v, want %v", what, changed, err, want)
		}
		got, err := host.ReadFile(t.Context(), h, name, 1<<20)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%s: %q, %v", what, got, err)
		}
		info, err := os.Lstat(name)
		if err != nil || info.Mode() != mode {
			t.Fatalf("%s: mode %v, %v, want %v", what, info.Mode(), err, mode)
		}
	}
	step("new", 0o600, content, true)
	info, _ := os.Stat(name)
	step("again", 0o600, content, false)
	if again, _ := os.Stat(name); !os.SameFile(info, again) || !info.ModTime().Equal(again.ModTime()) {
		t.Error("a file that was right was written again")
	}
	step("other mode", 0o644, content, true)
	step("empty", 0o644, nil, true)
	large := bytes.Repeat([]byte("large\n"), 100000)
	step("large", 0o755, large, true)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", name); err != nil {
		t.Fatal(err)
	}
	step("instead of a link", 0o600, content, true)
	testEdit(t, h, name)
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if _, err := host.WriteFile(t.Context(), h, dir, 0o600, nil); err == nil ||
		!strings.Contains(err.Error(), "is a directory") {
		t.Errorf("write to a directory: %v", err)
	}
	if _, err := host.ReadFile(t.Context(), h, dir+"/none", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read what is not there: %v", err)
	}
	if _, err := host.ReadFile(t.Context(), h, name, 3); err == nil ||
		!strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("read too much: %v", err)
	}
	if _, err := host.WriteFile(t.Context(), h, "relative", 0o600, nil); err == nil {
		t.Error("a relative path: no error")
	}
}

// testEdit gives a file other content, by its name and by a link to it.
func testEdit(t *testing.T, h host.Host, name string) {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(name, link), os.Chmod(name, 0o640), os.Chown(name, 1, 2)); err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{name, link} {
		if changed, err := host.EditFile(t.Context(), h, by, []byte(by)); err != nil || !changed {
			t.Fatalf("edit: changed %v, %v", changed, err)
		}
		if changed, err := host.EditFile(t.Context(), h, by, []byte(by)); err != nil || changed {
			t.Fatalf("edit again: changed %v, %v", changed, err)
		}
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(name)
		owner, _ := info.Sys().(*syscall.Stat_t)
		if err != nil || string(data) != by || info.Mode() != 0o640 || owner.Uid != 1 || owner.Gid != 2 {
			t.Errorf("edited: %q, %v of %d:%d, %v", data, info.Mode(), owner.Uid, owner.Gid, err)
		}
	}
	if to, err := os.Readlink(link); err != nil || to != name {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	fresh := filepath.Join(t.TempDir(), "fresh")
	if _, err := host.EditFile(t.Context(), h, fresh, nil); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode() != 0o644 {
		t.Errorf("a new file: %v", err)
	}
}

func testStream(t *testing.T, h host.Host) {
	s := host.Open(t.Context(), h, "cat")
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		if _, err := io.WriteString(s, line); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(line))
		if _, err := io.ReadFull(s, got); err != nil || string(got) != line {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(s); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// A command that does not read must not block who writes.
	s = host.Open(t.Context(), h, "sh", "-c", "echo no thanks >&2; exit 3")
	var err error
	for err == nil {
		_, err = s.Write(make([]byte, 1<<20))
	}
	var exit *host.ExitError
	if _, err := s.Read(make([]byte, 1)); !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("read: %v", err)
	}
	if err := s.Close(); !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("close: %v", err)
	}
	s = host.Open(t.Context(), h, "sleep", "300")
	if err := s.Close(); err != nil {
		t.Errorf("a command that had to be ended: %v", err)
	}
}

// testMany starts more commands at once than a connection has room for.
func testMany(t *testing.T, h host.Host) {
	const commands = 20
	var streams []*host.Stream
	for range commands {
		s := host.Open(t.Context(), h, "cat")
		if _, err := io.WriteString(s, "x"); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for _, s := range streams {
		if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := host.Output(t.Context(), h, "echo", "one more"); err != nil ||
		gocmp.Diff("one more\n", string(out)) != "" {
		t.Errorf("%q, %v", out, err)
	}
	for _, s := range streams {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Commands' input goes at the pace that hosts share, unchanged.
func TestPace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the server inside the process has its rights")
	}
	const perSecond, size, hosts = 1 << 20, 300 << 10, 2
	limit := pace.PerSecond(perSecond)
	s := hosttest.Start(t, hosttest.Options{})
	content := make([]byte, size)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	var all sync.WaitGroup
	for range hosts {
		h := dial(t, host.SSHOptions{
			Address: s.Host, Port: s.Port, Keys: []string{s.KeyFile}, KnownHosts: []string{s.KnownHosts}, Pace: limit,
		})
		all.Go(func() {
			var out bytes.Buffer
			err := h.Run(t.Context(), host.Cmd{Args: []string{"cat"}, Stdin: bytes.NewReader(content), Stdout: &out})
			if err != nil || !bytes.Equal(out.Bytes(), content) {
				t.Errorf("%d bytes came back, %v", out.Len(), err)
			}
		})
	}
	all.Wait()
	// A tenth of a second's bytes come at once.
	if took, least := time.Since(begin), 480*time.Millisecond; took < least {
		t.Errorf("it took %s, want %s at least", took, least)
	}
}
