package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestCAPIAdopt installs a management cluster and a second cluster, and hands the second one over to the first one:
// nothing of it is replaced or restarted. Then it gets a worker more, on a host of the pool, loses the one that install
// made, and is deleted. Its hosts are as they were before they were installed.
func TestCAPIAdopt(t *testing.T) {
	m := startCAPIAdopt(t, []int{2}, []int{3})
	steps(t, []step{
		{"a management cluster of one host is installed", m.install},
		{"the bundle is published, and a host forms a pool", m.poolOfOne},
		{"a cluster of a control plane and a worker is installed", m.installProd},
		{"it is handed over, and only the management cluster works on its hosts", m.handover},
		{"Cluster API takes it over as it is", m.create},
		{"nothing was done on its hosts", m.unchanged},
		{"it gets a worker more", m.scaleUp},
		{"the worker that install made is removed, and its host is as it was", m.scaleDown},
		{"a deleted cluster leaves its hosts as they were, but for copies of etcd", m.delete},
		{"no packet left the hosts' network", m.packets},
	})
}

// TestCAPIAdoptThree hands over a cluster with three control planes, and replaces the Machine of one of them.
func TestCAPIAdoptThree(t *testing.T) {
	m := startCAPIAdopt(t, []int{2, 3, 4}, []int{5})
	m.roles = nil
	steps(t, []step{
		{"a management cluster of one host is installed", m.install},
		{"the bundle is published, and a host forms a pool", m.poolOfOne},
		{"a cluster of three control planes and a worker is installed", m.installProd},
		{"it is handed over, and only the management cluster works on its hosts", m.handover},
		{"Cluster API takes it over as it is", m.create},
		{"nothing was done on its hosts", m.unchanged},
		{"the Machine of a control plane that install made is replaced, on its host", m.replacePlane},
		{"a deleted cluster leaves its hosts as they were, but for copies of etcd", m.delete},
		{"no packet left the hosts' network", m.packets},
	})
}

// startCAPIAdopt starts a host for the management cluster, those of a second cluster, and one for the pool.
func startCAPIAdopt(t *testing.T, planes, workers []int) *adoptedByCAPI {
	t.Helper()
	nodes := append(slices.Clone(planes), workers...)
	c := startClusterAPI(t, len(nodes)+2, 1)
	return &adoptedByCAPI{
		clusterAPIMove: &clusterAPIMove{clusterAPI: c}, cluster: filepath.Join(c.dir, "prod.cluster.yaml"),
		file: filepath.Join(c.dir, "prod.yaml"), planes: planes, workers: workers, nodes: nodes,
	}
}

type adoptedByCAPI struct {
	*clusterAPIMove
	cluster string // its cluster file
	file    string // of the objects
	// Numbers of hosts.
	planes, workers, nodes []int
}

// ready is a shell line that holds while this many Machines are there, and all of them Ready.
func (*adoptedByCAPI) ready(machines int) string {
	return fmt.Sprintf("kubectl wait --for=condition=Ready --timeout=1s machine --all && kubectl get machine --no-headers | wc -l | grep -x %d", machines)
}

// poolOfOne declares the last host. Those of the second cluster are none of the pool before they are handed over.
func (m *adoptedByCAPI) poolOfOne(t *testing.T) {
	m.managers = len(m.lab.Hosts) - 1
	m.publishedPool(t)
	m.managers = 1
}

