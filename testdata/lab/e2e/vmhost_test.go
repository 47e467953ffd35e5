package e2e

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestVMHost is one machine without a cluster: what the precheck finds and the first phase of an installation changes
// where the kernel, its clock and its swap are the host's own.
func TestVMHost(t *testing.T) {
	v := startVM(t, scenario{hosts: 1, noCluster: true, groups: allInOne(), edit: func(t *testing.T, dir string) {
		file := filepath.Join(dir, "cluster.yaml")
		rewrite(t, file, "kubernetes:\n", "time: {servers: [10.250.0.1]}\nkubernetes:\n  proxyMode: ipvs\n")
		// The provisioner is no module, so the bundle lacks it: with this cluster file only the tasks of NFS run.
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, map[string]string{"nfs.yaml": strings.Replace(string(data), "addons:\n",
			"storage: {nfs: true}\naddons:\n", 1)})
	}}, 2048, "")
	v.nodes = 1
	v.on(t, 1, `fallocate -l 128M /swapfile && chmod 600 /swapfile && mkswap /swapfile &&
		printf '[Swap]\nWhat=/swapfile\n[Install]\nWantedBy=swap.target\n' > /etc/systemd/system/swapfile.swap && systemctl enable --now swapfile.swap`)
	v.pristine = v.traces(t)
	v.makeBundle(t)
	v.timeServer(t)
	steps(t, []step{
		{
			"precheck finds swap, a clock that is behind, and a kernel whose modules an upgrade has removed",
			v.kernelFaults,
		},
		{"a disk that stops answering is named, and the run goes on when it answers", v.stalls},
		{"the first phase has switched swap off, set the clock and loaded modules", v.firstPhase},
		{"NFS: the server exports, and the host mounts it", v.exports},
		{"after a power cut the host is as it was made", v.keepsSettings},
		{"reset gives back swap, time sources and exports", v.givesBack},
	})
}

// timeServer lets the machine that installs give the time, as a site's own server would.
func (v *virtual) timeServer(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	conf := "local stratum 8\nallow 10.250.0.0/24\nbindcmdaddress /\ncmdport 0\nuser root\npidfile " + dir +
		"/pid\ndriftfile " + dir + "/drift\n"
	write(t, dir, map[string]string{"chrony.conf": conf})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	// -x leaves this machine's clock alone
	cmd := v.lab.Command(ctx, "chronyd", "-x", "-d", "-f", filepath.Join(dir, "chrony.conf"))
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
	})
}

// checks returns the ids of the checks that found something on the host.
func (v *virtual) checks(t *testing.T) []string {
	t.Helper()
	var ids []string
	for _, f := range v.findings(t) {
		ids = append(ids, strings.TrimPrefix(f, "host1/"))
	}
	return ids
}

func (v *virtual) kernelFaults(t *testing.T) {
	v.on(t, 1, `mv "/lib/modules/$(uname -r)" /root/modules`)
	if err := v.machines.Pause(t.Context(), v.lab.Hosts[0], 20*time.Second); err != nil {
		t.Fatal(err)
	}
	got := v.checks(t)
	v.on(t, 1, `mv /root/modules "/lib/modules/$(uname -r)"`)
	for _, want := range []string{"swap", "clock", "modules", "time-sync"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s was not found; the precheck found %q", want, got)
		}
	}
}

// These commands put kkbundle's directory on a device of its own, suspend and resume the device, and give the
// directory back to the root file system. A suspended device queues every request, as a disk does that has lost its
// cable.
const (
	slowDisk = `set -e; truncate -s 512M /root/disk; loop=$(losetup -f --show /root/disk); mkfs.ext4 -q "$loop"
		echo "0 $(blockdev --getsz "$loop") linear $loop 0" | dmsetup create site; mkdir /var/lib/kkbundle; mount /dev/mapper/site /var/lib/kkbundle`
	stopDisk  = "dmsetup suspend --noflush --nolockfs site"
	startDisk = "dmsetup resume site"
	ownDisk   = `set -e; cp -a /var/lib/kkbundle /root/kkbundle; umount /var/lib/kkbundle; rmdir /var/lib/kkbundle; mv /root/kkbundle /var/lib/kkbundle
		rmdir /var/lib/kkbundle/lost+found; dmsetup remove site; losetup -d "$(losetup -j /root/disk -O NAME -n)"; rm /root/disk`
)

