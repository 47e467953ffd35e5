package hosts

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestHosts boots real hosts: it needs root and the lab's software, which it builds if it is not there.
func TestHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	if err := Check(); err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	s, err := software.Build(ctx, software.Options{Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Up(ctx, Options{State: t.TempDir(), RootFS: s.RootFS, Hosts: 2, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	one, two := l.Hosts[0], l.Hosts[1]

	t.Run("is a server", func(t *testing.T) {
		expect(ctx, t, target{l, one}, "systemctl is-system-running --wait", "running")
		expect(ctx, t, target{l, two}, "hostname", "host2")
		expect(ctx, t, target{l, one}, "ping -c1 -W2 "+two.Address+" | grep -o '1 received'", "1 received")
		expect(ctx, t, target{l, one}, "cat /proc/sys/net/ipv4/ip_forward", "0")
	})
	t.Run("knows users", func(t *testing.T) {
		ssh := l.Command(ctx, "ssh", "-i", l.KeyFile(), "-o", "UserKnownHostsFile="+l.KnownHostsFile(), "-o",
			"BatchMode=yes",
			software.SudoUser+"@"+two.Address, "sudo -n true; sudo -S -k -p '' id -un")
		ssh.Stdin = strings.NewReader(software.SudoPassword + "\n")
		out, err := ssh.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "a password is required") ||
			!strings.HasSuffix(string(out), "root\n") {
			t.Errorf("sudo: %v: %s", err, out)
		}
	})
	t.Run("has no way out", func(t *testing.T) {
		expect(ctx, t, target{l, one}, "ip route show default", "")
		expect(ctx, t, target{l, one}, "curl -s -m 3 http://192.0.2.1 || echo none", "none")
		p, err := l.Packets(ctx)
		if err != nil || p.Left != 0 || p.NoWay == 0 {
			t.Errorf("packets: %+v, %v; want none that left, and an attempt", p, err)
		}
		// The count is worth something: a host that is given a way is noticed.
		expect(ctx, t, target{l, one}, "ip route add default via "+AdminAddress+
			"; ping -c2 -i0.2 -W1 192.0.2.1 >/dev/null; ip route del default", "")
		if n, err := l.LeftPackets(ctx); err != nil || n != 2 {
			t.Errorf("left: %d, %v; want the two that were sent", n, err)
		}
	})
	t.Run("loses its power and its cable", func(t *testing.T) {
		expect(ctx, t, target{l, two}, "touch /root/kept; sync; echo ok", "ok")
		if err := l.Kill(ctx, two); err != nil {
			t.Fatal(err)
		}
		if err := l.Start(ctx, two); err != nil {
			t.Fatal(err)
		}
		expect(ctx, t, target{l, two}, "ls /root", "kept")
		if err := l.Link(ctx, two, false); err != nil {
			t.Fatal(err)
		}
		expect(ctx, t, target{l, one}, "ping -c1 -W1 "+two.Address+" >/dev/null || echo unplugged", "unplugged")
		if err := l.Link(ctx, two, true); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("goes without a trace", func(t *testing.T) {
		groups := cgroups(t, l)
		// As after a crash: the process that looks after host 1 is gone.
		if err := syscall.Kill(l.process(one, "supervisor").pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := l.Down(ctx); err != nil {
				t.Fatal(err)
			}
		}
		noTrace(t, l, groups)
	})
}

type target struct {
	lab  *Lab
	host Host
}

func expect(ctx context.Context, t *testing.T, to target, line, want string) {
	t.Helper()
	out, err := to.lab.SSH(ctx, to.host, line).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%s: %s: %q, %v; want %q", to.host.Name, line, got, err, want)
	}
}

// cgroups returns the directories of all hosts' groups.
func cgroups(t *testing.T, l *Lab) []string {
	var dirs []string
	for _, h := range l.Hosts {
		data, err := os.ReadFile(filepath.Join(l.hostDir(h), "cgroups"))
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, strings.Fields(string(data))...)
	}
	if len(dirs) < 2*5 {
		t.Fatalf("only %d cgroups: %q", len(dirs), dirs)
	}
	return dirs
}

func noTrace(t *testing.T, l *Lab, groups []string) {
	for _, g := range groups {
		for _, dir := range []string{g, filepath.Dir(g)} {
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("cgroup %s is left", dir)
			}
		}
	}
	if left, err := filepath.Glob("/run/netns/" + l.Name + "-*"); err != nil || len(left) > 0 {
		t.Errorf("network namespaces are left: %q, %v", left, err)
	}
	if left, err := mountsBelow(l.State); err != nil || len(left) > 0 {
		t.Errorf("mounts are left: %q, %v", left, err)
	}
	if left, err := os.ReadDir(l.State); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(loops, procs...) {
		data, err := os.ReadFile(file)
		// ended since it was listed
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		if strings.Contains(string(data), l.State+"/") || strings.Contains(string(data), l.Name) {
			t.Errorf("left: %s: %q", file, data)
		}
	}
}
