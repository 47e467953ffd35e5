package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// A maker makes a cluster with the files and at the paths of a tool, by the lab's programs.
type maker interface {
	// host prepares one: the runtime, the kubelet, and on the first etcd.
	host(t *testing.T, number int)
	// cluster makes the first host a control plane and the second a worker.
	cluster(t *testing.T)
	// newcomer does what the report tells the operator to do on a new host.
	newcomer(t *testing.T, number int)
	// etcd are the files on the control plane with which its API server asks etcd: authority, certificate and key.
	etcd() [3]string
	// report has texts of the report.
	report() []string
}

// TestAdoptKubespray takes over a cluster in Kubespray's layout: etcd as a unit, authorities in /etc/kubernetes/ssl,
// settings and arguments of the kubelet in files of its own, a balancer on the worker that its kubelet and kube-proxy
// ask, its own Service of the cluster's DNS.
func TestAdoptKubespray(t *testing.T) {
	takeOverLayout(t, "Kubespray's", func(th *adopted) maker { return kubespray{th} })
}

// TestAdoptKubeKey takes over a cluster in KubeKey's layout: etcd as a unit, an endpoint whose name is in /etc/hosts
// of each node, a balancer on the worker, arguments of the kubelet in its unit, its own Service of the cluster's DNS.
func TestAdoptKubeKey(t *testing.T) {
	takeOverLayout(t, "KubeKey's", func(th *adopted) maker { return kubekey{th} })
}

// takeOverLayout describes the cluster of a tool, takes it over, gives it back, takes it over again, adds a node and
// upgrades it to the next minor release, while an application answers.
func takeOverLayout(t *testing.T, whose string, of func(th *adopted) maker) {
	own, to := software.OwnRelease(), software.KubernetesReleases()[software.Kubernetes137]
	th := &adopted{upgraded: &upgraded{moved: moved{
		name:  "1 control plane, 2 workers, etcd as a unit; in " + whose + " layout and taken over",
		hosts: 3, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1, 2}},
		etcdType: manifest.EtcdProvided,
		from:     side{KubernetesRelease: own, containerd: software.ContainerdVersion},
		to:       side{KubernetesRelease: to, containerd: software.ContainerdVersion},
	}}}
	th.thread = start(t, scenario{
		hosts: 3, noCluster: true, with: []software.Extra{software.Kubernetes137},
		standIns: []string{"a writer of " + whose + " documented files and paths in the place of the tool"},
	})
	th.files, th.nodes = filepath.Join(th.dir, "site"), 2
	m := of(th)
	steps(t, []step{
		{"build, for the genuine programs and images", th.makeBundle},
		{"hosts as the tool prepares them", func(t *testing.T) { th.prepare(t, m) }},
		{"the cluster as the tool makes it", m.cluster},
		{"an application on both nodes", th.application},
		{"described, and nothing is changed", func(t *testing.T) { th.describe(t, m) }},
		{"taken over: nothing that runs is changed", th.takeFiles},
		{"status and certificates; etcd is left to its owner", th.lookAfterOthers},
		{"given back: no trace is left", th.giveBack},
		{"taken over again, as the files say", th.takeAgain},
		{"a node is added, and its pods find Services by name", func(t *testing.T) {
			m.newcomer(t, 3)
			th.join(t, th.clusterFlag()...)
			th.findsServices(t, "host3")
		}},
		{"upgraded, and the application answers", th.upgradeOthers},
		{"pods of all nodes find Services by name", func(t *testing.T) { th.findsServices(t, "host1", "host2", "host3") }},
		{"a rerun changes nothing", th.againOthers},
	})
}

