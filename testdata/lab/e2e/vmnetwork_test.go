package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVMNetwork is a cluster on a machine whose interface belongs to NetworkManager, behind firewalld and then ufw.
// Both are opened by the commands that the precheck names, word by word.
func TestVMNetwork(t *testing.T) {
	v := startNetwork(t)
	steps(t, append(v.behindFirewalld(),
		step{"firewalld without the pods' network keeps pods from the host, until it is reloaded", v.closesFirewalld},
		step{"ufw takes firewalld's place: pods do not reach the host until it is opened", v.changesToUFW},
		step{"no packet left the machine's network", v.packets},
	))
}

// TestVMNetworkBoots boots such a machine with firewalld, changes kube-proxy to nftables behind ufw, cuts its power
// behind nftables.service, and resets it.
func TestVMNetworkBoots(t *testing.T) {
	v := startNetwork(t)
	steps(t, append(v.behindFirewalld(),
		step{"after a reboot all is back by itself, behind firewalld", v.bootsAgain},
		step{"ufw takes firewalld's place", v.changesToUFW},
		step{"kube-proxy changes to nftables, behind ufw", v.changesProxy},
		step{
			"nftables.service takes ufw's place, with a policy to drop; after a power cut all is back by itself",
			v.changesToNFTables,
		},
		step{"reset leaves what the operator wrote", v.leavesOperators},
		step{"no packet left the machine's network", v.packets},
	))
}

func startNetwork(t *testing.T) *virtual {
	t.Helper()
	v := startVM(t, scenario{hosts: 1, groups: allInOne(), edit: func(t *testing.T, dir string) {
		data, err := os.ReadFile(filepath.Join(dir, "cluster.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, map[string]string{"nftables.yaml": strings.Replace(string(data), "kubernetes:\n",
			"kubernetes:\n  proxyMode: nftables\n", 1)})
	}}, 4096, "")
	v.nodes = 1
	v.serveOutside(t)
	return v
}

func (v *virtual) behindFirewalld() []step {
	return []step{
		{"build", v.makeBundle},
		{"NetworkManager and firewalld begin with the next boot", v.managed},
		{
			"precheck names commands that open firewalld, and is content after them",
			func(t *testing.T) { v.opens(t, "firewalld") },
		},
		{"install ends verified", v.installed},
		{"NetworkManager leaves pods' interfaces and the operator's alone", v.unmanaged},
		{"the application answers, and pods reach hosts and what is outside", v.reaches},
	}
}

// outside is an address that is no host of the cluster.
const outside = "10.250.0.1:8099"

// serveOutside runs a server beside the hosts. Its answer is the client's address.
func (v *virtual) serveOutside(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := v.lab.Command(ctx, filepath.Join(v.bin, "labapp"), "serve", outside)
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
	})
}

