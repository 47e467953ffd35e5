//go:build linux

package installer

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/bootstrap"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

const bootstrapDocument = `#cloud-config
write_files:
  - {path: /etc/kubernetes/kubeadm.yaml, permissions: '0600', owner: 'kube:root', content: "it's $HOME\n"}
  - {path: /etc/motd, append: true, content: "more\n"}
users:
  - {name: capi, sudo: ALL=(ALL) NOPASSWD:ALL, groups: [adm], ssh_authorized_keys: [ssh-ed25519 AAAA, ssh-rsa BBBB]}
mounts:
  - [LABEL=data, /var/data]
  - [/srv/disk.img, /var/later, ext4, "loop,noauto"]
bootcmd:
  - [date]
runcmd:
  - "cat /etc/kubernetes/kubeadm.yaml; false"
  - [touch, /etc/ran]
`

// provisioned is a site whose hosts have the commands that change accounts and mounts as stubs: they would change this
// machine.
func provisioned(t *testing.T) *sitetest.Site {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "node1")
	for _, h := range s.Hosts {
		h.Put(t, "/etc/motd", "hello\n")
		for name, script := range map[string]string{
			"usermod": "exit 0", "visudo": "grep -q NOPASSWD", "mount": "exit 0", "mountpoint": "exit 1",
			"getent": `[ -e "` + h.Root + `/etc/made" ] && echo "capi:x:1:1::/home/capi:/bin/sh"`,
			// the user's own part is tried where there are users; here it is what it is given that counts
			"runuser": `cat >"` + h.Root + `/etc/keys"`,
		} {
			h.Stub(t, name, script)
		}
		h.Answer("useradd", func(context.Context, host.Cmd) error {
			h.Put(t, "/etc/made", "capi\n")
			return nil
		})
	}
	s.Dialing("")
	s.Options.Helper = func(string) ([]byte, error) { return []byte("helper"), nil }
	return s
}

