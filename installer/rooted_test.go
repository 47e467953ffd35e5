//go:build linux

package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A rooted host is a directory of this machine that stands for a machine's root directory. Commands are real ones, with
// every path among their arguments moved below that directory; those that would change this machine itself (systemctl,
// sysctl, kubeadm and so on) are scripts that succeed and are recorded, or functions of the test.
type rooted struct {
	name, root, stubs string

	mu       sync.Mutex
	ran      []string
	commands map[string]func(ctx context.Context, cmd host.Cmd) error
}

func newRooted(t *testing.T, name string) *rooted {
	t.Helper()
	h := &rooted{name: name, root: t.TempDir(), stubs: t.TempDir(), commands: map[string]func(context.Context, host.Cmd) error{}}
	for _, dir := range []string{"etc", "proc", "tmp", "var/lib"} {
		h.mkdir(t, dir)
	}
	h.put(t, "/etc/hosts", "127.0.0.1 localhost\n")
	h.put(t, "/proc/1/comm", "systemd\n")
	h.put(t, "/proc/swaps", "Filename Type Size Used Priority\n")
	h.put(t, "/proc/mounts", "")
	h.put(t, "/etc/resolv.conf", "nameserver 10.0.0.1\n")
	for _, stub := range []string{"systemctl", "sysctl", "modprobe", "ip", "nft", "swapoff", "swapon", "chown", "systemd-sysusers", "userdel", "pkill", "umount", "kubeadm", "kubectl", "hostname", "journalctl", "iptables", "ip6tables"} {
		h.stub(t, stub, "exit 0")
	}
	h.stub(t, "pgrep", "exit 1")       // this machine's processes are not the host's
	if uid := os.Geteuid(); uid != 0 { // the stub of chown changes nothing, so files of the host's root belong to the user of the test
		stat, err := exec.LookPath("stat")
		if err != nil {
			t.Fatal(err)
		}
		h.stub(t, "stat", fmt.Sprintf(`%s "$@" | sed 's/ %d$/ 0/'`, stat, uid))
	}
	h.stub(t, "ctr", "echo 'io.containerd.grpc.v1                     cri                      -              ok        '")
	h.commands[host.HelperPath] = h.helper
	t.Cleanup(func() { wantExecutablePrograms(t, h) })
	return h
}

// stub makes a command of the host do something else.
func (h *rooted) stub(t *testing.T, name, script string) {
	t.Helper()
	writeProgram(t, filepath.Join(h.stubs, name), "#!/bin/sh\n"+script+"\n")
}

