package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestRotateCA replaces the certificate authorities of a cluster while an application answers: begun with two kills,
// undone between two stages, begun again, and finished with a kill. At the end the old authorities' clients are
// refused.
func TestRotateCA(t *testing.T) {
	th := start(t, scenario{hosts: 2})
	th.nodes = 2
	stop := func() {}
	steps(t, []step{
		{"a cluster with an application and a client of the API", func(first *testing.T) {
			th.rotationBegins(first)
			stop = th.asked(t) // it goes on in the following steps
		}},
		{"a dry run changes nothing", th.rotationRehearsed},
		{"killed twice, and stopped by pods", th.rotationInterrupted},
		{"other commands are refused", th.refusedMeanwhile},
		{"undone", th.rotationUndone},
		{"begun again", th.authoritiesReplaced},
		{"finished, with a kill", th.rotationFinished},
		{"the application has answered", func(*testing.T) { stop() }},
		{"clients of the old authorities are refused", th.oldClientsRefused},
		{"everything goes on", th.afterRotation},
		{"no packet left the hosts' network", th.packets},
	})
}

// TestRotateCAHA is TestRotateCA with three control planes and a worker that reaches them by haproxy: begun with a
// kill, and finished.
func TestRotateCAHA(t *testing.T) {
	th := start(t, scenario{
		hosts: 4, groups: hosts.Groups{"kube_control_plane": {1, 2, 3}, "kube_worker": {4}, "image_registry": {4}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}", "etcd: {type: internal}\n"+
				haproxyEndpoint)
		},
	})
	th.nodes = 4
	stop := func() {}
	steps(t, []step{
		{"three control planes with an application", func(first *testing.T) {
			th.rotationBegins(first)
			stop = th.asked(t)
		}},
		{"begun, with a kill", func(t *testing.T) {
			killCommandAt(t, th.site(t, "certs rotate-ca", "--restart-workloads", "--yes", "--json"), "authority-issue")
			r := run(t, th.site(t, "certs rotate-ca", "--restart-workloads", "--yes")).must(t, 0)
			t.Logf("issued: %s\n%s", r.took.Round(time.Second), r.stderr)
			th.controlPlanesHave(t, "/etc/kubernetes/pki/kkbundle-ca/new")
		}},
		{"finished, with a kill", th.rotationFinished},
		{"the application has answered", func(*testing.T) { stop() }},
		{"everything goes on", func(t *testing.T) {
			th.controlPlanesHave(t, "/etc/kubernetes/pki")
			th.nodesAre(t, 1, "host1", "host2", "host3", "host4")
			if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
				t.Errorf("want 0 changed, got\n%s", r.stderr)
			}
		}},
	})
}

// controlPlanesHave checks that each API server and each member of etcd has a certificate of the authorities in a
// directory.
func (th *thread) controlPlanesHave(t *testing.T, dir string) {
	t.Helper()
	for number := range 3 {
		at := th.lab.Hosts[number].Address
		th.on(t, number+1, "curl -fsS --max-time 10 --cacert "+dir+"/ca.crt -o /dev/null https://"+at+":6443/readyz")
		for _, name := range []string{"server", "peer"} {
			th.on(t, number+1, "openssl verify -CAfile "+dir+"/etcd/ca.crt /etc/kubernetes/pki/etcd/"+name+".crt")
		}
		th.on(t, number+1, "curl -fsS --max-time 10 --cacert "+dir+
			"/etcd/ca.crt --cert /etc/kubernetes/pki/etcd/healthcheck-client.crt --key /etc/kubernetes/pki/etcd/healthcheck-client.key -o /dev/null https://"+at+":2379/health")
	}
	if members := th.on(t, 1, etcdctl("endpoint health --cluster")); strings.Count(members, "is healthy") != 3 {
		t.Errorf("etcd's members:\n%s", members)
	}
}

