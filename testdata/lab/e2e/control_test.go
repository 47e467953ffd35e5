package e2e

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestFaults breaks hosts, disks and runs while kkbundle works. After each fault the error names it, other hosts go
// on, and the same command completes. A control plane and two workers; some minutes.
func TestFaults(t *testing.T) {
	th := start(t, scenario{hosts: 3})
	th.nodes = 3
	steps(t, []step{
		{"build", th.makeBundle},
		{"the registry is down while kubeadm pulls", th.registryDown},
		{"a disk is full", th.diskFull},
		{"a command hangs", th.commandHangs},
		{"two installs at once", th.twoInstalls},
		{"a worker is lost, the others are joined", th.workerLost},
		{"killed at several tasks, and continued", th.killedOften},
		{"the cluster works", th.cluster},
		{"a node is deleted, killed on the way, and added again", th.deletedAndAdded},
		{"a host that is gone is deleted", th.gone},
		{"what must stay is refused", th.mustStay},
	})
}

// registryDown begins behind the task that would start the registry.
func (th *thread) registryDown(t *testing.T) {
	run(t, th.site(t, "install", "--tags", "hosts,registry,cri,kubelet")).must(t, 0)
	th.on(t, 1, "systemctl stop kkbundle-registry")
	r := run(t, th.site(t, "install", "--from", "security")).must(t, 16)
	if !strings.Contains(r.stderr, "host1: install kubeadm-init: ") || !strings.Contains(r.stderr, "ImagePull") {
		t.Errorf("want the task, and kubeadm's reason, got\n%s", r.stderr)
	}
	dry := run(t, th.site(t, "install", "--dry-run", "--tags", "registry")).must(t, 0)
	if !strings.Contains(dry.stderr, "kkbundle-registry.service does not run") {
		t.Errorf("want a dry run to say why, got\n%s", dry.stderr)
	}
	t.Logf("%s", dry.stderr)
}

// diskFull leaves no room where host3 keeps its programs, and repairs the registry on the way. The precheck would see
// it.
func (th *thread) diskFull(t *testing.T) {
	const dir = "/usr/local/bin"
	th.on(t, 3, "mount -t tmpfs -o size=1m tmpfs "+dir)
	r := run(t, th.site(t, "install", "--tags", "registry,cri")).must(t, 16)
	th.on(t, 3, "umount "+dir)
	if !strings.Contains(r.stderr, "host3: install containerd: ") || !strings.Contains(r.stderr, "no space") {
		t.Errorf("want the host and the reason, got\n%s", r.stderr)
	}
	if th.on(t, 1, "systemctl is-active kkbundle-registry") != "active\n" {
		t.Error("the registry was not started again")
	}
}

// commandHangs has a command wait for ever on host3, whose SSH server answers.
func (th *thread) commandHangs(t *testing.T) {
	const hanging = "/usr/local/sbin/systemctl"
	th.on(t, 3, `printf '#!/bin/sh\nexec sleep 123456\n' >`+hanging+" && chmod 755 "+hanging)
	r := run(t, th.site(t, "install", "--tags", "registry,cri", "--stall-limit", "1m")).must(t, 16)
	th.on(t, 3, "rm "+hanging)
	if !strings.Contains(r.stderr, "host3: install containerd: systemctl ") ||
		!strings.Contains(r.stderr, "command produced no output for 1m") {
		t.Errorf("want the host, the task and how long it was waited for, got\n%s", r.stderr)
	}
	if left := th.on(t, 3, "pgrep -f 'sleep 12345[6]'; true"); left != "" {
		t.Errorf("the command was not ended: process %s", left)
	}
	if strings.Contains(r.stderr, "host1: ") || strings.Contains(r.stderr, "host2: ") {
		t.Errorf("other hosts failed, too:\n%s", r.stderr)
	}
}

// twoInstalls starts a second install while the first is at work, with the same and with another work directory.
func (th *thread) twoInstalls(t *testing.T) {
	other := filepath.Join(t.TempDir(), "work")
	var second []result
	first := th.site(t, "install", "--json", "--tags", "hosts,registry,cri")
	first.Stderr = lines(func(line []byte) {
		var e struct{ Task, State string }
		if json.Unmarshal(line, &e) == nil && e.Task == "hosts-file" && e.State == "done" && second == nil {
			second = append(second, run(t, th.site(t, "install")), run(t, th.site(t, "install", "--work-dir", other)))
		}
	})
	if err := first.Run(); err != nil {
		t.Error("the first one:", err)
	}
	if len(second) != 2 {
		t.Fatal("the second one was not started")
	}
	for i, want := range []string{"work directory", "is locked by root on "} {
		if r := second[i].must(t, 17); !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "since 20") {
			t.Errorf("want who and since when, got\n%s", r.stderr)
		}
	}
}