// managed gives the interface to NetworkManager, whose configuration has a list of the operator's in a file that is
// read after kkbundle's.
func (v *virtual) managed(t *testing.T) {
	v.on(t, 1, `set -e
		cat > /etc/NetworkManager/system-connections/site.nmconnection <<-EOF
		[connection]
		id=site
		type=ethernet
		interface-name=eth0
		[ipv4]
		method=manual
		address1=10.250.0.11/24
		[ipv6]
		method=disabled
		EOF
		chmod 600 /etc/NetworkManager/system-connections/site.nmconnection
		printf '[keyfile]\nunmanaged-devices=interface-name:op*\n' > /etc/NetworkManager/conf.d/site.conf
		printf '[Unit]\nBefore=NetworkManager.service\n[Service]\nType=oneshot\nExecStart=/bin/sh -c "ip link add op0 type dummy; ip addr add 192.0.2.1/32 dev op0; ip link set op0 up"\n[Install]\nWantedBy=multi-user.target\n' \
			> /etc/systemd/system/site-link.service
		printf '#!/bin/sh\nwhile read -r line && [ ${#line} -gt 1 ]; do :; done\nprintf "HTTP/1.0 200 OK\\r\\n\\r\\nthe host\\n"\n' > /root/answer && chmod 755 /root/answer
		printf '[Service]\nExecStart=/usr/bin/socat TCP-LISTEN:8099,fork,reuseaddr EXEC:/root/answer\n[Install]\nWantedBy=multi-user.target\n' \
			> /etc/systemd/system/site-server.service
		rm /etc/systemd/network/10-lab.network
		systemctl disable systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service
		systemctl enable NetworkManager.service firewalld.service site-link.service site-server.service`)
	if err := v.machines.Reboot(t.Context(), v.lab.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	v.waitFor(t, 5*time.Minute, "firewalld and NetworkManager run, networkd does not", 1,
		`systemctl is-active firewalld NetworkManager && ! systemctl is-active systemd-networkd && nmcli -t -f DEVICE,STATE device | grep -x eth0:connected && firewall-cmd --state`)
}

// firewall returns the precheck's verdict on the host's firewalls.
func (v *virtual) firewall(t *testing.T) (ok bool, found, fix string) {
	t.Helper()
	r := run(t, v.site(t, "precheck", "--json", "--only", "firewall"))
	var report struct {
		Checks  []struct{ ID, Fix string } // its remedy, where that of each host is the same
		Results []struct {
			ID, Found, Fix string
			OK             bool
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("exit code %d, %v\n%s\n%s", r.code, err, r.stdout, r.stderr)
	}
	for _, one := range report.Checks {
		if one.ID == "firewall" {
			fix = one.Fix
		}
	}
	for _, one := range report.Results {
		if one.ID == "firewall" {
			return one.OK, one.Found, cmp.Or(one.Fix, fix)
		}
	}
	t.Fatalf("the precheck does not look for firewalls\n%s\n%s", r.stdout, r.stderr)
	return false, "", ""
}

// opens opens a firewall with the commands of the precheck's remedy.
func (v *virtual) opens(t *testing.T, name string) {
	t.Helper()
	ok, found, fix := v.firewall(t)
	if ok || !strings.HasPrefix(found, name+" does not have") {
		t.Fatalf("%s is closed, and the precheck finds: %t, %s", name, ok, found)
	}
	commands, only := strings.CutSuffix(fix, "; or switch the firewall off")
	if !only {
		t.Fatalf("the remedy is %s", fix)
	}
	for command := range strings.SplitSeq(commands, "; ") {
		t.Logf("%s: %s", command, strings.TrimSpace(v.on(t, 1, command)))
	}
	if ok, found, _ := v.firewall(t); !ok {
		t.Errorf("the remedy's commands ran, and the precheck finds %s", found)
	}
}

// unmanaged looks at the interfaces that NetworkManager manages.
func (v *virtual) unmanaged(t *testing.T) {
	t.Helper()
	const states = "nmcli -t -f DEVICE,STATE device"
	for line := range strings.Lines(v.on(t, 1, states)) {
		name, state, _ := strings.Cut(strings.TrimSpace(line), ":")
		if managed := state != "unmanaged"; managed != (name == "eth0") && name != "lo" {
			t.Errorf("NetworkManager: %s is %s", name, state)
		}
	}
	if out := v.on(t, 1, states); !strings.Contains(out, "op0:") || !strings.Contains(out, "cni0:") ||
		!strings.Contains(out, "flannel.1:") || !strings.Contains(out, "veth") {
		t.Errorf("NetworkManager does not know all interfaces:\n%s", out)
	}
}

// fromPod runs the application's client in one of its pods.
func (v *virtual) fromPod(t *testing.T, args string) (string, error) {
	t.Helper()
	out, err := v.lab.SSH(t.Context(), v.lab.Hosts[0],
		"KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf -n web exec deploy/web -- /labapp "+
			args).CombinedOutput()
	return string(out), err
}

// hostServer is a server on the host that only pods reach: its port is not open.
const hostServer = "http://10.250.0.11:8099/"

// reaches follows packets in all directions that a firewall judges.
func (v *virtual) reaches(t *testing.T) {
	t.Helper()
	v.answers(t)
	for _, url := range []string{"http://web.web.svc.cluster.local/", hostServer, "http://" + outside + "/"} {
		out, err := v.fromPod(t, "get "+url)
		if err != nil {
			t.Errorf("a pod does not get %s: %v\n%s", url, err, out)
		}
		if strings.Contains(url, outside) && !strings.Contains(out, "from 10.250.0.11:") {
			t.Errorf("outside, a pod has another address than its host: %s", out)
		}
	}
	if out, err := v.lab.Command(t.Context(), "curl", "-sS", "--max-time", "5",
		hostServer).CombinedOutput(); err == nil {
		t.Errorf("the host's server answers from outside, so the firewall is not what this test thinks it is: %s", out)
	}
}

// answers waits until the application answers outside of the cluster, through a Service with a port of the node.
func (v *virtual) answers(t *testing.T) {
	t.Helper()
	var out []byte
	var err error
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Second) {
		if out, err = v.lab.Command(t.Context(), "curl", "-fsS", "--max-time", "10",
			"http://10.250.0.11:30080/").CombinedOutput(); err == nil {
			return
		}
	}
	t.Fatalf("the application does not answer from outside: %v\n%s", err, out)
}

// podsAreKept looks whether a firewall keeps pods from the host.
func (v *virtual) podsAreKept(t *testing.T) {
	t.Helper()
	if out, err := v.fromPod(t, "get "+hostServer); err == nil {
		t.Errorf("a closed firewall lets a pod reach the host: %s", out)
	}
}

func (v *virtual) closesFirewalld(t *testing.T) {
	v.on(t, 1, `firewall-cmd --zone=trusted --remove-source=10.233.64.0/18 && firewall-cmd --zone=trusted --remove-interface=cni0`)
	if ok, found, fix := v.firewall(t); ok || found != "firewalld does not have 10.233.64.0/18, cni0" {
		t.Errorf("the precheck finds %t, %s; %s", ok, found, fix)
	}
	v.podsAreKept(t)
	v.on(t, 1, "firewall-cmd --reload")
	v.reaches(t)
}

func (v *virtual) bootsAgain(t *testing.T) {
	v.comesBack(t, func() error { return v.machines.Reboot(t.Context(), v.lab.Hosts[0]) })
	v.reaches(t)
	v.unmanaged(t)
}

func (v *virtual) changesToUFW(t *testing.T) {
	v.on(t, 1, `set -e; systemctl disable --now firewalld.service; ufw allow 22/tcp; systemctl enable --now ufw.service; ufw --force enable`)
	v.podsAreKept(t)
	v.opens(t, "ufw")
	v.reaches(t)
}

func (v *virtual) changesProxy(t *testing.T) {
	r := run(t, v.site(t, "upgrade", "--yes", "-c", filepath.Join(v.dir, "nftables.yaml")))
	t.Logf("upgrade: exit code %d after %s\n%s", r.code, r.took.Round(time.Second), r.stderr)
	r.must(t, 0)
	v.status(t)
	if out := v.on(t, 1, "nft list tables; iptables-save | grep -c KUBE-SVC; true"); !strings.Contains(out,
		"table ip kube-proxy") || !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("want tables of kube-proxy, and no rules of its for iptables:\n%s", out)
	}
	v.reaches(t)
}