// writeProgram writes what will be run. No child is started meanwhile: it would have the file open for writing until it becomes
// another program, and what somebody writes to cannot be run.
func writeProgram(t *testing.T, name, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (h *rooted) String() string { return h.name }
func (h *rooted) Close() error   { return nil }

func (h *rooted) mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(h.root, dir), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (h *rooted) put(t *testing.T, path, content string) {
	t.Helper()
	h.mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(filepath.Join(h.root, path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tree lists everything on the host: names, modes, contents and where links lead.
func (h *rooted) tree(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(h.root, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v\n", strings.TrimPrefix(name, h.root), info.Mode())
		if !info.Mode().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(name)
		fmt.Fprintf(&b, "  %q\n", data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// content returns a file of the host, "" if there is none.
func (h *rooted) content(path string) string {
	data, _ := os.ReadFile(filepath.Join(h.root, path))
	return string(data)
}

// Run runs a command below the root.
func (h *rooted) Run(ctx context.Context, cmd host.Cmd) error {
	h.mu.Lock()
	h.ran = append(h.ran, strings.Join(cmd.Args, " "))
	special := h.commands[cmd.Args[0]]
	h.mu.Unlock()
	if special != nil {
		return special(ctx, cmd)
	}
	var stderr bytes.Buffer
	command, stdin, err := h.start(ctx, cmd, &stderr)
	if err != nil {
		return err
	}
	go func() { // not waited for: a Host does not wait for a blocked Read of Stdin
		if cmd.Stdin != nil {
			_, _ = io.Copy(stdin, cmd.Stdin)
		}
		_ = stdin.Close()
	}()
	err = command.Wait()
	if cmd.Stderr != nil {
		_, _ = cmd.Stderr.Write(stderr.Bytes())
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return &host.ExitError{Host: h.name, Args: cmd.Args, Code: exit.ExitCode(), Stderr: stderr.String()}
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", h.name, cmd.Args[0], errors.Join(context.Cause(ctx), err))
	}
	return nil
}

// start starts a real command. When ctx is done, it ends with all that it has started.
func (h *rooted) start(ctx context.Context, cmd host.Cmd, stderr io.Writer) (*exec.Cmd, io.WriteCloser, error) {
	args := slices.Clone(cmd.Args)
	for i, a := range args {
		if strings.HasPrefix(a, "/") {
			args[i] = h.root + a
		}
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	if path := filepath.Join(h.stubs, args[0]); !strings.Contains(args[0], "/") {
		if _, err := os.Stat(path); err == nil {
			command.Path, command.Err = path, nil
		}
	}
	command.Env = []string{"PATH=" + h.stubs + ":" + os.Getenv("PATH"), "LC_ALL=C"}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.Stdout, command.Stderr = &movedBack{h.root, cmd.Stdout}, stderr
	stdin, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if errors.Is(err, syscall.ETXTBSY) { // this process placed the program, and a child of another test has it open for a moment
		return h.start(ctx, cmd, stderr)
	}
	return command, stdin, err
}

// movedBack takes the root out of what commands print.
type movedBack struct {
	root string
	to   io.Writer
}

func (m *movedBack) Write(p []byte) (int, error) {
	if m.to == nil {
		return len(p), nil
	}
	_, err := m.to.Write(bytes.ReplaceAll(p, []byte(m.root), nil))
	return len(p), err
}

// helper is kkbundle-node, in this process.
func (h *rooted) helper(ctx context.Context, cmd host.Cmd) error {
	var err error
	switch cmd.Args[1] {
	case "facts":
		err = h.facts(ctx, cmd)
	case "receive":
		err = node.Receive(ctx, h.root, cmd.Stdin, cmd.Stdout)
	case "dial":
		err = node.DialStdio(ctx, "tcp", cmd.Args[2], cmd.Stdin, cmd.Stdout)
	case "listen":
		err = node.ServeListen(ctx, cmd.Stdin, cmd.Stdout)
	case "reach":
		err = node.ServeReach(ctx, cmd.Stdin, cmd.Stdout)
	case "version":
	default:
		err = fmt.Errorf("kkbundle-node %s is not known to this test", cmd.Args[1])
	}
	if err != nil {
		return &host.ExitError{Host: h.name, Args: cmd.Args, Code: 1, Stderr: err.Error()}
	}
	return nil
}

// facts answers a probe about a few things. All facts would be about this machine.
func (h *rooted) facts(ctx context.Context, cmd host.Cmd) error {
	probe, err := node.ReadProbe(cmd.Stdin)
	if err != nil || !probe.Only {
		return errors.Join(errors.New("this test knows no other facts"), err)
	}
	run := func(ctx context.Context, args ...string) ([]byte, error) {
		var out bytes.Buffer
		err := h.Run(ctx, host.Cmd{Args: args, Stdout: &out})
		return out.Bytes(), err
	}
	facts, err := node.CollectBelow(ctx, h.root, run, probe)
	return errors.Join(err, json.NewEncoder(cmd.Stdout).Encode(facts))
}

// answer makes a command be answered by the test.
func (h *rooted) answer(name string, do func(ctx context.Context, cmd host.Cmd) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commands[name] = do
}

// said returns the recorded commands that begin with a word, "" for all, and forgets them.
func (h *rooted) said(word string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []string
	for _, line := range h.ran {
		if word == "" || strings.HasPrefix(line, word+" ") {
			list = append(list, line)
		}
	}
	h.ran = nil
	return list
}

// A site is hosts without a network.
type site struct {
	hosts   map[string]*rooted
	options engine.Options
	events  []task.Event
	mu      sync.Mutex
}

// newSite makes hosts cp1, node1 and so on; cp1 also has the registry.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{hosts: map[string]*rooted{}}
	text := "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n"
	var workers []string
	for i, name := range names {
		s.hosts[name] = newRooted(t, name)
		text += fmt.Sprintf("  %s: {address: 10.0.0.%d}\n", name, 3+i)
		if i > 0 {
			workers = append(workers, name)
		}
	}
	text += "groups:\n  kube_control_plane: [" + names[0] + "]\n  image_registry: [" + names[0] + "]\n"
	if len(workers) > 0 {
		text += "  kube_worker: [" + strings.Join(workers, ", ") + "]\n"
	}
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s.options = engine.Options{
		Cluster:   tasktest.Cluster(t, ""),
		Inventory: inv,
		WorkDir:   filepath.Join(t.TempDir(), "work"),
		Progress: func(e task.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, e)
		},
	}
	return s
}

// run prepares a run whose targets are connected.
func (s *site) run(t *testing.T, b *bundle.Reader) *engine.Run {
	t.Helper()
	s.options.Bundle = b
	r, err := engine.New(s.options, engine.Changing(), planner())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Dir.Close() })
	r.Journal = &engine.Journal{Mask: r.Mask, Now: r.Now, Writer: io.Discard}
	for _, h := range s.options.Inventory.Hosts() {
		r.Sessions[h.Name] = new(engine.Session)
		r.Hosts = append(r.Hosts, &task.Host{
			Host: h, IP: h.InternalIPv4, Arch: "amd64", Site: r.Site,
			Conn: &engine.Journaled{Host: s.hosts[h.Name], Watch: r.Watch(h.Name), Journal: r.Journal},
		})
	}
	return r
}

// states returns what became of tasks, as "task@host state".
func (s *site) states() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, e := range s.events {
		if e.Task != "" && e.State != task.Started && e.State != task.Progress {
			list = append(list, e.Task+"@"+e.Host+" "+string(e.State))
		}
	}
	slices.Sort(list)
	s.events = nil
	return list
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }
