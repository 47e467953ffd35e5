package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/vm"
)

// virtual is a thread whose hosts are virtual machines.
type virtual struct {
	*thread
	machines *vm.Lab
}

// startVM is start with virtual machines. They run only where make vm-e2e asks for them: they are 15 times slower
// than hosts in namespaces.
func startVM(t *testing.T, want scenario, memory int, kernelArgs string) *virtual {
	t.Helper()
	edit := want.edit
	want.edit = func(t *testing.T, dir string) {
		plainCluster(t, dir)
		if edit != nil {
			edit(t, dir)
		}
	}
	return bootVM(t, want, runtime.GOARCH, vm.Options{Memory: memory, KernelArgs: kernelArgs})
}

// bootVM is startVM with machines of an architecture, and with hosts in namespaces beside them if the options name
// some.
func bootVM(t *testing.T, want scenario, arch string, o vm.Options) *virtual {
	t.Helper()
	if testing.Short() || os.Getenv("KKBUNDLE_VM") == "" {
		t.Skip("virtual machines take half an hour; see make vm-e2e")
	}
	var err error
	if o.Image, err = vm.Build(t.Context(), arch, os.Stderr); err != nil {
		t.Fatalf("this machine cannot run virtual machines: %v", err)
	}
	th, made := connect(t, want)
	begin := time.Now()
	o.State, o.Hosts, o.Groups, o.Log = filepath.Join(t.TempDir(), "lab"), want.hosts, want.groups, os.Stderr
	if len(o.Containers) > 0 {
		o.RootFS = made.RootFS
	}
	machines, err := vm.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("boot: %s", time.Since(begin).Round(time.Second))
	downAtEnd(t, machines.Down)
	th.lab, th.inventory, th.kind = machines.Lab, machines.InventoryFile(), results.Machines
	th.noteSystems(t)
	return &virtual{th, machines}
}

// plainCluster takes out of cluster.yaml what only hosts in namespaces need.
func plainCluster(t *testing.T, dir string) {
	t.Helper()
	rewrite(t, filepath.Join(dir, "cluster.yaml"),
		"  kubelet: {failCgroupV1: false}\n", "",
		"  kubeProxy:\n    conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n",
		"")
}

// allInOne is an inventory of one host for everything.
func allInOne() hosts.Groups {
	return hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}, "etcd": {1}, "image_registry": {1}}
}

// TestVMAllInOne is a cluster of one machine with Debian's own kernel, cgroup v2 and a real boot.
func TestVMAllInOne(t *testing.T) {
	v := startVM(t, scenario{hosts: 1, groups: allInOne()}, 4096, "")
	v.nodes, v.pristine = 1, v.traces(t)
	steps(t, []step{
		{"build", v.makeBundle},
		{"precheck finds nothing that blocks", func(t *testing.T) {
			r := run(t, v.site(t, "precheck")).must(t, 0)
			t.Logf("precheck: %s\n%s", r.took.Round(100*time.Millisecond), r.stdout)
		}},
		{"install ends verified", v.installMachine},
		{"a rerun changes nothing", func(t *testing.T) {
			r := run(t, v.site(t, "install")).must(t, 0)
			t.Logf("rerun: %s", r.took.Round(time.Second))
			if !strings.Contains(r.stderr, "0 changed") {
				t.Errorf("want 0 changed, got\n%s", r.stderr)
			}
		}},
		{"after a power cut the cluster is back by itself", func(t *testing.T) {
			h := v.lab.Hosts[0]
			if err := v.machines.Kill(h); err != nil {
				t.Fatal(err)
			}
			v.comesBack(t, func() error { return v.machines.Start(t.Context(), h) })
		}},
		{"after a reboot the cluster is back by itself", func(t *testing.T) {
			v.comesBack(t, func() error { return v.machines.Reboot(t.Context(), v.lab.Hosts[0]) })
		}},
		{"reset leaves what was there", v.resets},
		{"no packet left the machine's network", v.packets},
	})
}