// workerLost pulls host3's cable when its kubelet is installed.
func (th *thread) workerLost(t *testing.T) {
	h := th.lab.Hosts[2]
	cmd := th.site(t, "install", "--json", "--phase", "init,install", "--tags",
		"hosts,registry,cri,kubernetes,network,dns")
	pulled := false
	var errs strings.Builder
	cmd.Stderr = io.MultiWriter(&errs, lines(func(line []byte) {
		var e struct{ Task, State, Host string }
		if json.Unmarshal(line, &e) == nil && e.Task == "kubelet" && e.Host == h.Name && e.State == "started" &&
			!pulled {
			pulled = true
			if err := th.lab.Link(t.Context(), h, false); err != nil {
				t.Error(err)
			}
		}
	}))
	begin := time.Now()
	_ = cmd.Run() // its exit code is looked at
	if err := th.lab.Link(t.Context(), h, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host answers again", func() bool { return th.lab.SSH(t.Context(), h, "true").Run() == nil })
	if code := cmd.ProcessState.ExitCode(); !pulled || code != 13 || !strings.Contains(errs.String(), h.Name) {
		t.Fatalf("cable pulled: %v; exit code %d, want 13 and the host's name\n%s", pulled, code, errs.String())
	}
	th.waitFor(t, 2*time.Minute, "host1 and host2 are nodes, and no other", 1,
		`[ "$(kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes --output='jsonpath={.items[*].metadata.name}')" = "host1 host2" ]`)
	t.Logf("after %s\n%s", time.Since(begin).Round(time.Second), errs.String())
}

func (th *thread) killedOften(t *testing.T) {
	for _, task := range []string{"containerd", "kubelet", "join-worker", "flannel"} {
		th.killAt(t, task)
	}
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("%s\n%s", r.took.Round(time.Second), r.stderr)
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

// deletedAndAdded kills a deletion while pods leave, and continues it; then the host becomes a node again.
func (th *thread) deletedAndAdded(t *testing.T) {
	kill := th.deletion(t, "--json", "host3")
	killed := false
	kill.Stderr = lines(func(line []byte) {
		var e struct{ Phase, Task, State string }
		if json.Unmarshal(line, &e) == nil && e.Phase == "delete" && e.Task == "drain" && e.State == "started" &&
			!killed {
			killed = true
			_ = kill.Process.Kill()
		}
	})
	if err := kill.Run(); err == nil || !killed {
		t.Fatalf("the deletion was not killed: %v", err)
	}
	r := run(t, th.deletion(t, "host3")).must(t, 0)
	t.Logf("deleted: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if nodes := th.kubectl(t, "get nodes --no-headers"); strings.Contains(nodes, "host3") {
		t.Errorf("it is still a node:\n%s", nodes)
	}
	if left := th.on(t, 3, "ls -d /etc/kubernetes /var/lib/kkbundle /etc/containerd /usr/local/bin/kube* 2>/dev/null; grep kkbundle /etc/hosts; true"); left != "" {
		t.Errorf("host3 still has\n%s", left)
	}
	if text := th.on(t, 2, "cat /etc/hosts"); strings.Contains(text, "host3") {
		t.Errorf("host2 still knows it:\n%s", text)
	}
	r = run(t, th.site(t, "nodes add", "--yes", "host3")).must(t, 0)
	t.Logf("added: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if nodes := th.kubectl(t, "get nodes --no-headers"); strings.Count(nodes, " Ready ") != 3 {
		t.Errorf("want three nodes, got\n%s", nodes)
	}
}

// deletion is nodes delete; its bundle comes last, after the hosts.
func (th *thread) deletion(t *testing.T, flags ...string) *exec.Cmd {
	t.Helper()
	return th.site(t, "nodes delete", append([]string{"--yes", "--drain-timeout", "2m"}, flags...)...)
}

func (th *thread) gone(t *testing.T) {
	h := th.lab.Hosts[2]
	if err := th.lab.Link(t.Context(), h, false); err != nil {
		t.Fatal(err)
	}
	r := run(t, th.deletion(t, "host3")).must(t, 13)
	if !strings.Contains(r.stderr, "host3") {
		t.Errorf("want its name, got\n%s", r.stderr)
	}
	r = run(t, th.deletion(t, "--unreachable", "host3")).must(t, 12)
	if !strings.Contains(r.stderr, "host3 cannot be deleted: it is not gone") {
		t.Errorf("the cluster has not noticed yet, and it said\n%s", r.stderr)
	}
	th.waitFor(t, 2*time.Minute, "host3 is missed", 1,
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get node host3 --no-headers | grep NotReady")
	r = run(t, th.site(t, "install")).must(t, 13)
	if !strings.Contains(r.stderr, "kkbundle nodes delete --unreachable host3") {
		t.Errorf("install does not say what to do, but\n%s", r.stderr)
	}
	run(t, th.deletion(t, "--unreachable", "host3")).must(t, 0)
	if nodes := th.kubectl(t, "get nodes --no-headers"); strings.Contains(nodes, "host3") {
		t.Errorf("it is still a node:\n%s", nodes)
	}
	if err := th.lab.Link(t.Context(), h, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host answers again", func() bool { return th.lab.SSH(t.Context(), h, "true").Run() == nil })
	if err := th.lab.WriteInventory(th.inventory, hosts.Groups{
		"kube_control_plane": {1}, "etcd": {1},
		"image_registry": {1}, "kube_worker": {2, 3},
	}); err != nil {
		t.Fatal(err)
	}
	run(t, th.site(t, "reset", "--yes", "--limit", "host3")).must(t, 0)
	if left := th.on(t, 3, "ls -d /etc/kubernetes /var/lib/kkbundle 2>/dev/null; true"); left != "" {
		t.Errorf("host3 still has\n%s", left)
	}
}

func (th *thread) mustStay(t *testing.T) {
	r := run(t, th.deletion(t, "host1")).must(t, 12)
	if !strings.Contains(r.stderr, "host1 cannot be deleted") {
		t.Errorf("got\n%s", r.stderr)
	}
	th.on(t, 3, "mkdir -p /var/lib/rancher/k3s/server/tls")
	r = run(t, th.site(t, "nodes add", "--yes", "--force")).must(t, 12)
	if !strings.Contains(r.stderr, "host3 belongs to a cluster that kkbundle has not made") {
		t.Errorf("got\n%s", r.stderr)
	}
}