// stalls runs the first phase while the disk below kkbundle's files does not answer: from the beginning, and from its
// first task on.
func (v *virtual) stalls(t *testing.T) {
	v.on(t, 1, slowDisk)
	v.on(t, 1, stopDisk)
	r := run(t, v.site(t, "install", "--tags", "hosts"))
	v.on(t, 1, startDisk)
	t.Logf("a disk that does not answer: exit code %d after %s\n%s", r.code, r.took.Round(time.Second), r.stderr)
	if r.code == 0 || !strings.Contains(r.stderr, "host1") ||
		!strings.Contains(r.stderr, "the host hangs: check its load, memory and disks") {
		t.Error("the host that hangs is not named")
	}

	const silent = "silent for 2m"
	var errs bytes.Buffer
	stopped, told := false, false
	disk := func(line string) { // not v.on, because it does not run in the test's goroutine
		if out, err := v.lab.SSH(t.Context(), v.lab.Hosts[0], line).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	cmd := v.site(t, "install", "--json", "--tags", "hosts")
	cmd.Stderr = io.MultiWriter(&errs, lines(func(data []byte) {
		switch e := eventOf(data); {
		case e.Host == "host1" && e.Task != "" && e.State == "started" && !stopped:
			stopped = true
			disk(stopDisk)
		case strings.Contains(string(data), silent) && !told:
			told = true
			disk(startDisk)
		}
	}))
	begin := time.Now()
	limit := time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Kill() })
	err := cmd.Run()
	limit.Stop()
	t.Logf("a disk that stops answering: %v after %s\n%s", err, time.Since(begin).Round(time.Second), errs.String())
	if err != nil || !stopped || !told {
		t.Errorf("want a command that is %q and then done", silent)
	}
	v.on(t, 1, startDisk+"; "+ownDisk)
}

func (v *virtual) firstPhase(t *testing.T) {
	r := run(t, v.site(t, "install", "--tags", "hosts")).must(t, 0)
	t.Logf("first phase: %s\n%s", r.took.Round(time.Second), r.stderr)
	v.waitFor(t, 3*time.Minute, "the clock is synchronised", 1,
		"chronyc tracking | grep -q 'Leap status.*Normal' && chronyc -n sources | grep -qF '^* 10.250.0.1'")
	if got := v.checks(t); slices.Contains(got, "clock") || slices.Contains(got, "time-sync") ||
		slices.Contains(got, "swap") {
		t.Errorf("the precheck still finds %q", got)
	}
	v.nodeSettings(t)
}

// nodeSettings looks at what a node needs of its kernel.
func (v *virtual) nodeSettings(t *testing.T) {
	t.Helper()
	if out := v.on(t, 1, "tail -n +2 /proc/swaps; sysctl -n net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables"); out != "1\n1\n" {
		t.Errorf("want no swap, forwarding and bridges that ask iptables, got\n%s", out)
	}
	loaded := strings.Fields(v.on(t, 1, "lsmod | awk '{print $1}'"))
	for _, want := range []string{"ip_vs", "ip_vs_rr", "br_netfilter", "overlay", "nf_conntrack"} {
		if !slices.Contains(loaded, want) {
			t.Errorf("the module %s is not loaded", want)
		}
	}
}

func (v *virtual) exports(t *testing.T) {
	groups := allInOne()
	groups["nfs"] = []int{1}
	inventory := filepath.Join(filepath.Dir(v.inventory), "nfs-inventory.yaml")
	if err := v.lab.WriteInventory(inventory, groups); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(inventory, v.inventory); err != nil { // the same work directory
		t.Fatal(err)
	}
	run(t, v.site(t, "install", "--tags", "nfs-server,nfs-client", "-c", filepath.Join(v.dir, "nfs.yaml"))).must(t, 0)
	v.on(t, 1, `mkdir -p /mnt/volume && mount -t nfs 10.250.0.11:/srv/nfs/kubernetes /mnt/volume && grep -q ' /mnt/volume nfs4 ' /proc/mounts &&
		echo data > /mnt/volume/file && umount /mnt/volume && grep -q data /srv/nfs/kubernetes/file`)
}

func (v *virtual) keepsSettings(t *testing.T) {
	h := v.lab.Hosts[0]
	v.on(t, 1, "sync")
	if err := v.machines.Kill(h); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := v.machines.Start(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	t.Logf("boot: %s", time.Since(begin).Round(time.Second))
	v.waitFor(t, 3*time.Minute, "the host has booted", 1, "systemctl is-system-running --wait")
	v.nodeSettings(t)
	v.on(t, 1, "mount -t nfs 10.250.0.11:/srv/nfs/kubernetes /mnt/volume && cat /mnt/volume/file && umount /mnt/volume")
}

func (v *virtual) givesBack(t *testing.T) {
	r := run(t, v.site(t, "reset", "--yes", "--with-data", "-c", filepath.Join(v.dir, "nfs.yaml"))).must(t, 0)
	t.Logf("reset: %s", r.took.Round(time.Second))
	if out := v.on(t, 1, "tail -n +2 /proc/swaps; exportfs"); !strings.HasPrefix(out, "/swapfile") ||
		strings.Contains(out, "/srv/nfs") {
		t.Errorf("want swap on and no export, got\n%s", out)
	}
	if after := v.traces(t); after != v.pristine {
		t.Errorf("the reset did not make the host what it was:\n%s", difference(v.pristine, after))
	}
}