// ruleset follows the precheck's words for nftables.service: the networks of pods in input and forward.
const ruleset = `#!/usr/sbin/nft -f
flush ruleset
table inet site {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established,related accept
		iif lo accept
		ip protocol icmp accept
		tcp dport 22 accept
		ip saddr { 10.233.64.0/18, 10.233.0.0/18 } accept
		tcp dport { 6443, 10250, 2379, 2380, 5000 } accept
		udp dport 8472 accept
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		ip saddr { 10.233.64.0/18, 10.233.0.0/18 } accept
		ip daddr { 10.233.64.0/18, 10.233.0.0/18 } accept
	}
}
`

func (v *virtual) changesToNFTables(t *testing.T) {
	v.on(t, 1, "set -e; ufw --force disable; systemctl disable --now ufw.service; systemctl enable nftables.service; cat > /etc/nftables.conf <<'EOF'\n"+ruleset+"EOF")
	v.on(t, 1, "sync")
	if err := v.machines.Kill(v.lab.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	v.comesBack(t, func() error { return v.machines.Start(t.Context(), v.lab.Hosts[0]) })
	if ok, found, fix := v.firewall(t); ok || found != "nftables" ||
		!strings.Contains(fix, "accept 10.233.64.0/18, 10.233.0.0/18 in the chains input and forward of nftables") {
		t.Errorf("the precheck finds %t, %s; %s", ok, found, fix)
	}
	if out := v.on(t, 1, "cat /proc/net/ip_tables_names 2>/dev/null; true"); out != "" {
		t.Errorf("legacy iptables has tables:\n%s", out)
	}
	v.reaches(t)
	v.unmanaged(t)
}

func (v *virtual) leavesOperators(t *testing.T) {
	r := run(t, v.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	t.Logf("reset: %s", r.took.Round(time.Second))
	v.on(t, 1, `set -e; test ! -e /etc/NetworkManager/conf.d/kkbundle.conf; grep -q 'op\*' /etc/NetworkManager/conf.d/site.conf
		nmcli -t -f DEVICE,STATE device | grep -x op0:unmanaged; nft list table inet site; ! nft list tables | grep -E 'kube|flannel'`)
}