// prepare gives the first two hosts the programs where both tools have them, images, a pod network, and what the tool
// makes itself.
func (th *adopted) prepare(t *testing.T, m maker) {
	lines := map[string]string{
		"containerd":  "tar xz -C /usr/local",
		"runc":        "cat >/usr/local/bin/runc && chmod 0755 /usr/local/bin/runc",
		"cni-plugins": "mkdir -p /opt/cni/bin && tar xz -C /opt/cni/bin",
	}
	for _, program := range []string{"kubeadm", "kubelet", "kubectl"} {
		lines[program] = fmt.Sprintf("cat >/usr/local/bin/%[1]s && chmod 0755 /usr/local/bin/%[1]s", program)
	}
	for _, program := range slices.Sorted(maps.Keys(lines)) {
		file := filepath.Join(th.dir, "own-"+program)
		th.connected(t, "extract", th.bundle(), program, "-o", file).must(t, 0)
		for n := range 2 {
			th.feedFile(t, n+1, file, lines[program])
		}
	}
	th.feedFile(t, 1, filepath.Join(th.bin, "etcd"), "cat >/usr/local/bin/etcd && chmod 0755 /usr/local/bin/etcd")
	for n := range 2 {
		m.host(t, n+1)
		th.send(t, n+1, "/etc/cni/net.d/10-own.conflist", "644", strings.NewReader(fmt.Sprintf(ownNetwork, n)))
	}
	th.ownImages(t)
	balancer := filepath.Join(th.dir, "balancer.tar")
	tag, err := name.NewTag(balancerImage)
	if err == nil {
		err = tarball.WriteToFile(balancer, tag, th.image(t, balancerImage))
	}
	if err != nil {
		t.Fatal(err)
	}
	th.feedFile(t, 2, balancer, "ctr -n k8s.io images import -")
}

// balancerImage is in no bundle of these tests: it is the other tool's.
const balancerImage = "docker.io/library/haproxy:" + software.HAProxyImageTag

// pause is the image of pods' sandboxes.
func (th *adopted) pause(t *testing.T) string {
	for image := range strings.FieldsSeq(th.on(t, 1, "kubeadm config images list --kubernetes-version "+
		software.KubernetesVersion+" 2>/dev/null")) {
		if strings.Contains(image, "/pause:") {
			return image
		}
	}
	t.Fatal("kubeadm names no pause image")
	return ""
}