func program(t *testing.T, document string) *provision.Program {
	t.Helper()
	p, err := provision.Parse("bootstrap.yaml", []byte(document), provision.Metadata{Hostname: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProvision stops at a step that fails, goes on from there when it does not any more, and does nothing twice.
func TestProvision(t *testing.T) {
	t.Parallel()
	s := provisioned(t)
	h := s.Hosts["node1"]
	if _, err := Provision(t.Context(), s.Options, "node1", program(t, bootstrapDocument)); err == nil ||
		!strings.Contains(err.Error(), "run cat") {
		t.Fatalf("want the step that failed, got %v", err)
	}
	if h.Content(marks.Sentinel) != "" || h.Content("/etc/kubernetes/kubeadm.yaml") != "it's $HOME\n" {
		t.Error("the sentinel is written too early, or a file is not as it shall be")
	}
	if !slices.Contains(h.Ran, "mount -- /var/data") || slices.Contains(h.Ran, "mount -- /var/later") {
		t.Errorf("mounted is what has no noauto: %q", h.Ran)
	}
	if got := h.Said("chown"); !slices.ContainsFunc(got,
		func(line string) bool { return strings.HasSuffix(line, "kube:root /etc/kubernetes/kubeadm.yaml") }) {
		t.Errorf("owner: %q", got)
	}
	if got, want := h.Content("/etc/fstab"),
		"LABEL=data /var/data auto defaults,nofail 0 2\n/srv/disk.img /var/later ext4 loop,noauto 0 2\n"; got != want {
		t.Errorf("fstab: %q", got)
	}
	if got, want := h.Content("/etc/keys"), "ssh-ed25519 AAAA\nssh-rsa BBBB\n"; got != want {
		t.Errorf("keys: %q", got)
	}
	if got, want := h.Content("/etc/sudoers.d/90-kkbundle-capi"), "capi ALL=(ALL) NOPASSWD:ALL\n"; got != want {
		t.Errorf("sudo: %q", got)
	}
	if left, err := filepath.Glob(filepath.Join(h.Root, task.ProvisionDir, "*", "*.sh")); err != nil || len(left) > 0 {
		t.Errorf("scripts are left: %q, %v", left, err)
	}
	s.States()
	mended := strings.Replace(bootstrapDocument, "false", "true", 1)
	if _, err := Provision(t.Context(), s.Options, "node1", program(t, mended)); err != nil {
		t.Fatal(err)
	}
	if got := h.Content("/etc/motd"); got != "hello\nmore\nmore\n" {
		t.Errorf("another document adds its own: %q", got)
	}
	if h.Content(marks.Sentinel) != "success\n" {
		t.Error("the sentinel is missing")
	}
	if len(s.Hosts["cp1"].Ran) != 0 {
		t.Errorf("another host was worked on: %q", s.Hosts["cp1"].Ran)
	}
	s.States()
	report, err := Provision(t.Context(), s.Options, "node1", program(t, mended))
	if err != nil || report.Changed != 0 || h.Content("/etc/motd") != "hello\nmore\nmore\n" {
		t.Errorf("a rerun changed %d: %v, %q", report.Changed, err, s.States())
	}
}

// TestProvisionForeign leaves a node of another cluster as it is; the node that an earlier document made is ours.
func TestProvisionForeign(t *testing.T) {
	t.Parallel()
	const node = "/etc/kubernetes/kubelet.conf"
	s := provisioned(t)
	h := s.Hosts["node1"]
	h.Put(t, node, "")
	document := program(t, "#cloud-config\nwrite_files: [{path: /etc/motd, content: more}]\n")
	_, err := Provision(t.Context(), s.Options, "node1", document)
	if foreign := (*begin.ForeignError)(nil); !errors.As(err, &foreign) || foreign.Host != "node1" {
		t.Fatalf("a node of another cluster: %v", err)
	}
	if got := h.Content("/etc/motd"); got != "hello\n" {
		t.Errorf("the document's file was written: %q", got)
	}
	tree := h.Tree(t)
	for _, dir := range []string{task.StampDir, task.ProvisionDir} {
		if strings.Contains(tree, dir) {
			t.Errorf("%s is there: %s", dir, tree)
		}
	}
	h.Put(t, marks.Receipt("of-another-document", 1), "")
	if _, err := Provision(t.Context(), s.Options, "node1", document); err != nil {
		t.Errorf("a node that an earlier document made: %v", err)
	}
}

// TestProvisionOwner marks the host before the first change, repeats for the same machine and refuses others.
func TestProvisionOwner(t *testing.T) {
	t.Parallel()
	const node = "/etc/kubernetes/kubelet.conf"
	s := provisioned(t)
	h := s.Hosts["node1"]
	failing := program(t, "#cloud-config\nwrite_files: [{path: "+node+", content: more}]\nruncmd: [[\"false\"]]\n")
	run := func(owner task.Machine) error {
		s.Options.Owner = owner
		_, err := Provision(t.Context(), s.Options, "node1", failing)
		return err
	}
	s.Options.DryRun = true
	if err := run("site/prod/md-1"); err != nil || strings.Contains(h.Tree(t), marks.Owner) {
		t.Errorf("a dry run has marked the host (%v)", err)
	}
	s.Options.DryRun = false
	for range 2 {
		if err := run("site/prod/md-1"); err == nil || !strings.Contains(err.Error(), "run false") {
			t.Errorf("the machine's own run: %v, want the step that fails", err)
		}
	}
	if got := h.Content(marks.Owner); got != "site/prod/md-1\n" {
		t.Errorf("the mark is %q", got)
	}
	h.Put(t, marks.LockOwner, "") // has the time of each run
	before := h.Tree(t)
	for _, other := range []task.Machine{"", "site/test/md-1"} {
		var owned *begin.OwnedError
		if err := run(other); !errors.As(err, &owned) || owned.Has != "site/prod/md-1" || owned.Want != other {
			t.Errorf("the run of %q: %v", other, err)
		}
	}
	s.Options.Owner = ""
	if err := begin.CheckForeign(t.Context(), s.Run(t, nil)); !errors.As(err, new(*begin.OwnedError)) {
		t.Errorf("an installation on a machine's host: %v", err)
	}
	h.Put(t, marks.LockOwner, "")
	if diff := cmp.Diff(before, h.Tree(t)); diff != "" {
		t.Errorf("a refused run has changed the host (-before +after):\n%s", diff)
	}
}

// TestProvisionOwnerOfUsed leaves hosts as they are that have an installation without the machine's mark, with or
// without stamps; neither does a reset for the machine touch them.
func TestProvisionOwnerOfUsed(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"a node of install": member.Path, "half a node": task.StampDir + "/kernel", "a registry": task.ConfigDir + "/registry.yaml",
		"a person's provision": marks.Receipt("a-document", 1), "a node of others": "/etc/kubernetes/kubelet.conf",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := provisioned(t)
			h := s.Hosts["node1"]
			h.Put(t, file, "")
			h.Put(t, "/var/lib/etcd/member/snap/db", "")
			s.Options.Owner = "site/prod/md-1"
			document := program(t, "#cloud-config\nwrite_files: [{path: /etc/motd, content: more}]\n")
			_, err := Provision(t.Context(), s.Options, "node1", document)
			s.Options.Limit = []string{"node1"}
			cleaned := reset.Reset(t.Context(), s.Options)
			for verb, err := range map[string]error{"provision": err, "reset": cleaned} {
				if !errors.As(err, new(*begin.OwnedError)) && !errors.As(err, new(*begin.ForeignError)) {
					t.Errorf("%s: %v", verb, err)
				}
			}
			tree := h.Tree(t)
			if h.Content("/etc/motd") != "hello\n" || !strings.Contains(tree, file) || !strings.Contains(tree, "/snap/db") ||
				strings.Contains(tree, marks.Owner) {
				t.Errorf("the host was changed:\n%s", tree)
			}
		})
	}
}

