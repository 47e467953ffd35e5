package build_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/build"
)

// leaveCommand is the argument with which the test binary tries to leave a finder process.
const leaveCommand = "try-to-leave"

// tryToLeave prints the things that it could do: the arguments are a readable directory, a file outside it, and an address where
// something listens.
func tryToLeave(args []string) {
	readable, outside, address := args[0], args[1], args[2]
	missing := build.Isolate(readable)
	attempts := map[string]func() error{
		"read inside":    func() error { _, err := os.ReadFile(filepath.Join(readable, "inside")); return err },
		"read outside":   func() error { _, err := os.ReadFile(outside); return err },
		"read by a link": func() error { _, err := os.ReadFile(filepath.Join(readable, "link")); return err },
		"write outside":  func() error { return os.WriteFile(outside+".new", []byte("x"), 0o600) },
		"write inside":   func() error { return os.WriteFile(filepath.Join(readable, "new"), []byte("x"), 0o600) },
		"remove":         func() error { return os.Remove(outside) },
		"connect":        func() error { return dial("tcp", address) },
		"datagram":       func() error { return dial("udp", address) },
		"run a program":  func() error { return exec.Command("/bin/true").Run() }, //nolint:noctx // it must fail
	}
	var done []string
	for what, try := range attempts {
		if try() == nil {
			done = append(done, what)
		}
	}
	slices.Sort(done)
	_, _ = os.Stdout.WriteString(strings.Join(done, ", ") + "; missing: " + strings.Join(missing, ", "))
}

func dial(network, address string) error {
	c, err := net.Dial(network, address) //nolint:noctx // it must fail
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("x"))
	return err
}

// TestFinderCannotLeave: code that ran in a finder process, by whatever fault of a template engine, reads its own directory only. A
// kernel that lacks a barrier is named by the process; the others hold.
func TestFinderCannotLeave(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	readable, outside := filepath.Join(dir, "readable"), filepath.Join(dir, "outside")
	if err := os.Mkdir(readable, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{outside, filepath.Join(readable, "inside")} {
		if err := os.WriteFile(file, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(readable, "link")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, separate := range map[string]func(*exec.Cmd){"namespace": build.SeparateNetwork, "no namespace": func(*exec.Cmd) {}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], leaveCommand, readable, outside, listener.Addr().String())
		separate(cmd)
		out, err := cmd.Output()
		if cmd.Process == nil {
			t.Logf("%s: this system refuses: %v", name, err)
			continue
		}
		done, missing, _ := strings.Cut(string(out), "; missing: ")
		if missing = strings.TrimPrefix(missing, "network namespace"); missing != "" {
			t.Skipf("this kernel lacks %s", missing)
		}
		if err != nil || done != "read inside" {
			t.Errorf("with %s, it could %s; %v", name, done, err)
		}
	}
}