// installProd installs the second cluster from the same bundle.
func (m *adoptedByCAPI) installProd(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(m.dir, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "clusterAPI:") {
			kept = append(kept, line)
		}
	}
	if err := os.WriteFile(m.cluster, []byte(strings.Join(kept, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	m.second = filepath.Join(m.dir, "second.yaml")
	if err := m.lab.WriteInventory(m.second, hosts.Groups{"kube_control_plane": m.planes, "kube_worker": m.workers}); err != nil {
		t.Fatal(err)
	}
	r := m.ofSecond(t, 0, "install")
	t.Logf("install: %s", r.took.Round(time.Second))
	kubeconfig, err := os.Open(filepath.Join(strings.TrimSuffix(m.second, ".yaml")+".work", "admin.conf"))
	if err != nil {
		t.Fatal(err)
	}
	defer kubeconfig.Close()
	m.send(t, 1, "/root/prod.conf", "600", kubeconfig)
}

// ofSecond runs a command for the second cluster.
func (m *adoptedByCAPI) ofSecond(t *testing.T, code int, command string, flags ...string) result {
	t.Helper()
	first := m.inventory
	m.inventory = m.second
	defer func() { m.inventory = first }()
	cmd := m.site(t, command, append([]string{"-c", m.cluster, "--set", "metadata.name=prod"}, flags...)...)
	cmd.Env = append(os.Environ(), "SITE_REGISTRY="+companyPassword)
	return run(t, cmd).must(t, code)
}

func (m *adoptedByCAPI) handover(t *testing.T) {
	m.hosts = m.onHosts(t)
	m.ofSecond(t, 0, "handover", "--namespace", "site", "-o", m.file)
	info, err := os.Stat(m.file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the objects: %v %v", info.Mode(), err)
	}
	if r := m.ofSecond(t, 12, "install"); !strings.Contains(r.stderr, "belongs to machine site/prod/") {
		t.Errorf("install after the handover: %s", r.stderr)
	}
	if marks := m.on(t, 3, "cat /var/lib/kkbundle/owner"); marks != "site/prod/"+m.lab.Hosts[2].Name+"\n" {
		t.Errorf("the mark is %q", marks)
	}
	m.hosts = m.onHosts(t) // with the marks
}

// create creates the objects, paused, and looks at the cluster after they are not.
func (m *adoptedByCAPI) create(t *testing.T) {
	file, err := os.Open(m.file)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	begin := time.Now()
	m.feed(t, m.adminHost(), "KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf create -f -", file)
	m.on(t, m.adminHost(), in(`kubectl patch cluster prod --type=merge -p '{"spec": {"paused": false}}'`))
	m.until(t, 5*time.Minute, "its Machines are Ready", m.ready(len(m.nodes)))
	m.until(t, 5*time.Minute, "the Cluster is Available", "kubectl wait --for=condition=Available --timeout=1s cluster/prod")
	t.Logf("available %s after the objects were created", time.Since(begin).Round(time.Second))
	t.Log(m.on(t, m.adminHost(), in("kubectl get cluster,kubeadmcontrolplane,machinedeployment,machineset,machine,kkmachines,kkinstances,kkhosts -o wide; kubectl get events | tail -n 40")))
}

// unchanged compares the hosts with what they were: the providerIDs of the nodes are new, and nothing else.
func (m *adoptedByCAPI) unchanged(t *testing.T) {
	time.Sleep(time.Minute) // what must not happen has no event
	after := m.onHosts(t)
	for _, number := range m.nodes {
		h := m.lab.Hosts[number-1]
		id := " kk:///site/" + h.Name + " "
		if !strings.Contains(after, id) {
			t.Errorf("the node of %s has no%s", h.Name, id)
		}
		after = strings.Replace(after, id, "  ", 1)
	}
	if after != m.hosts {
		t.Errorf("hosts are not as they were:\n%s", difference(m.hosts, after))
	}
	planes := strconv.Itoa(len(m.planes))
	for what, line := range map[string]string{
		"KubeadmControlPlane": `kubectl get kubeadmcontrolplane prod-cp -o jsonpath='{.status.upToDateReplicas} {.status.replicas}' | grep -x '` + planes + " " + planes + `'`,
		"MachineDeployment":   `kubectl get machinedeployment prod-md-0 -o jsonpath='{.status.upToDateReplicas} {.status.replicas}' | grep -x '1 1'`,
		"the MachineSet":      `kubectl get machineset --no-headers | wc -l | grep -x 1`,
		"owners of Secrets":   `kubectl get secrets prod-ca prod-etcd prod-proxy prod-sa prod-kubeconfig -o jsonpath='{range .items[*]}{.metadata.ownerReferences[0].kind}{"\n"}{end}' | grep -c KubeadmControlPlane | grep -x 5`,
	} {
		m.until(t, time.Minute, what+" is as it should be", line)
	}
}

// scaleUp takes the host of the pool. flannel's daemon, which takes the interfaces of the nodes that install knew, is
// told of it.
func (m *adoptedByCAPI) scaleUp(t *testing.T) {
	h := m.lab.Hosts[len(m.lab.Hosts)-1]
	known, more := "--iface="+m.lab.Hosts[m.nodes[0]-1].Address, "--iface="+h.Address
	m.on(t, m.adminHost(), `export KUBECACHEDIR=/tmp/kubectl KUBECONFIG=/root/prod.conf
		kubectl -n kube-flannel get daemonset -o yaml | sed -E 's/^( *- )`+known+`$/&\n\1`+more+`/' | kubectl replace -f -
		kubectl -n kube-flannel get daemonset -o yaml | grep -e `+more)
	begin := time.Now()
	m.on(t, m.adminHost(), in("kubectl scale machinedeployment prod-md-0 --replicas=2"))
	m.until(t, 15*time.Minute, "three Machines are Ready", m.ready(3))
	t.Logf("a worker more after %s", time.Since(begin).Round(time.Second))
}

// scaleDown removes the Machine of the worker that install made.
func (m *adoptedByCAPI) scaleDown(t *testing.T) {
	name := m.lab.Hosts[m.workers[0]-1].Name
	m.on(t, m.adminHost(), in("kubectl annotate machine "+name+" cluster.x-k8s.io/delete-machine= && kubectl scale machinedeployment prod-md-0 --replicas=1"))
	m.until(t, 10*time.Minute, "its host is free again", m.ready(2)+` && `+m.free(1)+` && kubectl get kkhost `+name+` -o jsonpath='{.status.state}' | grep -x Available`)
	m.freeAreClean(t, 1)
}

// replacePlane deletes the Machine of a control plane. The one in its place gets the same host, which was reset, and has
// the files that install made for control planes.
func (m *adoptedByCAPI) replacePlane(t *testing.T) {
	h := m.lab.Hosts[m.planes[2]-1]
	const line = "sha256sum /etc/kubernetes/security/*"
	want := m.on(t, m.planes[0], line)
	begin := time.Now()
	m.on(t, m.adminHost(), in("kubectl delete machine "+h.Name+" --wait=false"))
	m.until(t, 15*time.Minute, "its Machine is gone, and another one has its host", `! kubectl get machine `+h.Name+` && kubectl get kkhost `+h.Name+` -o jsonpath='{.status.state}' | grep -x InUse && `+m.ready(len(m.nodes)))
	m.until(t, 5*time.Minute, "the Cluster is Available", "kubectl wait --for=condition=Available --timeout=1s cluster/prod")
	t.Logf("replaced after %s", time.Since(begin).Round(time.Second))
	if got := m.on(t, h.Number, line); got != want {
		t.Errorf("files of control planes:\n%s", difference(want, got))
	}
	m.freeAreClean(t, 1)
}

// delete deletes the cluster.
func (m *adoptedByCAPI) delete(t *testing.T) {
	begin := time.Now()
	m.on(t, m.adminHost(), in("kubectl delete cluster prod --wait=false"))
	m.until(t, 15*time.Minute, "the cluster is gone, and every host is free", `[ -z "$(kubectl get cluster,machine,kkmachines,kkinstances --no-headers 2>/dev/null)" ] && `+
		m.free(len(m.poolHosts())))
	t.Logf("gone after %s", time.Since(begin).Round(time.Second))
	for _, number := range m.planes {
		m.withoutCopies(t, number)
	}
	if after := m.poolTraces(t); after != m.pristine {
		t.Errorf("hosts are not as they were:\n%s", difference(m.pristine, after))
	}
}

// withoutCopies removes the copies of etcd that install's timer has made, if there are some: no reset does without
// --with-data.
func (m *adoptedByCAPI) withoutCopies(t *testing.T, number int) {
	t.Helper()
	left := m.on(t, number, "cd /var/lib/kkbundle 2>/dev/null && cat data-left 2>/dev/null && xargs rm -rf <data-left && rm data-left || true")
	for path := range strings.FieldsSeq(left) {
		if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "/var/backups/kkbundle") {
			t.Errorf("host%d keeps %s", number, path)
		}
	}
}
