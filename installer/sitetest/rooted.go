//go:build linux

package sitetest

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

	"github.com/kkbundle/kkbundle/installer/node/transfer"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Rooted host is a directory of this machine that stands for a machine's root directory. Commands are real ones, with
// every path among their arguments moved below that directory; those that would change this machine itself (systemctl,
// sysctl, kubeadm and so on) are scripts that succeed and are recorded, or functions of the test.
type Rooted struct {
	Name, Root, Stubs string

	Mu       sync.Mutex
	Ran      []string
	Commands map[string]func(ctx context.Context, cmd host.Cmd) error
}

// NewRooted makes a host with the files that every machine has.
func NewRooted(t *testing.T, name string) *Rooted {
	t.Helper()
	h := &Rooted{
		Name: name, Root: t.TempDir(), Stubs: t.TempDir(),
		Commands: map[string]func(context.Context, host.Cmd) error{},
	}
	for _, dir := range []string{"etc", "proc", "tmp", "var/lib"} {
		h.Mkdir(t, dir)
	}
	h.Put(t, "/etc/hosts", "127.0.0.1 localhost\n")
	h.Put(t, "/proc/1/comm", "systemd\n")
	h.Put(t, "/proc/swaps", "Filename Type Size Used Priority\n")
	h.Put(t, "/proc/mounts", "")
	h.Put(t, "/etc/resolv.conf", "nameserver 10.0.0.1\n")
	for _, stub := range []string{
		"systemctl", "sysctl", "modprobe", "ip", "nft", "swapoff", "swapon", "chown",
		"systemd-sysusers", "userdel", "pkill", "umount", "kubeadm", "kubectl", "hostname", "journalctl", "iptables",
		"ip6tables",
	} {
		h.Stub(t, stub, "exit 0")
	}
	h.Stub(t, "pgrep", "exit 1") // this machine's processes are not the host's
	// the stub of chown changes nothing, so files of the host's root belong to the user of the test
	if uid := os.Geteuid(); uid != 0 {
		stat, err := exec.LookPath("stat")
		if err != nil {
			t.Fatal(err)
		}
		h.Stub(t, "stat", fmt.Sprintf(`%s "$@" | sed 's/ %d$/ 0/'`, stat, uid))
	}
	h.Stub(t, "ctr", "echo 'io.containerd.grpc.v1                     cri                      -              ok        '")
	h.Commands[host.HelperPath] = h.Helper
	t.Cleanup(func() { wantExecutablePrograms(t, h) })
	return h
}

// Stub makes a command of the host do something else.
func (h *Rooted) Stub(t *testing.T, name, script string) {
	t.Helper()
	WriteProgram(t, filepath.Join(h.Stubs, name), "#!/bin/sh\n"+script+"\n")
}

