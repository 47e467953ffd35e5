package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestProvided installs two control planes on an etcd and behind a haproxy of the site's own, and loses the first of
// them.
func TestProvided(t *testing.T) {
	const endpoint = "10.250.0.13:8443"
	ca := newCompanyCA(t, "Company etcd")
	th := start(t, scenario{
		hosts:  3,
		groups: hosts.Groups{"kube_control_plane": {1, 2}, "kube_worker": {1, 2}, "image_registry": {2}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}",
				"etcd: {type: provided, endpoints: [\"https://10.250.0.13:2379\"], ca: etcd-ca.crt, cert: etcd.crt, key: etcd.key}\n"+
					"controlPlaneEndpoint: {type: external, address: \""+endpoint+"\"}")
			cert, key := ca.issue(t, "kube-apiserver")
			for name, data := range map[string][]byte{"etcd-ca.crt": ca.pem, "etcd.crt": cert, "etcd.key": key} {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
	})
	with := func(t *testing.T, command string, flags ...string) result {
		t.Helper()
		return run(t, th.site(t, command, append(flags, "-c", filepath.Join(th.dir, "cluster.yaml"))...))
	}
	steps(t, []step{
		{"build", th.makeBundle},
		{"the precheck blocks while etcd does not answer", func(t *testing.T) {
			if r := with(t, "precheck").must(t, 12); !strings.Contains(r.stdout, "etcd") {
				t.Errorf("got\n%s", r.stdout)
			}
		}},
		{"install on the site's etcd, behind its haproxy", func(t *testing.T) {
			th.companyEtcd(t, 3, ca)
			th.companyBalancer(t, 3, 1, 2)
			r := with(t, "install").must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
			th.nodesAre(t, 1, "host1", "host2")
		}},
		{
			"the cluster's objects are in that etcd, and nodes use that address",
			func(t *testing.T) { th.usesProvided(t, endpoint) },
		},
		{"a rerun changes nothing", func(t *testing.T) {
			if r := with(t, "install").must(t, 0); !strings.Contains(r.stderr, "0 changed") {
				t.Errorf("want 0 changed, got\n%s", r.stderr)
			}
		}},
		{
			"the first control plane is lost, and the other goes on",
			func(t *testing.T) { th.loseBehindBalancer(t, endpoint) },
		},
		{"reset leaves the site's etcd and haproxy running", func(t *testing.T) {
			with(t, "reset", "--yes", "--with-data").must(t, 0)
			th.on(t, 3, "systemctl is-active company-etcd company-balancer")
		}},
		{"no packet left the hosts' network", th.packets},
	})
}

func (th *thread) usesProvided(t *testing.T, endpoint string) {
	th.sendCommand(t, 3, "etcdctl")
	const get = "/srv/bin/etcdctl --endpoints https://127.0.0.1:2379 --cacert /srv/etcd/ca.crt --cert /srv/etcd/tls.crt --key /srv/etcd/tls.key get --prefix --keys-only /registry/minions/"
	if got := th.on(t, 3, get); !strings.Contains(got, "host1") || !strings.Contains(got, "host2") {
		t.Errorf("etcd has the nodes %q", got)
	}
	for number := range 2 {
		if got := th.on(t, number+1,
			"ls /etc/kubernetes/manifests; grep -h server: /etc/kubernetes/admin.conf"); strings.Contains(got,
			"etcd") || !strings.Contains(got, "https://"+endpoint) {
			t.Errorf("host%d has\n%s", number+1, got)
		}
	}
	// cluster-info and kube-proxy
	if got := th.kubectl(t, "get configmaps --all-namespaces -o yaml"); strings.Count(got, "server: https://"+
		endpoint) < 2 {
		t.Errorf("cluster-info or kube-proxy do not go through the balancer:\n%s", got)
	}
}

// loseBehindBalancer pulls the plug of host1. host2 reaches an API server through the balancer, and its node stays
// ready.
func (th *thread) loseBehindBalancer(t *testing.T, endpoint string) {
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	th.waitFor(t, time.Minute, "host2 reaches an API server", 2,
		"curl -fsS --max-time 5 --cacert /etc/kubernetes/pki/ca.crt https://"+endpoint+"/readyz")
	t.Logf("an API server answers through the balancer after %s", time.Since(begin).Round(100*time.Millisecond))
	th.waitFor(t, 2*time.Minute, "host1 is missed", 2,
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get node host1 --no-headers | grep NotReady")
	th.nodesAre(t, 2, "host2")
	if err := th.lab.Start(t.Context(), th.lab.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	th.waitFor(t, 3*time.Minute, "host1 is back", 2,
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get node host1 --no-headers | grep -w Ready")
}