// TestVMIPVS is a cluster of one machine with kube-proxy in mode ipvs, for which the kernel of the hosts in
// namespaces has no modules.
func TestVMIPVS(t *testing.T) {
	v := startVM(t, scenario{hosts: 1, groups: allInOne(), edit: func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "cluster.yaml"), "kubernetes:\n", "kubernetes:\n  proxyMode: ipvs\n")
	}}, 4096, "")
	v.nodes, v.pristine = 1, v.traces(t)
	steps(t, []step{
		{"build", v.makeBundle},
		{"install ends verified", v.installMachine},
		{"Services are virtual servers of the kernel, and answer", v.virtualServers},
		{"reset leaves what was there", v.resets},
		{"no packet left the machine's network", v.packets},
	})
}

func (v *virtual) virtualServers(t *testing.T) {
	servers := v.on(t, 1, "ipvsadm --list --numeric")
	for _, want := range []string{"TCP  10.233.0.1:443 rr", "TCP  10.250.0.11:30080 rr"} {
		if !strings.Contains(servers, want) {
			t.Errorf("no %q in\n%s", want, servers)
		}
	}
	if n := v.on(t, 1, "iptables-save | grep -c KUBE-SVC; true"); n != "0\n" {
		t.Errorf("iptables has %s rules for Services", n)
	}
	v.answers(t)
	if out, err := v.fromPod(t, "get http://web.web.svc.cluster.local/"); err != nil {
		t.Errorf("a pod does not get the application by its name: %v\n%s", err, out)
	}
}

func (v *virtual) resets(t *testing.T) {
	r := run(t, v.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	t.Logf("reset: %s", r.took.Round(time.Second))
	if after := v.traces(t); after != v.pristine {
		t.Errorf("the reset did not make the host what it was:\n%s", difference(v.pristine, after))
	}
}

func (v *virtual) installMachine(t *testing.T) {
	v.installs(t)
	if group := v.on(t, 1, "stat -f -c %T /sys/fs/cgroup"); group != "cgroup2fs\n" {
		t.Errorf("/sys/fs/cgroup is %q, want cgroup v2", group)
	}
}

// installs installs, and waits until the cluster is healthy.
func (v *virtual) installs(t *testing.T) {
	t.Helper()
	v.installed(t)
	v.status(t)
}

// installed installs until the installation is verified.
func (v *virtual) installed(t *testing.T) {
	t.Helper()
	// kubeadm gives a control plane ten minutes to start, and the proof of the network its pods two. On a busy
	// machine that may be too little: the next run continues.
	const runs, kubeadmFailed, unhealthy = 4, 16, 23
	var r result
	for n := range runs {
		r = run(t, v.site(t, "install"))
		t.Logf("install, run %d: exit code %d after %s\n%s", n+1, r.code, r.took.Round(time.Second), r.stderr)
		if r.code != kubeadmFailed && r.code != unhealthy {
			break
		}
	}
	r.must(t, 0)
}

// status asks until the cluster is healthy, seldom: each question takes an emulated machine half a minute of work.
// Beside others on two processors it has needed more than 15 minutes.
func (v *virtual) status(t *testing.T) {
	t.Helper()
	var r result
	for deadline := time.Now().Add(30 * time.Minute); time.Now().Before(deadline); time.Sleep(30 * time.Second) {
		if r = run(t, v.site(t, "status")); r.code == 0 {
			return
		}
	}
	t.Fatalf("the cluster is not healthy: exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
}

// comesBack starts a host and waits until its cluster is healthy and its application answers.
func (v *virtual) comesBack(t *testing.T, boot func() error) {
	t.Helper()
	begin := time.Now()
	if err := boot(); err != nil {
		t.Fatal(err)
	}
	booted := time.Since(begin)
	v.status(t)
	t.Logf("boot: %s; healthy after %s", booted.Round(time.Second), time.Since(begin).Round(time.Second))
	v.waitFor(t, 5*time.Minute, "the application answers", 1, "curl -fsS --max-time 5 http://"+v.lab.Hosts[0].Address+
		":30080/")
}
