package host_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/installer/host"
)

// A labelling host runs commands where the kernel seems to have SELinux, with a policy of our own: matchpathcon and
// chcon are the real ones, /sys/fs/selinux is a directory in a namespace. Without SELinux in the kernel nothing is
// enforced.
type labelling struct {
	host.Host
	bin string
}

func (l labelling) Run(ctx context.Context, cmd host.Cmd) error {
	const inside = `mount -t tmpfs none /sys/fs && mkdir /sys/fs/selinux && echo 1 >/sys/fs/selinux/enforce && PATH=$0:$PATH exec "$@"`
	cmd.Args = append([]string{"unshare", "--mount", "sh", "-c", inside, l.bin}, cmd.Args...)
	return l.Host.Run(ctx, cmd)
}

func newLabelling(t *testing.T, rules ...string) labelling {
	t.Helper()
	program := "/usr/sbin/matchpathcon"
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and matchpathcon (Debian: selinux-utils)")
	}
	dir := t.TempDir()
	contexts := filepath.Join(dir, "file_contexts")
	if err := os.WriteFile(contexts, []byte(strings.Join(rules, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeProgram(t, filepath.Join(dir, "matchpathcon"), "#!/bin/sh\nexec "+program+" -f "+contexts+` "$@"`+"\n")
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "none",
		"/sys/fs").Run(); err != nil {
		t.Skip("needs a mount namespace of its own: ", err)
	}
	local, err := host.Local(t.Context(), host.LocalOptions{Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	return labelling{local, dir}
}

// writeProgram writes what will be run. No child is started meanwhile: it would have the file open for writing until
// it becomes another program, and what somebody writes to cannot be run.
func writeProgram(t *testing.T, name, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func labelOf(name string) string {
	label := make([]byte, 100)
	n, err := unix.Getxattr(name, "security.selinux", label)
	if err != nil {
		return err.Error()
	}
	return strings.TrimRight(string(label[:n]), "\x00")
}

func setLabel(t *testing.T, name, label string) {
	t.Helper()
	if err := unix.Setxattr(name, "security.selinux", []byte(label+"\x00"), 0); err != nil {
		t.Skip("the filesystem stores no labels: ", err)
	}
}

// TestWriteFileSetsLabelOfPolicy writes files of systemd and of nobody, an existing one with another label, and one
// that only its user tells from the policy's.
func TestWriteFileSetsLabelOfPolicy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const unit, odd = "system_u:object_r:systemd_unit_file_t:s0", "system_u:object_r:var_lib_t:s0"
	h := newLabelling(t, dir+`/units(/.*)?	`+unit, dir+`/free(/.*)?	<<none>>`)
	step := func(name, label string, want bool) {
		t.Helper()
		changed, err := host.WriteFile(t.Context(), h, name, 0o644, []byte("x"))
		if err != nil || changed != want {
			t.Errorf("%s: changed %v, %v, want %v", name, changed, err, want)
		}
		if got := labelOf(name); got != label {
			t.Errorf("%s: label %q, want %q", name, got, label)
		}
	}
	name := dir + "/units/a.service"
	step(name, unit, true)
	step(name, unit, false)
	setLabel(t, name, odd)
	step(name, unit, true)
	const other = "unconfined_u:object_r:systemd_unit_file_t:s0"
	setLabel(t, name, other)
	step(name, other, false)
	step(dir+"/free/file", unix.ENODATA.Error(), true)
}

// TestEditFileKeepsLabel edits a file with a label of its own, as /etc/hosts has net_conf_t.
func TestEditFileKeepsLabel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const own = "system_u:object_r:net_conf_t:s0"
	h := newLabelling(t, dir+`/.*	system_u:object_r:etc_t:s0`)
	name := dir + "/hosts"
	if err := os.WriteFile(name, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	setLabel(t, name, own)
	if changed, err := host.EditFile(t.Context(), h, name, []byte("after")); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if got := labelOf(name); got != own {
		t.Errorf("label %q, want %q", got, own)
	}
}

// TestLabelThatCannotBeSet writes to a filesystem without labels.
func TestLabelThatCannotBeSet(t *testing.T) {
	t.Parallel()
	h := newLabelling(t, `/proc(/.*)?	system_u:object_r:bin_t:s0`, `.*	system_u:object_r:bin_t:s0`)
	writeProgram(t, h.bin+"/chcon", "#!/bin/sh\necho 'chcon: Operation not supported' >&2\nexit 1\n")
	name := t.TempDir() + "/program"
	_, err := host.WriteFile(t.Context(), h, name, 0o755, []byte("x"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{name, "system_u:object_r:bin_t:s0", "without context="} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: does not say %s", err, part)
		}
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("the file is there without its label")
	}
}
