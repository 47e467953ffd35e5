//go:build linux

package machine

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestWrongLabels runs the script with the real matchpathcon and a policy of ours, in a namespace whose
// /sys/fs/selinux is a directory: the kernel here has no SELinux.
func TestWrongLabels(t *testing.T) {
	t.Parallel()
	const program = "/usr/sbin/matchpathcon"
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and matchpathcon (Debian: selinux-utils)")
	}
	dir, bin := t.TempDir(), t.TempDir()
	const kubelet = "system_u:object_r:container_var_lib_t:s0"
	rules := dir + "/kubelet(/.*)?\t" + kubelet + "\n" + dir + "/free\t<<none>>\n"
	for name, text := range map[string]string{bin + "/contexts": rules, bin + "/matchpathcon": "#!/bin/sh\nexec " +
		program + " -f " + bin + "/contexts \"$@\"\n"} {
		// a child that is started meanwhile has the program open for writing, and what somebody writes to cannot be
		// run
		syscall.ForkLock.RLock()
		err := os.WriteFile(name, []byte(text), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(selinux string) string {
		t.Helper()
		inside := "mount -t tmpfs none /sys/fs && " + selinux + ` PATH=$0:$PATH exec "$@"`
		args := append([]string{"--mount", "sh", "-c", inside, bin}, host.Script("wrong-labels.sh", wrongLabelsScript,
			dir+"/kubelet", dir+"/free")...)
		out, err := exec.CommandContext(t.Context(), "unshare", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	const on = "mkdir /sys/fs/selinux && echo 1 >/sys/fs/selinux/enforce &&"
	wrong := kubelet + " " + dir + "/kubelet\n"
	if got := run(""); got != "" {
		t.Errorf("without SELinux: %q", got)
	}
	if got := run(on); got != wrong {
		t.Errorf("missing: got %q, want %q", got, wrong)
	}
	if err := os.Mkdir(dir+"/kubelet", 0o755); err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{
		"system_u:object_r:var_lib_t:s0":               wrong,
		"unconfined_u:object_r:container_var_lib_t:s0": "",
	} {
		if err := unix.Setxattr(dir+"/kubelet", "security.selinux", []byte(label+"\x00"), 0); err != nil {
			t.Skip("the filesystem stores no labels: ", err)
		}
		if got := run(on); got != want {
			t.Errorf("%s: got %q, want %q", label, got, want)
		}
	}
}

// A labelConn prints a directory without its label until chcon has run, and records commands.
type labelConn struct{ ran []string }

func (c *labelConn) String() string { return "node1" }
func (c *labelConn) Close() error   { return nil }

func (c *labelConn) Run(_ context.Context, cmd host.Cmd) error {
	args := host.WithoutText(cmd.Args)
	c.ran = append(c.ran, strings.Join(args, " "))
	if args[0] != "wrong-labels.sh" || strings.Contains(strings.Join(c.ran, "\n"), "chcon") {
		return nil
	}
	_, err := io.WriteString(cmd.Stdout, "system_u:object_r:container_var_lib_t:s0 /var/lib/kubelet\n")
	return err
}

// TestLabelsTask checks that the task creates missing directories, sets wrong labels, and changes no other file.
func TestLabelsTask(t *testing.T) {
	t.Parallel()
	for runtime, dirs := range map[manifest.RuntimeType]string{
		manifest.RuntimeContainerd: "/etc/containerd /var/lib/containerd",
		manifest.RuntimeCRIO:       "/etc/crio /var/lib/containers",
		manifest.RuntimeDocker:     "/etc/docker /var/lib/docker",
	} {
		conn := &labelConn{}
		site := &task.Site{Cluster: &manifest.Cluster{CRI: manifest.CRI{Type: runtime}}}
		node := &task.Host{Host: manifest.Host{Name: "node1"}, Conn: conn, Site: site}
		step := LabelsTask()
		ctx, why := task.WithReasons(t.Context())
		if done, err := step.Done(ctx, node); done || err != nil ||
			why.String() != "/var/lib/kubelet lacks the label system_u:object_r:container_var_lib_t:s0" {
			t.Errorf("before: %v, %v, %s", done, err, why)
		}
		if !strings.HasSuffix(conn.ran[0], " /var/lib/kubelet /etc/cni /etc/kubernetes "+dirs) {
			t.Errorf("%s: %s", runtime, conn.ran[0])
		}
		if err := step.Do(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(conn.ran[2:],
			", "); got != "mkdir -p -- /var/lib/kubelet, chcon -- system_u:object_r:container_var_lib_t:s0 /var/lib/kubelet" {
			t.Errorf("%s: %s", runtime, got)
		}
		if done, err := step.Done(t.Context(), node); !done || err != nil {
			t.Errorf("after: %v, %v", done, err)
		}
	}
}
