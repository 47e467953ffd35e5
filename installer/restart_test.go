//go:build linux

package installer

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A played process has the name and the arguments of a static pod's.
type played struct {
	cmd *exec.Cmd
	// ended has what the process said after it was ready, and how it ended.
	ended chan string
}

func play(t *testing.T, name, script string, args ...string) played {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: shell, Args: append([]string{name, "-c", script, "x"}, args...)}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("%s: %q", name, lines.Text())
	}
	p := played{cmd, make(chan string, 1)}
	go func() { // at once: the script takes one that nobody has waited for as running
		said := ""
		for lines.Scan() {
			said += lines.Text() + ", "
		}
		_ = cmd.Wait()
		p.ended <- said + cmd.ProcessState.String()
	}()
	return p
}

// again runs the hosts' script for a name that nobody else has.
func again(t *testing.T, name string, grace int, before ...int) {
	t.Helper()
	script := againScript + fmt.Sprintf("again %d %s %s\n", grace, name, strings.Trim(fmt.Sprint(before), "[]"))
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestAgain ends real processes: one that takes its leave, one that does not, and not one of the same name that belongs to
// somebody else.
func TestAgain(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pgrep"); err != nil {
		t.Skip("pgrep is not installed")
	}
	const (
		// sleep is not waited for: a shell looks for signals between commands only
		obeys   = `trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done`
		refuses = `trap '' TERM; echo ready; while :; do sleep 0.05; done`
		path    = "--config=/etc/kubernetes/test.conf"
	)
	name := func(what string) string { return fmt.Sprintf("kk%s%d", what, os.Getpid()) }
	polite := play(t, name("obeys"), obeys, path)
	foreign := play(t, name("obeys"), obeys, "--config=/etc/other")
	later := play(t, name("obeys"), obeys, path)
	again(t, name("obeys"), 3600, foreign.cmd.Process.Pid, polite.cmd.Process.Pid)
	if got := <-polite.ended; got != "bye, exit status 0" {
		t.Errorf("it was not asked to end: %s", got)
	}
	for what, other := range map[string]played{"that of somebody else": foreign, "that of later": later} {
		if err := other.cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	stubborn := play(t, name("refuses"), refuses, path)
	again(t, name("refuses"), 0, stubborn.cmd.Process.Pid)
	if got := <-stubborn.ended; got != "signal: killed" {
		t.Errorf("want it killed, got %s", got)
	}
	again(t, name("nobody"), 3600, 1) // none is running
}

// TestRenewScript holds that the timer's script is one that a shell takes, and restarts etcd before what needs it.
func TestRenewScript(t *testing.T) {
	t.Parallel()
	text := string(renewCertificates(cluster(t, "").WithDefaults()))
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-n", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	at := -1
	for _, want := range []string{"kubeadm certs renew all", "\nbefore=", "\nagain 5 etcd ", "pgrep --full -- '^etcd ", "\nagain 5 kube-apiserver ", "\nagain 5 kube-controller-manager ", "\nagain 5 kube-scheduler "} {
		i := strings.LastIndex(text, want)
		if i <= at {
			t.Errorf("no %q after what has to come before it:\n%s", want, text)
		}
		at = i
	}
}