// TestProvisionInterrupted ends a run between a file that is added to and its receipt: the rerun must not add again.
func TestProvisionInterrupted(t *testing.T) {
	t.Parallel()
	s := provisioned(t)
	r := s.Run(t, nil)
	node1 := r.Hosts[1]
	step := program(t, "#cloud-config\nwrite_files: [{path: /etc/motd, append: true, content: more}]\n").Steps[0]
	for range 2 {
		if err := bootstrap.Apply(t.Context(), node1, step, task.ProvisionDir+"/x/0001"); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Hosts["node1"].Content("/etc/motd"); got != "hello\nmore" {
		t.Errorf("got %q", got)
	}
}

// TestProvisionKeeps holds that nothing is lost unless the document says so.
func TestProvisionKeeps(t *testing.T) {
	t.Parallel()
	s := provisioned(t)
	h, node1 := s.Hosts["node1"], s.Run(t, nil).Hosts[1]
	printing := func(text string) func(context.Context, host.Cmd) error {
		return func(_ context.Context, cmd host.Cmd) error {
			_, err := io.WriteString(cmd.Stdout, text)
			return err
		}
	}
	h.Answer("wipefs", printing("offset type\n0x438 ext4\n"))
	h.Answer("blkid", printing("ext4\n"))
	h.Put(t, "/etc/fstab", "/dev/sda1 /var/data xfs defaults 0 0\n")
	for _, c := range []struct {
		step provision.Step
		want string
	}{
		{provision.File{Path: "/etc/motd", Keep: true, Data: []byte("other")}, "other content"},
		{provision.Filesystem{Device: "/dev/sdb1", Type: "xfs"}, "already has a filesystem"},
		{provision.Mount{
			Source: "/dev/sdb1", Path: "/var/data", Type: "auto", Options: "defaults", Dump: "0",
			Pass: "2",
		}, "another line"},
		{provision.Timezone{Name: "Mars/Olympus"}, "is unknown on the host"},
	} {
		if err := bootstrap.Apply(t.Context(), node1, c.step, task.ProvisionDir+"/x/0001"); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q, got %v", c.step, c.want, err)
		}
	}
	if err := bootstrap.Apply(t.Context(), node1, provision.Disk{Device: "/dev/sdb", Table: "gpt"}, ""); err != nil ||
		len(h.Said("sfdisk")) > 0 {
		t.Errorf("a disk that is not empty was partitioned (%v)", err)
	}
	if h.Content("/etc/motd") != "hello\n" {
		t.Error("the file was replaced")
	}
}