// WriteProgram writes what will be run. No child is started meanwhile: it would have the file open for writing until
// it becomes another program, and what somebody writes to cannot be run.
func WriteProgram(t *testing.T, name, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// String returns the host's name.
func (h *Rooted) String() string { return h.Name }

// Close does nothing.
func (h *Rooted) Close() error { return nil }

// Mkdir makes a directory on the host.
func (h *Rooted) Mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(h.Root, dir), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Put writes a file on the host.
func (h *Rooted) Put(t *testing.T, path, content string) {
	t.Helper()
	h.Mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(filepath.Join(h.Root, path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Tree lists everything on the host: names, modes, contents and where links lead.
func (h *Rooted) Tree(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(h.Root, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v\n", strings.TrimPrefix(name, h.Root), info.Mode())
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

// Content returns a file of the host, "" if there is none.
func (h *Rooted) Content(path string) string {
	data, _ := os.ReadFile(filepath.Join(h.Root, path))
	return string(data)
}

// Run runs a command below the root.
func (h *Rooted) Run(ctx context.Context, cmd host.Cmd) error {
	h.Mu.Lock()
	h.Ran = append(h.Ran, strings.Join(cmd.Args, " "))
	special := h.Commands[cmd.Args[0]]
	h.Mu.Unlock()
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
		return &host.ExitError{Host: h.Name, Args: cmd.Args, Code: exit.ExitCode(), Stderr: stderr.String()}
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", h.Name, cmd.Args[0], errors.Join(context.Cause(ctx), err))
	}
	return nil
}

// start starts a real command. When ctx is done, it ends with all that it has started.
func (h *Rooted) start(ctx context.Context, cmd host.Cmd, stderr io.Writer) (*exec.Cmd, io.WriteCloser, error) {
	args := slices.Clone(cmd.Args)
	for i, a := range args {
		if strings.HasPrefix(a, "/") {
			args[i] = h.Root + a
		}
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	if path := filepath.Join(h.Stubs, args[0]); !strings.Contains(args[0], "/") {
		if _, err := os.Stat(path); err == nil {
			command.Path, command.Err = path, nil
		}
	}
	command.Env = []string{"PATH=" + h.Stubs + ":" + os.Getenv("PATH"), "LC_ALL=C"}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.Stdout, command.Stderr = &movedBack{h.Root, cmd.Stdout}, stderr
	stdin, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	// this process placed the program, and a child of another test has it open for a moment
	if errors.Is(err, syscall.ETXTBSY) {
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

// Helper is kkbundle-node, in this process.
func (h *Rooted) Helper(ctx context.Context, cmd host.Cmd) error {
	var err error
	switch cmd.Args[1] {
	case "facts":
		err = h.facts(ctx, cmd)
	case "receive":
		err = transfer.Receive(ctx, h.Root, cmd.Stdin, cmd.Stdout)
	case "dial":
		err = node.DialStdio(ctx, "tcp", cmd.Args[2], cmd.Stdin, cmd.Stdout)
	case "listen":
		err = node.ServeListen(ctx, cmd.Stdin, cmd.Stdout)
	case "reach":
		err = node.ServeReach(ctx, cmd.Stdin, cmd.Stdout)
	case "version", "destroy-sets": // this machine's sets are not the host's
	default:
		err = fmt.Errorf("kkbundle-node %s is not known to this test", cmd.Args[1])
	}
	if err != nil {
		return &host.ExitError{Host: h.Name, Args: cmd.Args, Code: 1, Stderr: err.Error()}
	}
	return nil
}

// facts answers a probe about a few things. All facts would be about this machine.
func (h *Rooted) facts(ctx context.Context, cmd host.Cmd) error {
	probe, err := node.ReadProbe(cmd.Stdin)
	if err != nil || !probe.Only {
		return errors.Join(errors.New("this test knows no other facts"), err)
	}
	run := func(ctx context.Context, args ...string) ([]byte, error) {
		var out bytes.Buffer
		err := h.Run(ctx, host.Cmd{Args: args, Stdout: &out})
		return out.Bytes(), err
	}
	facts, err := node.CollectBelow(ctx, h.Root, run, probe)
	return errors.Join(err, json.NewEncoder(cmd.Stdout).Encode(facts))
}

// Answer makes a command be answered by the test.
func (h *Rooted) Answer(name string, do func(ctx context.Context, cmd host.Cmd) error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Commands[name] = do
}

// Said returns the recorded commands that begin with a word, "" for all, and forgets them.
func (h *Rooted) Said(word string) []string {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	var list []string
	for _, line := range h.Ran {
		if word == "" || strings.HasPrefix(line, word+" ") {
			list = append(list, line)
		}
	}
	h.Ran = nil
	return list
}

// A Site is hosts without a network.
type Site struct {
	Hosts   map[string]*Rooted
	Options engine.Options
	Events  []task.Event
	Mu      sync.Mutex
}

// NewSite makes hosts cp1, node1 and so on; cp1 also has the registry.
func NewSite(t *testing.T, names ...string) *Site {
	t.Helper()
	s := &Site{Hosts: map[string]*Rooted{}}
	text := "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n"
	var workers []string
	for i, name := range names {
		s.Hosts[name] = NewRooted(t, name)
		const perNetwork = 250 // of the addresses from .3 on
		text += fmt.Sprintf("  %s: {address: 10.0.%d.%d}\n", name, i/perNetwork, 3+i%perNetwork)
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
	s.Options = engine.Options{
		Cluster:   tasktest.Cluster(t, ""),
		Inventory: inv,
		WorkDir:   filepath.Join(t.TempDir(), "work"),
		Progress: func(e task.Event) {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			s.Events = append(s.Events, e)
		},
	}
	return s
}

// Run prepares a run whose targets are connected.
func (s *Site) Run(t *testing.T, b *bundle.Reader) *engine.Run {
	t.Helper()
	s.Options.Bundle = b
	r, err := engine.New(s.Options, engine.Changing(), plan.Planner())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Dir.Close() })
	r.Journal = &engine.Journal{Mask: r.Mask, Now: r.Now, Writer: io.Discard}
	for _, h := range s.Options.Inventory.Hosts() {
		r.Sessions[h.Name] = new(engine.Session)
		r.Hosts = append(r.Hosts, &task.Host{
			Host: h, IP: h.InternalIPv4, Arch: "amd64", Site: r.Site,
			Conn: &engine.Journaled{Host: s.Hosts[h.Name], Watch: r.Watch(h.Name), Journal: r.Journal},
		})
	}
	return r
}

// States returns what became of tasks, as "task@host state".
func (s *Site) States() []string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var list []string
	for _, e := range s.Events {
		if e.Task != "" && e.State != task.Started && e.State != task.Progress {
			list = append(list, e.Task+"@"+e.Host+" "+string(e.State))
		}
	}
	slices.Sort(list)
	s.Events = nil
	return list
}

// Sorted returns a sorted copy.
func Sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }
