package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Start switches a host on and waits until it answers over SSH.
func (l *Lab) Start(ctx context.Context, h Host) error {
	if running(l.process(h, "supervisor")) {
		return fmt.Errorf("%s is on already", h.Name)
	}
	log, err := os.OpenFile(filepath.Join(l.hostDir(h), "supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	defer log.Close()
	cmd := l.script(context.WithoutCancel(ctx), h, "run") // it outlives us
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", h.Name, err)
	}
	note := process{cmd.Process.Pid, startTime(cmd.Process.Pid)} // now, so that Down finds it whatever happens to us
	if err := os.WriteFile(filepath.Join(l.hostDir(h), "supervisor"), []byte(fmt.Sprintln(note.pid, note.started)),
		0o644); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", h.Name, err), cmd.Process.Kill())
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // also reaps it if we live on
	return l.waitForSSH(ctx, h, ended)
}

func (l *Lab) waitForSSH(ctx context.Context, h Host, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		out, err := l.SSH(ctx, h, "true").CombinedOutput()
		if err == nil {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("%s did not start: %w; see %s", h.Name, errors.Join(err, errors.New("the host is off")),
				filepath.Join(l.hostDir(h), "supervisor.log"))
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w: %s; see %s", h.Name, err, bytes.TrimSpace(out),
				filepath.Join(l.hostDir(h), "console.log"))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Kill pulls a host's plug: nothing on it gets to say goodbye. Its disk stays.
func (l *Lab) Kill(ctx context.Context, h Host) error { return l.signal(ctx, h, syscall.SIGKILL) }

// Stop switches a host off in order, and after half a minute in any case.
func (l *Lab) Stop(ctx context.Context, h Host) error {
	const poweroff = syscall.Signal(34 + 4) // systemd's SIGRTMIN+4
	return l.signal(ctx, h, poweroff)
}

func (l *Lab) signal(ctx context.Context, h Host, s syscall.Signal) error {
	supervisor := l.process(h, "supervisor")
	if !running(supervisor) {
		return nil
	}
	deadline := time.Now().Add(30 * time.Second)
	for sent := false; running(supervisor); {
		if time.Now().After(deadline) {
			s, sent, deadline = syscall.SIGKILL, false, time.Now().Add(30*time.Second)
		}
		if init := l.initOf(h); init > 0 && !sent {
			if err := syscall.Kill(init, s); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stop %s: %w", h.Name, err)
			}
			sent = true
		}
		if s == syscall.SIGKILL && sent {
			if err := l.thaw(h); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop %s: %w", h.Name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// thaw lets frozen processes of a host end. runc freezes a container while it sets up its devices, and may be killed
// then.
func (l *Lab) thaw(h Host) error {
	groups, err := os.ReadFile(filepath.Join(l.hostDir(h), "cgroups"))
	if err != nil {
		return nil //nolint:nilerr // the host has ended
	}
	for dir := range strings.Lines(string(groups)) {
		if !strings.HasPrefix(dir, "/sys/fs/cgroup/freezer/") {
			continue
		}
		err := filepath.WalkDir(strings.TrimSpace(dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.Name() != "freezer.state" {
				return nil //nolint:nilerr // groups go while the host ends
			}
			err = os.WriteFile(path, []byte("THAWED"), 0)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("thaw %s: %w", h.Name, err)
		}
	}
	return nil
}

// initOf returns the process that is process 1 on the host, as seen from here, or 0.
func (l *Lab) initOf(h Host) int {
	nspawn := l.process(h, "nspawn")
	if !running(nspawn) {
		return 0
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nspawn.pid, nspawn.pid))
	if err != nil {
		return 0
	}
	for _, c := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(c); err == nil {
			return pid
		}
	}
	return 0
}

// A process is known by when it started, too: its number may have gone to another.
type process struct {
	pid     int
	started string
}

// process reads what host.sh wrote about itself or about systemd-nspawn.
func (l *Lab) process(h Host, file string) process {
	data, err := os.ReadFile(filepath.Join(l.hostDir(h), file))
	if err != nil {
		return process{}
	}
	pid, started, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	n, err := strconv.Atoi(pid)
	if err != nil || started == "" {
		return process{}
	}
	return process{n, started}
}

func running(p process) bool {
	return p.pid != 0 && p.started != "" && startTime(p.pid) == p.started
}

// startTime returns when a process started, in the kernel's ticks, or "" if it does not run.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	const state, start = 0, 19 // of what follows the name
	if len(fields) <= start || fields[state] == "Z" {
		return ""
	}
	return fields[start]
}