// describe compares the hosts and the cluster before and after, and puts the files beside the cluster file that the
// report names.
func (th *adopted) describe(t *testing.T, m maker) {
	before := th.own(t)
	r := th.adopt(t, "--host", "root@"+th.lab.Hosts[0].Address, "-o", th.files).must(t, 0)
	t.Logf("adopt: %s\n%s\n%s\n%s", r.took.Round(100*time.Millisecond), r.stdout, r.stderr, read(t, th.files, "cluster.yaml"))
	if after := th.own(t) + th.traces(t); after != before {
		t.Errorf("something changed:\n%s", difference(before, after))
	}
	said := strings.Join(strings.Fields(r.stdout), " ")
	for _, want := range m.report() {
		if !strings.Contains(said, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	for i, file := range m.etcd() {
		data := []byte(th.on(t, 1, "cat "+file))
		for _, dir := range []string{th.dir, th.files} {
			to := filepath.Join(dir, []string{"etcd-ca.crt", "etcd-client.crt", "etcd-client.key"}[i])
			if err := os.WriteFile(to, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (th *adopted) takeFiles(t *testing.T) {
	th.before = th.own(t)
	r := th.adopt(t, "-o", th.files, "--yes").must(t, 0)
	t.Logf("adopt --yes: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if after := th.own(t); after != th.before {
		t.Errorf("something changed:\n%s", difference(th.before, after))
	}
	th.inventory = filepath.Join(th.files, "inventory.yaml")
	th.writeInventory(t, 1, 2)
}

// clusterFlag names the cluster file, beside which are the files of etcd.
func (th *adopted) clusterFlag() []string {
	return []string{"-c", filepath.Join(th.dir, "cluster.yaml")}
}

func (th *adopted) lookAfterOthers(t *testing.T) {
	r := th.withFiles(t, "status").must(t, 0)
	t.Logf("status\n%s", r.stdout)
	r = th.withFiles(t, "certs check").must(t, 0)
	t.Logf("certs check\n%s", r.stdout)
	th.ownBundle(t)
	r = run(t, th.site(t, "etcd backup", append(th.clusterFlag(), "-o", filepath.Join(th.dir, "etcd.db"))...))
	if r.code == 0 || !strings.Contains(r.stderr, "etcd is yours") {
		t.Errorf("etcd backup: exit code %d\n%s", r.code, r.stderr)
	}
	for _, cmd := range []*exec.Cmd{
		th.site(t, "reset", append(th.clusterFlag(), "--yes")...), th.site(t, "install", th.clusterFlag()...),
	} {
		if r := run(t, cmd).must(t, 12); !strings.Contains(r.stderr, "kkbundle upgrade") {
			t.Errorf("%s: programs of others are not spared: %s", cmd, r.stderr)
		}
	}
}

// findsServices runs a pod on each of the nodes that asks the application by its Service's name.
func (th *adopted) findsServices(t *testing.T, nodes ...string) {
	for _, node := range nodes {
		th.kubectl(t, fmt.Sprintf(`run asks-%[1]s --image=docker.io/lab/labapp:1 --restart=Never --overrides='{"spec":{"nodeName":"%[1]s","tolerations":[{"operator":"Exists"}]}}' --command -- /labapp get http://steady.steady.svc.cluster.local/`, node))
	}
	for _, node := range nodes {
		th.waitFor(t, time.Minute, "a pod of "+node+" has an answer", 1, fmt.Sprintf(
			"p=$(KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf get pod asks-%[1]s -o jsonpath={.status.phase}); echo $p; test $p = Succeeded || { KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf logs asks-%[1]s; false; }", node))
		th.kubectl(t, "delete pod asks-"+node)
	}
}

func (th *adopted) upgradeOthers(t *testing.T) {
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), "version: "+th.from.Version, "version: "+th.to.Version)
	rewrite(t, filepath.Join(th.dir, "manifest.yaml"), "version: 1.0.0", "version: 1.1.0")
	th.next = filepath.Join(th.dir, "lab-1.1.0.kkb")
	th.connected(t, "build", "-o", th.next, "manifest.yaml").must(t, 0)
	next := func(flags ...string) *exec.Cmd {
		return th.withNext(t, "upgrade", append(th.clusterFlag(), flags...)...)
	}
	r := run(t, next("--plan")).must(t, 0)
	t.Logf("the plan\n%s", r.stderr)
	th.move(t, results.Move{From: th.from.Version, To: th.to.Version}, nil, next)
	nodes := th.kubectl(t, "get nodes -o wide --no-headers")
	for _, h := range th.lab.Hosts {
		if !strings.Contains(nodes, " "+h.Address+" ") {
			t.Errorf("%s is no node's address:\n%s", h.Address, nodes)
		}
	}
	if strings.Count(nodes, " Ready ") != 3 || strings.Count(nodes, th.to.Version) != 3 {
		t.Errorf("want 3 nodes that are Ready, got\n%s", nodes)
	}
	if m := th.moves[len(th.moves)-1]; m.Missed != 0 {
		t.Errorf("%d of %d questions were missed", m.Missed, m.Asked)
	}
	for n := range 3 {
		th.on(t, n+1, "pgrep -f '^/usr/local/bin/containerd' && pgrep -f '^/usr/local/bin/kubelet .*--config=/var/lib/kubelet/config.yaml'")
	}
	th.on(t, 1, "systemctl is-active etcd")
}

func (th *adopted) againOthers(t *testing.T) {
	before := th.snapshot(t)
	for _, command := range []string{"upgrade", "install"} {
		r := run(t, th.withNext(t, command, th.clusterFlag()...)).must(t, 0)
		if !strings.Contains(r.stderr, "0 changed") {
			t.Errorf("%s: want 0 changed, got\n%s", command, r.stderr)
		}
	}
	if after := th.snapshot(t); after != before {
		t.Errorf("the rerun changed something:\n%s", difference(before, after))
	}
}

// write writes files on a host.
func (th *adopted) write(t *testing.T, number int, files map[string]string) {
	t.Helper()
	for _, file := range slices.Sorted(maps.Keys(files)) {
		th.send(t, number, file, "644", strings.NewReader(files[file]))
	}
}

// issue writes an authority and certificates for etcd on a host, as name.pem or name.crt with its key.
func (th *adopted) issue(t *testing.T, number int, ca *companyCA, cert, key string) {
	t.Helper()
	c, k := ca.issue(t, "etcd", th.lab.Hosts[number-1].Address, "127.0.0.1")
	th.sendFiles(t, number, map[string][]byte{cert: c, key: k})
}

// The units of both tools differ in what does not matter here.
const (
	toolContainerdUnit = `[Unit]
After=network.target local-fs.target
[Service]
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
[Install]
WantedBy=multi-user.target
`
	toolEtcdUnit = `[Unit]
After=network.target
[Service]
User=root
Type=notify
EnvironmentFile=/etc/etcd.env
ExecStart=/usr/local/bin/etcd
NotifyAccess=all
Restart=always
RestartSec=10s
LimitNOFILE=40000
[Install]
WantedBy=multi-user.target
`
	toolBalancer = `defaults
  mode tcp
  timeout connect 30s
  timeout client 5m
  timeout server 15m
  timeout check 30s
frontend healthz
  bind 0.0.0.0:8081
  mode http
  monitor-uri /healthz
frontend api
  bind 127.0.0.1:6443
  default_backend servers
backend servers
  balance leastconn
  default-server inter 15s downinter 15s rise 2 fall 2 slowstart 60s
  option httpchk GET /healthz
  http-check expect status 200
  server host1 %s:6443 check check-ssl verify none
`
	toolBalancerPod = `apiVersion: v1
kind: Pod
metadata: {name: haproxy, namespace: kube-system, labels: {k8s-app: kube-haproxy}}
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  nodeSelector: {kubernetes.io/os: linux}
  priorityClassName: system-node-critical
  containers:
    - name: haproxy
      image: ` + balancerImage + `
      imagePullPolicy: IfNotPresent
      args: [-W, -db, -f, /usr/local/etc/haproxy/haproxy.cfg]
      resources: {requests: {cpu: 25m, memory: 32M}}
      livenessProbe: {httpGet: {path: /healthz, port: 8081}}
      readinessProbe: {httpGet: {path: /healthz, port: 8081}}
      volumeMounts: [{mountPath: /usr/local/etc/haproxy/, name: etc-haproxy, readOnly: true}]
  volumes: [{name: etc-haproxy, hostPath: {path: %s}}]
`
	// toolProxy has no limits of connections: the lab's hosts cannot set them.
	toolProxy = `---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 30s}
mode: iptables
`
)

// dnsAtThree replaces kubeadm's Service of the cluster's DNS by the one that both tools make, with the third address.
func (th *adopted) dnsAtThree(t *testing.T) {
	const service = `apiVersion: v1
kind: Service
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns, kubernetes.io/name: coredns}}
spec:
  clusterIP: 10.233.0.3
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}, {name: metrics, port: 9153, protocol: TCP}]
`
	th.kubectl(t, "-n kube-system delete service kube-dns")
	th.apply(t, service)
}

// kubeadmJoin returns the start of a JoinConfiguration.
func (th *adopted) kubeadmJoin(t *testing.T, endpoint string) string {
	token := strings.TrimSpace(th.on(t, 1, "kubeadm token create 2>/dev/null"))
	return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {bootstrapToken: {apiServerEndpoint: %q, token: %s, unsafeSkipCAVerification: true}}
`, endpoint, token)
}