const apiClient = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"client","namespace":"clients"},"spec":{"selector":{"matchLabels":{"app":"client"}},
"template":{"metadata":{"labels":{"app":"client"}},"spec":{"containers":[{"name":"c","image":"docker.io/lab/labapp:1"}]}}}}`

func (th *thread) rotationBegins(t *testing.T) {
	th.makeBundle(t)
	run(t, th.site(t, "install")).must(t, 0)
	th.kubectl(t, "create namespace clients")
	th.on(t, 1, "echo '"+apiClient+"' | kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f -")
	th.kubectl(t, "-n clients rollout status deployment/client --timeout=120s")
	th.on(t, 1, "mkdir -m 700 /root/before && cp -a /etc/kubernetes/pki /etc/kubernetes/admin.conf /root/before/")
}

// asked asks the application by both nodes, about ten times a second, until the function it returns is called.
func (th *thread) asked(t *testing.T) (stop func()) {
	t.Helper()
	args := []string{"-c", askAgain, "sh"}
	for _, h := range th.lab.Hosts {
		args = append(args, "http://"+h.Address+":30080/")
	}
	ctx, cancel := context.WithCancel(t.Context())
	answers := ask(t, th.lab.Command(ctx, "sh", args...))
	return func() {
		cancel()
		seen := answers()
		if len(seen) != len(th.lab.Hosts) {
			t.Errorf("questions were asked by %d ways", len(seen))
		}
		for url, g := range seen {
			g.bearable(t, url)
		}
	}
}

func (th *thread) rotationRehearsed(t *testing.T) {
	before := th.on(t, 1, "find /etc/kubernetes -type f | sort | xargs sha256sum")
	r := run(t, th.site(t, "certs rotate-ca", "--dry-run")).must(t, 0)
	t.Logf("dry run: %s\n%s", r.took.Round(time.Second), r.stderr)
	for _, want := range []string{"authority-make", "authority-trust", "authority-issue", "clients/client-"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in the dry run", want)
		}
	}
	if after := th.on(t, 1, "find /etc/kubernetes -type f | sort | xargs sha256sum"); after != before {
		t.Errorf("the dry run changed\n%s", difference(before, after))
	}
}

// servedBy checks that the API server of the host has a certificate of the first authority in a file.
func (th *thread) servedBy(t *testing.T, file string) {
	t.Helper()
	th.on(t, 1, "curl -fsS --max-time 10 --cacert "+file+" -o /dev/null https://"+th.lab.Hosts[0].Address+
		":6443/readyz")
}

func (th *thread) rotationInterrupted(t *testing.T) {
	killCommandAt(t, th.site(t, "certs rotate-ca", "--yes", "--json"), "authority-trust")
	r := run(t, th.site(t, "certs rotate-ca", "--yes")).must(t, 12)
	t.Logf("trusted, and stopped by pods: %s\n%s", r.took.Round(time.Second), r.stderr)
	if !strings.Contains(r.stderr, "clients/client-") || !strings.Contains(r.stderr, "--restart-workloads") {
		t.Errorf("want the pods and what to do, got\n%s", r.stderr)
	}
	th.servedBy(t, "/root/before/pki/ca.crt")
	killCommandAt(t, th.site(t, "certs rotate-ca", "--restart-workloads", "--yes", "--json"), "authority-issue")
}

func (th *thread) authoritiesReplaced(t *testing.T) {
	r := run(t, th.site(t, "certs rotate-ca", "--restart-workloads", "--yes")).must(t, 0)
	t.Logf("issued: %s\n%s", r.took.Round(time.Second), r.stderr)
	th.isIssued(t)
}

// isIssued checks that new certificates are in use, and that the old authority is trusted still.
func (th *thread) isIssued(t *testing.T) {
	t.Helper()
	th.servedBy(t, "/etc/kubernetes/pki/kkbundle-ca/new/ca.crt")
	if out := th.on(t, 1, "kubectl --kubeconfig /root/before/admin.conf get --raw=/readyz 2>&1; true"); strings.Contains(out, "ok") {
		t.Error("a client that trusts the old authority only trusts a server of the new one")
	}
	th.on(t, 1, "cp /root/before/admin.conf /root/before/both.conf; export KUBECONFIG=/root/before/both.conf; "+
		`kubectl config set-cluster "$(kubectl config view --output=jsonpath='{.clusters[0].name}')" --embed-certs --certificate-authority=/etc/kubernetes/pki/ca.crt; kubectl get nodes`)
	for number := range 2 {
		if got := th.on(t, number+1, "grep -c BEGIN /etc/kubernetes/pki/ca.crt"); strings.TrimSpace(got) != "2" {
			t.Errorf("host%d trusts %s authorities", number+1, got)
		}
	}
	th.nodesAre(t, 1, "host1", "host2")
}

func (th *thread) refusedMeanwhile(t *testing.T) {
	for _, command := range []string{"install", "upgrade --yes"} {
		if r := run(t, th.site(t, command)).must(t, 12); !strings.Contains(r.stderr, "rotate-ca") {
			t.Errorf("%s: want what to do, got\n%s", command, r.stderr)
		}
	}
}

func (th *thread) rotationUndone(t *testing.T) {
	r := run(t, th.site(t, "certs rotate-ca", "--rollback", "--yes")).must(t, 0)
	t.Logf("rollback: %s\n%s", r.took.Round(time.Second), r.stderr)
	for _, name := range []string{"ca", "front-proxy-ca", "etcd/ca"} {
		th.on(t, 1, "cmp /root/before/pki/"+name+".crt /etc/kubernetes/pki/"+name+".crt; cmp /root/before/pki/"+name+
			".key /etc/kubernetes/pki/"+name+".key")
	}
	th.on(t, 1, "kubectl --kubeconfig /root/before/admin.conf get nodes; test ! -e /etc/kubernetes/pki/kkbundle-ca")
	if r = run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

func (th *thread) rotationFinished(t *testing.T) {
	killCommandAt(t, th.site(t, "certs rotate-ca", "--finish", "--yes", "--json"), "authority-remove")
	if r := run(t, th.site(t, "certs rotate-ca", "--rollback", "--yes")).must(t, 12); !strings.Contains(r.stderr,
		"--finish") {
		t.Errorf("want what to do, got\n%s", r.stderr)
	}
	r := run(t, th.site(t, "certs rotate-ca", "--finish", "--yes")).must(t, 0)
	t.Logf("finished: %s\n%s", r.took.Round(time.Second), r.stderr)
}

// oldClientsRefused asks every server with a certificate of the old authorities. curl does not check the servers' own
// here.
func (th *thread) oldClientsRefused(t *testing.T) {
	const pki = "/root/before/pki/"
	ask := func(cert, url string) string {
		return strings.TrimSpace(th.on(t, 1, "curl -sk --max-time 10 -o /dev/null -w '%{http_code}' --cert "+cert+
			".crt --key "+cert+".key "+url+"; echo \" exit $?\""))
	}
	th.on(t, 1, `for part in certificate key; do sed -n "s/.*client-$part-data: //p" /root/before/admin.conf | base64 -d >/root/before/pki/admin.$part; done
		mv /root/before/pki/admin.certificate /root/before/pki/admin.crt`)
	api := "https://" + th.lab.Hosts[0].Address + ":6443/api/v1/nodes"
	kubelet := "https://" + th.lab.Hosts[1].Address + ":10250/pods"
	for what, got := range map[string]string{
		"API server": ask(pki+"admin", api), "kubelet": ask(pki+"apiserver-kubelet-client", kubelet),
	} {
		if got != "401 exit 0" {
			t.Errorf("%s answered a client of the old authority: %s", what, got)
		}
	}
	if got := ask(pki+"etcd/healthcheck-client", "https://127.0.0.1:2379/health"); strings.HasPrefix(got, "200") ||
		strings.HasSuffix(got, "exit 0") {
		t.Errorf("etcd answered a client of the old authority: %s", got)
	}
	now := "/etc/kubernetes/pki/"
	if got := ask(now+"etcd/healthcheck-client", "https://127.0.0.1:2379/health"); got != "200 exit 0" {
		t.Errorf("etcd refused a client of the new authority: %s", got)
	}
	if got := ask(now+"apiserver-kubelet-client", kubelet); got != "200 exit 0" {
		t.Errorf("the kubelet refused a client of the new authority: %s", got)
	}
	old := strings.TrimSpace(th.on(t, 1, "sed -n 2p "+pki+"front-proxy-ca.crt"))
	if trusted := th.kubectl(t,
		"-n kube-system get configmap extension-apiserver-authentication -o yaml"); strings.Contains(trusted, old) ||
		!strings.Contains(trusted, "BEGIN") {
		t.Errorf("aggregated API servers trust the old authority:\n%s", trusted)
	}
}

func (th *thread) afterRotation(t *testing.T) {
	th.on(t, 1, "test ! -e /etc/kubernetes/pki/kkbundle-ca && ! pgrep -af [k]ube-controller-manager | grep kkbundle-ca")
	th.nodesAre(t, 1, "host1", "host2")
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	// A node joins: it learns the authority from cluster-info, and the controller manager signs its kubelet's
	// certificate.
	run(t, th.deletion(t, "host2")).must(t, 0)
	run(t, th.site(t, "nodes add", "--yes", "host2")).must(t, 0)
	th.nodesAre(t, 1, "host1", "host2")
	authority := th.on(t, 1, "cat /etc/kubernetes/pki/ca.crt")
	th.on(t, 2, "cat >/root/ca.crt <<'END'\n"+authority+
		"END\nopenssl verify -CAfile /root/ca.crt /var/lib/kubelet/pki/kubelet-client-current.pem")
}
