package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestClusterAPIMove declares a cluster by the ClusterClass in one management cluster, and clusterctl moves it to a second
// one, offline. Its hosts are left alone meanwhile. There the cluster grows onto a host that was free, and is deleted.
func TestClusterAPIMove(t *testing.T) {
	c := startClusterAPI(t, 5, 2)
	c.flavor = "topology"
	m := &clusterAPIMove{clusterAPI: c}
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"the bundle is published, and hosts form a pool", c.publishedPool},
		{"clusterctl's cluster comes up, with a control plane and a worker", c.generate},
		{"a second management cluster is installed", m.installSecond},
		{"clusterctl moves the cluster", m.move},
		{"nothing was done on its hosts", m.unchanged},
		{"it gets a worker more", m.grow},
		{"a deleted cluster leaves its hosts as they were", c.goes},
		{"no packet left the hosts' network", c.packets},
	})
}

// clusterAPIMove has two management clusters, on the first and on the second host.
type clusterAPIMove struct {
	*clusterAPI
	second string // inventory of the second one
	// Of the cluster before it was moved.
	objects, hosts string
}

// installSecond installs the second management cluster from the same bundle and registry.
func (m *clusterAPIMove) installSecond(t *testing.T) {
	m.second = filepath.Join(m.dir, "second.yaml")
	if err := m.lab.WriteInventory(m.second, hosts.Groups{"kube_control_plane": {2}, "kube_worker": {2}}); err != nil {
		t.Fatal(err)
	}
	first := m.inventory
	m.inventory, m.admin = m.second, 2
	m.installed(t)
	m.available(t)
	m.inventory, m.admin = first, 1
}

// move moves the namespace. What is said of its objects is the same in the second management cluster, and nothing stays
// in the first one.
func (m *clusterAPIMove) move(t *testing.T) {
	kubeconfig, err := os.Open(filepath.Join(strings.TrimSuffix(m.second, ".yaml")+".work", "admin.conf"))
	if err != nil {
		t.Fatal(err)
	}
	defer kubeconfig.Close()
	m.send(t, 1, "/root/second.conf", "600", kubeconfig)
	m.objects, m.hosts = m.on(t, m.adminHost(), in(objectsLine)), m.onHosts(t)
	t.Logf("before:\n%s", m.objects)
	begin := time.Now()
	t.Log(m.atSite(t, "move -n site --to-kubeconfig /root/second.conf 2>&1"))
	t.Logf("moved after %s", time.Since(begin).Round(time.Second))
	const left = "kubectl get cluster,clusterclass,machine,kkclusters,kkclustertemplates,kkmachines,kkmachinetemplates,kkinstances,kkhosts,kkbundles,secrets --no-headers"
	m.until(t, time.Minute, "nothing stays in the first management cluster", `[ -z "$(`+left+` 2>/dev/null)" ] || { `+left+`; false; }`)
	m.admin = 2
	m.answers(t, begin)
	m.until(t, 5*time.Minute, "both Machines are Ready", `kubectl wait --for=condition=Ready --timeout=1s machine --all && kubectl get machine --no-headers | wc -l | grep -x 2`)
	m.until(t, 5*time.Minute, "the Cluster is Available", "kubectl wait --for=condition=Available --timeout=1s cluster/prod")
	t.Logf("available in the second management cluster after %s", time.Since(begin).Round(time.Second))
}

// objectsLine prints hosts and machines with what binds them to each other, their states, and the versions of the bundle.
const objectsLine = `
	kubectl get kkhosts -o jsonpath='{range .items[*]}{.metadata.name} {.status.state} {.spec.consumer}{"\n"}{end}'
	kubectl get kkinstances -o jsonpath='{range .items[*]}{.metadata.name} {.spec.hostName} {.status.state} {.metadata.annotations}{"\n"}{end}'
	kubectl get kkmachines -o jsonpath='{range .items[*]}{.metadata.name} {.spec} {.status.addresses}{"\n"}{end}'
	kubectl get machines -o jsonpath='{range .items[*]}{.metadata.name} {.spec.version} {.status.phase} {.status.nodeRef}{"\n"}{end}'
	kubectl get kkbundles -o jsonpath='{range .items[*]}{.metadata.name} {.status.versions}{"\n"}{end}'`

// onHosts prints the nodes and pods of the cluster by their UIDs, and for each host of the pool the mark of its machine,
// every file that kkbundle and kubeadm write with its time, and when the services started.
func (m *clusterAPIMove) onHosts(t *testing.T) string {
	t.Helper()
	text := m.on(t, m.adminHost(), `export KUBECONFIG=/root/prod.conf KUBECACHEDIR=/tmp/kubectl
		kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid} {.spec.providerID} {.status.nodeInfo.bootID}{"\n"}{end}'
		kubectl get pods -n kube-system -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}'`)
	for _, h := range m.poolHosts() {
		text += "== " + h.Name + "\n" + m.on(t, h.Number, `cat /var/lib/kkbundle/owner 2>/dev/null; echo
			find /var/lib/kkbundle /etc/kubernetes /etc/kkbundle -xdev ! -type d -printf '%p %T@ %s\n' 2>/dev/null | sort
			systemctl show -p ActiveEnterTimestamp --value kubelet containerd; true`)
	}
	return text
}

// unchanged compares the objects with those of the first management cluster, and the hosts with what they were, a while
// after all was available.
func (m *clusterAPIMove) unchanged(t *testing.T) {
	time.Sleep(time.Minute) // what must not happen has no event
	if after := m.on(t, m.adminHost(), in(objectsLine)); after != m.objects {
		t.Errorf("the objects are not what they were:\n%s", difference(m.objects, after))
	}
	if after := m.onHosts(t); after != m.hosts {
		t.Errorf("hosts are not as they were:\n%s", difference(m.hosts, after))
	}
}

// grow takes the free host.
func (m *clusterAPIMove) grow(t *testing.T) {
	begin := time.Now()
	m.on(t, m.adminHost(), in(`kubectl patch cluster prod --type=json -p '[{"op": "replace", "path": "/spec/topology/workers/machineDeployments/0/replicas", "value": 2}]'`))
	m.until(t, 15*time.Minute, "three Machines are Ready", `kubectl get machine --no-headers | wc -l | grep -x 3 && kubectl wait --for=condition=Ready --timeout=1s machine --all`)
	t.Logf("a worker more after %s", time.Since(begin).Round(time.Second))
}
