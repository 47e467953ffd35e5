package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A fault is something wrong with a host. The precheck must find it, and nothing else because of it.
type fault struct {
	name        string
	host        int // where it is planted; 0 is both
	plant, undo string
	found       []string // HOST/CHECK
}

// faults are those that a host of the lab can have for itself. The lab's README lists what it can't.
func faults() []fault {
	return []fault{
		{
			"a port is taken", 2,
			"systemd-run --quiet --unit=taken-port --collect socat TCP-LISTEN:10250,fork,reuseaddr /dev/null; for i in $(seq 50); do ss -ltnH | grep -q :10250 && break; sleep 0.1; done",
			"systemctl stop taken-port",
			[]string{"host2/ports"},
		},
		{
			"files of an earlier control plane", 1,
			"mkdir -p /etc/kubernetes/manifests && touch /etc/kubernetes/manifests/kube-apiserver.yaml",
			"rm -r /etc/kubernetes",
			[]string{"host1/leftovers"},
		},
		{
			"data of an earlier etcd", 1, "mkdir -p /var/lib/etcd/member/snap", "rm -r /var/lib/etcd/member",
			[]string{"host1/leftovers"},
		},
		{
			"another pod network", 2,
			"mkdir -p /etc/cni/net.d && echo '{}' > /etc/cni/net.d/05-other.conflist", "rm -r /etc/cni/net.d",
			[]string{"host2/cni-config"},
		},
		{
			"a bridge of an earlier pod network", 2, "ip link add cni0 type bridge", "ip link del cni0",
			[]string{"host2/leftovers-network"},
		},
		{
			"a proxy", 2, "echo http_proxy=http://10.250.0.99:3128 >> /etc/environment",
			"sed -i /http_proxy/d /etc/environment",
			[]string{"host2/proxy"},
		},
		{
			"a firewall", 1,
			`printf '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n' > /etc/systemd/system/firewalld.service && systemctl start firewalld`,
			"systemctl stop firewalld; rm /etc/systemd/system/firewalld.service; systemctl daemon-reload",
			[]string{"host1/firewall"},
		},
		{
			"another container runtime", 2,
			`printf '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n' > /etc/systemd/system/docker.service && systemctl start docker`,
			"systemctl stop docker; rm /etc/systemd/system/docker.service; systemctl daemon-reload",
			[]string{"host2/runtime"},
		},
		{
			"a packet filter on one port", 2, "iptables -I INPUT -p tcp --dport 10250 -j DROP",
			"iptables -D INPUT -p tcp --dport 10250 -j DROP",
			[]string{"host1/links"},
		},
		{
			"one machine id", 0,
			"cp /etc/machine-id /root/own-id && echo 0123456789abcdef0123456789abcdef > /etc/machine-id",
			"cat /root/own-id > /etc/machine-id && rm /root/own-id",
			[]string{"host1/machine-unique", "host2/machine-unique"},
		},
		{
			"a filesystem whose programs do not run", 1, "mkdir -p /opt && mount -t tmpfs -o noexec tmpfs /opt",
			"umount /opt",
			[]string{"host1/filesystems"},
		},
		{
			"programs in /tmp do not run", 2, "mount -t tmpfs -o noexec tmpfs /tmp", "umount /tmp",
			[]string{"host2/tmp-exec"},
		},
		{
			"a small disk", 2, "mkdir -p /var/lib/containerd && mount -t tmpfs -o size=10m tmpfs /var/lib/containerd",
			"umount /var/lib/containerd",
			[]string{"host2/disk"},
		},
		{
			"another distribution", 1,
			`cp -P /etc/os-release /root/own-release && rm /etc/os-release && printf 'ID=void\nPRETTY_NAME=Void\n' > /etc/os-release`, "mv /root/own-release /etc/os-release",
			[]string{"host1/os"},
		},
		{
			"smaller packets", 2, "ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500",
			[]string{"host1/mtu", "host1/path-mtu"},
		},
		{
			"a name that leads elsewhere", 1, "echo 10.250.0.99 host2 >> /etc/hosts",
			"sed -i /10.250.0.99/d /etc/hosts",
			[]string{"host1/hosts-file"},
		},
	}
}

// faults plants faults on healthy hosts, one by one and all at once.
func (th *thread) faults(t *testing.T) {
	healthy := th.findings(t)
	var all, found []string
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			defer th.plant(t, f)()
			if diff := cmp.Diff(th.besides(t, healthy), f.found); diff != "" {
				t.Errorf("found (-got +planted):\n%s", diff)
			}
		})
		all, found = append(all, f.name), append(found, f.found...)
	}
	t.Run("all of them", func(t *testing.T) {
		for _, f := range faults() {
			defer th.plant(t, f)()
		}
		slices.Sort(found)
		if diff := cmp.Diff(th.besides(t, healthy), slices.Compact(found)); diff != "" {
			t.Errorf("found (-got +planted):\n%s\nplanted: %s", diff, strings.Join(all, ", "))
		}
	})
	if diff := cmp.Diff(th.findings(t), healthy); diff != "" {
		t.Errorf("when all was undone (-got +before):\n%s", diff)
	}
}

// plant plants a fault and returns what takes it away again.
func (th *thread) plant(t *testing.T, f fault) (undo func()) {
	t.Helper()
	on := func(line string) {
		for number := 1; number <= 2; number++ {
			if f.host == 0 || f.host == number {
				th.on(t, number, line)
			}
		}
	}
	on(f.plant)
	return func() { on(f.undo) }
}

// besides returns what the precheck finds now and not on healthy hosts.
func (th *thread) besides(t *testing.T, healthy []string) []string {
	t.Helper()
	return slices.DeleteFunc(th.findings(t), func(f string) bool { return slices.Contains(healthy, f) })
}

// findings returns HOST/CHECK for everything that the precheck finds, sorted.
func (th *thread) findings(t *testing.T) []string {
	t.Helper()
	r := run(t, th.site(t, "precheck", "--json"))
	var report struct {
		Results []struct {
			Host, ID string
			OK       bool
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Results) == 0 {
		t.Fatalf("exit code %d, %v\n%s\n%s", r.code, err, r.stdout, r.stderr)
	}
	var list []string
	for _, one := range report.Results {
		if !one.OK && one.ID != "etcd-latency" { // that is the machine's disk
			list = append(list, one.Host+"/"+one.ID)
		}
	}
	slices.Sort(list)
	return list
}
