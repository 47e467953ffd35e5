package transfer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// policyRules are lines of a policy's file_contexts, as container-selinux and selinux-policy have them for these paths.
const policyRules = `/usr/local/bin(/.*)?	system_u:object_r:bin_t:s0
/usr/local/bin/kubelet.*	--	system_u:object_r:kubelet_exec_t:s0
/opt/cni/bin(/.*)?	system_u:object_r:bin_t:s0
/etc/unlabelled(/.*)?	<<none>>
`

// selinuxRoot returns a root directory whose host seems to have SELinux: matchpathcon is the real one, with
// policyRules. Labels are real attributes of files; the kernel here enforces nothing.
func selinuxRoot(t *testing.T) string {
	t.Helper()
	const program = "/usr/sbin/matchpathcon"
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and matchpathcon (Debian: selinux-utils)")
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"/sys/fs/selinux/enforce": "1",
		"/file_contexts":          policyRules,
		program:                   "#!/bin/sh\nexec " + program + " -f " + root + `/file_contexts "$@"` + "\n",
	} {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o755); err != nil {
			t.Fatal(err)
		}
		// a child that is started meanwhile has the program open for writing, and what somebody writes to cannot be
		// run
		syscall.ForkLock.RLock()
		err := os.WriteFile(root+name, []byte(text), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setxattr(root, labelAttribute, []byte("system_u:object_r:tmp_t:s0\x00"), 0); err != nil {
		t.Skip("the filesystem stores no labels: ", err)
	}
	return root
}

func wantLabel(t *testing.T, name, want string) {
	t.Helper()
	label := make([]byte, 100)
	n, err := unix.Getxattr(name, labelAttribute, label)
	if got := strings.TrimRight(string(label[:max(n, 0)]), "\x00"); got != want {
		t.Errorf("%s: label %q, %v, want %q", name, got, err, want)
	}
}

// TestReceivedFilesGetLabelOfPolicy sends programs whole and in an archive, to a host with SELinux, and once more
// after a label was lost.
func TestReceivedFilesGetLabelOfPolicy(t *testing.T) {
	t.Parallel()
	root, s := selinuxRoot(t), &source{}
	const bin, kubelet = "system_u:object_r:bin_t:s0", "system_u:object_r:kubelet_exec_t:s0"
	program := random(200000, 1)
	cni := PlannedFile{Name: "cni", Unpack: []Member{{Name: "bridge", Path: "/opt/cni/bin/bridge", Mode: 0o755}}}
	cni.Digest, cni.Size = s.add(archive(t, true, entry{name: "bridge", data: random(30000, 2)}))
	plan := Plan{Files: []PlannedFile{
		s.file("kubelet", program, "/usr/local/bin/kubelet", 0o755), // the received part is moved
		s.file("kubectl", random(10, 3), "/usr/local/bin/kubectl", 0o755),
		s.file("once", random(20, 4), "/usr/local/bin/once", 0o755), // copied, then moved
		s.file("twice", random(20, 4), "/usr/local/bin/twice", 0o755),
		cni,
		s.file("free", random(30, 5), "/etc/unlabelled/free", 0o644),
	}}
	labels := func() {
		t.Helper()
		wantLabel(t, root+"/usr/local/bin/kubelet", kubelet)
		for _, name := range []string{
			"/usr/local/bin/kubectl", "/usr/local/bin/once", "/usr/local/bin/twice",
			"/opt/cni/bin/bridge",
		} {
			wantLabel(t, root+name, bin)
		}
		wantLabel(t, root+"/etc/unlabelled/free", "")
	}
	mustConverse(t, root, plan, s)
	labels()
	if again := mustConverse(t, root, plan, s); len(again.Changed) > 0 {
		t.Errorf("changed again: %v", again.Changed)
	}
	for _, name := range []string{"/usr/local/bin/kubelet", "/opt/cni/bin/bridge"} {
		if err := unix.Setxattr(root+name, labelAttribute, []byte("system_u:object_r:var_lib_t:s0\x00"),
			0); err != nil {
			t.Fatal(err)
		}
	}
	if again := mustConverse(t, root, plan, s); len(again.Changed) != 2 || again.Sent > 0 {
		t.Errorf("after the labels were lost: changed %v, %d bytes sent", again.Changed, again.Sent)
	}
	labels()
	// The user of a label is the administrator's.
	if err := unix.Setxattr(root+"/usr/local/bin/kubectl", labelAttribute, []byte("unconfined_u:object_r:bin_t:s0\x00"),
		0); err != nil {
		t.Fatal(err)
	}
	if again := mustConverse(t, root, plan, s); len(again.Changed) > 0 {
		t.Errorf("changed although the type is right: %v", again.Changed)
	}
}

// TestLabelsWithoutPolicy has SELinux on and no matchpathcon, or one that fails: nothing is installed.
func TestLabelsWithoutPolicy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(root string) error
		want   string
	}{
		"program missing": {
			func(root string) error { return os.Remove(root + "/usr/sbin/matchpathcon") },
			"install the package libselinux-utils",
		},
		"policy missing": {func(root string) error { return os.Remove(root + "/file_contexts") }, "sestatus"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, s := selinuxRoot(t), &source{}
			if err := c.damage(root); err != nil {
				t.Fatal(err)
			}
			_, _, err := converse(t, root,
				Plan{Files: []PlannedFile{s.file("kubelet", []byte("x"), "/usr/local/bin/kubelet", 0o755)}}, s, -1)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if _, err := os.Stat(root + "/usr/local/bin/kubelet"); err == nil {
				t.Error("the program is there without its label")
			}
		})
	}
}

// TestLabelError names file, label and remedy, for a filesystem without labels among others.
func TestLabelError(t *testing.T) {
	t.Parallel()
	file, err := os.Open("/proc/self/status") // procfs stores no labels
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	const path, label = "/usr/local/bin/kubelet", "system_u:object_r:kubelet_exec_t:s0"
	tr := &tree{labels: map[string]string{path: label}}
	_, err = tr.setLabel(file, path)
	var failed *LabelError
	if !errors.As(err, &failed) {
		t.Fatalf("got %v", err)
	}
	for reason, remedy := range map[error]string{
		failed.Err: "", unix.ENOTSUP: "without context=", unix.EINVAL: "semodule -B", unix.EPERM: "unconfined_u",
	} {
		text := (&LabelError{Path: path, Label: label, Err: reason}).Error()
		if !strings.Contains(text, path) || !strings.Contains(text, label) || !strings.Contains(text, remedy) {
			t.Errorf("%s: does not say %s", text, remedy)
		}
	}
}
