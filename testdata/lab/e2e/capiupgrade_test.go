package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestCAPIUpgrade declares three control planes behind a balancer and a worker, loses the worker's host, and upgrades all
// of them to the next minor release with a spare host, under an application. Then it loses a control plane.
func TestCAPIUpgrade(t *testing.T) {
	c := startCAPIUpgrade(t, 3, 1, 2)
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"Cluster API and the provider run", c.controllers},
		{"a pool of hosts", c.pool},
		{"three declared control planes come up behind a balancer, and the worker is lost meanwhile", c.createThree},
		{"a MachineHealthCheck replaces the lost worker", c.replaced},
		{"the lost host comes back, is cleaned and free again", c.comeBack},
		{"a version that is in no bundle of the cluster is refused, and another bundle is named", c.nextBundle},
		{"control planes, then the worker are replaced by those of the next version", c.upgrade},
		{"everything is of the next version", c.verify},
		{"the API server and the application answered meanwhile", c.answered},
		{"a MachineHealthCheck replaces a lost control plane", c.loseControlPlane},
		{"its host comes back, is cleaned and free again", c.comeBack},
		{"a deleted cluster leaves its hosts as they were", c.delete},
		{"no packet left the hosts' network", c.packets},
	})
}

// TestCAPIUpgradeOne declares one control plane behind a balancer and a worker, and replaces each of them on one spare
// host, under an application: first for the release of etcd that the next one can be reached from, then by the next minor
// release.
func TestCAPIUpgradeOne(t *testing.T) {
	c := startCAPIUpgrade(t, 1, 1, 1)
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"Cluster API and the provider run", c.controllers},
		{"a pool of hosts", c.pool},
		{"a declared control plane comes up behind a balancer, with a worker", c.createOne},
		{"a version that is in no bundle of the cluster is refused, and another bundle is named", c.nextBundle},
		{"the control plane is replaced for etcd's step", c.stepEtcd},
		{"the control plane, then the worker are replaced by those of the next version", c.upgrade},
		{"everything is of the next version", c.verify},
		{"a deleted cluster leaves its hosts as they were", c.delete},
		{"the application answered meanwhile", c.answered},
		{"no packet left the hosts' network", c.packets},
	})
}

// startCAPIUpgrade starts hosts for a management cluster, control planes, workers and spares, and a balancer, and makes
// the bundles of both releases.
func startCAPIUpgrade(t *testing.T, planes, workers, spares int) *capiUpgrade {
	t.Helper()
	const address = "10.250.0.11:5443/mirror"
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts: 1 + planes + workers + spares, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}}, standIns: []string{"cert-manager"},
		with: []software.Extra{software.Kubernetes137},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"),
				"addons:\n  - chart: web\n    namespace: web\n    values: [web.yaml]\n", "")
		},
	})
	to := software.KubernetesReleases()[software.Kubernetes137]
	c := &capiUpgrade{to: to, planes: planes, workers: workers, spares: spares, capi: &capi{
		thread: th, registry: address, ca: ca, life: t.Context(), endpoint: besideHosts, source: "file:///lab.kkb",
		flags: []string{"--quarantine-after=1m"},
	}}
	th.companyRegistry(t, 1, ca)
	c.bundleBoth(t)
	useCompanyRegistry(t, th.dir, address, ca)
	c.pristine = c.poolTraces(t)
	pool := addresses(c.poolHosts())
	c.startBalancer(t, front{Port: 6443, Probe: "https://%s/readyz", Backends: pool},
		front{Port: steadyPort, Probe: "http://%s/", Backends: pool})
	return c
}

// capiUpgrade is a management cluster whose declared cluster goes to another release of Kubernetes.
type capiUpgrade struct {
	*capi
	planes  int // of the declared cluster
	workers int
	spares  int // hosts that it does not have
	to      software.KubernetesRelease
	next    string          // the bundle of that release
	asked   map[string]*gap // during the upgrade
	lost    hosts.Host      // the last one that lost its power
	machine string          // that was on it
}

// steadyPort is the node port of the application.
const steadyPort = 30081

// etcdThrough is the release of etcd 3.6 that 3.7 can be reached from.
func (c *capiUpgrade) etcdThrough() string { return strings.TrimPrefix(c.to.Through, "v") + "-0" }

// bundleBoth makes the bundles of both releases. The next one has the older release, too.
func (c *capiUpgrade) bundleBoth(t *testing.T) {
	c.makeBundle(t)
	cluster, manifest := filepath.Join(c.dir, "cluster.yaml"), filepath.Join(c.dir, "manifest.yaml")
	from, both := software.KubernetesVersion, c.to.Version+"\n  upgradeFrom: "+software.KubernetesVersion
	rewrite(t, cluster, from, both)
	rewrite(t, manifest, "version: 1.0.0", "version: 1.1.0")
	c.next = filepath.Join(c.dir, "lab-1.1.0.kkb")
	c.connected(t, "build", "-o", c.next, "manifest.yaml").must(t, 0)
	rewrite(t, cluster, both, from)
	rewrite(t, manifest, "version: 1.1.0", "version: 1.0.0")
}

// install pushes both bundles: the site's registry has what both releases need.
func (c *capiUpgrade) install(t *testing.T) {
	cmd := c.lab.Command(t.Context(), c.kkbundle, "push", "--registry", c.registry, "--ca",
		filepath.Join(c.dir, "registry-ca.pem"), "--username", companyUser, "--password-stdin", c.next)
	cmd.Stdin = strings.NewReader(companyPassword + "\n")
	run(t, cmd).must(t, 0)
	c.capi.install(t)
}

// createThree declares the cluster. Its etcd is the release that the next one goes together with.
func (c *capiUpgrade) createThree(t *testing.T) {
	begin := time.Now()
	objects := c.declared(t, 3)
	for _, o := range objects {
		if o["kind"] == "KubeadmControlPlane" {
			config := o["spec"].(map[string]any)["kubeadmConfigSpec"].(map[string]any)
			config["clusterConfiguration"] = map[string]any{
				"etcd": map[string]any{"local": map[string]any{"imageTag": c.etcdThrough()}},
			}
		}
	}
	c.apply(t, append(objects, healthChecks()...))
	c.answers(t, begin)
	c.podNetwork(t)
	c.until(t, 10*time.Minute, "the worker is Ready", "[ $(kubectl get machine -l '!cluster.x-k8s.io/control-plane' --no-headers | wc -l) = 1 ] && "+
		"kubectl wait --for=condition=Ready --timeout=1s machine -l '!cluster.x-k8s.io/control-plane'")
	c.lose(t, "!cluster.x-k8s.io/control-plane")
	c.until(t, 10*time.Minute, "three control planes are Ready", "[ $(kubectl get machine -l cluster.x-k8s.io/control-plane --no-headers | wc -l) = 3 ] && "+
		"kubectl wait --for=condition=Ready --timeout=1s machine -l cluster.x-k8s.io/control-plane")
	t.Logf("three control planes are Ready after %s", time.Since(begin).Round(time.Second))
}

// createOne declares the cluster with the etcd that its release of Kubernetes brings.
func (c *capiUpgrade) createOne(t *testing.T) {
	begin := time.Now()
	c.apply(t, c.declared(t, c.planes))
	c.answers(t, begin)
	c.podNetwork(t)
	const version = software.KubernetesVersion
	c.until(t, 10*time.Minute, "the control plane and the worker are Ready", machines(c.all(version), c.others(version)))
	t.Logf("a control plane and a worker are Ready after %s", time.Since(begin).Round(time.Second))
}

// all are the control planes as machines wants them.
func (c *capiUpgrade) all(version string) string { return fmt.Sprintf("%d %s", c.planes, version) }

// others are the workers.
func (c *capiUpgrade) others(version string) string { return fmt.Sprintf("%d %s", c.workers, version) }

// stepEtcd names the release of etcd that the next one can be reached from.
func (c *capiUpgrade) stepEtcd(t *testing.T) {
	begin := time.Now()
	before := c.there(t, etcdImages)
	c.on(t, c.adminHost(), in(fmt.Sprintf(`kubectl patch kubeadmcontrolplane prod-cp --type=merge -p '{"spec": {"kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"local": {"imageTag": "%s"}}}}}}'`, c.etcdThrough())))
	c.until(t, 15*time.Minute, "another control plane has taken its place", `[ "$(kubectl --kubeconfig /root/prod.conf `+etcdImages+` | sed 's/.*://')" = '`+c.etcdThrough()+`' ] && `+
		machines(c.all(software.KubernetesVersion), c.others(software.KubernetesVersion))+" && "+c.free(c.spares))
	t.Logf("from %s to %s after %s", before, c.there(t, etcdImages), time.Since(begin).Round(time.Second))
	c.freeAreClean(t, c.spares)
}

const etcdImages = "-n kube-system get pods -l component=etcd -o jsonpath={.items[*].spec.containers[*].image}"

// lose pulls the plug of the first Machine with the label.
func (c *capiUpgrade) lose(t *testing.T, label string) {
	t.Helper()
	c.machine = strings.TrimSpace(c.on(t, c.adminHost(), in("kubectl get machine -l '"+label+"' -o jsonpath='{.items[0].metadata.name}'")))
	name := c.on(t, c.adminHost(), in("kubectl get kkmachine "+c.machine+" -o jsonpath='{.spec.hostName}'"))
	c.lost = c.lab.Hosts[slices.IndexFunc(c.lab.Hosts, func(h hosts.Host) bool { return h.Name == name })]
	if err := c.lab.Kill(t.Context(), c.lost); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s on %s is lost", c.machine, name)
}

// machines is a shell line that holds while these Machines and no others, as in "3 v1.36.3", are Ready.
func machines(controlPlanes, workers string) string {
	const of = `[ "$(kubectl get machine -l '%scluster.x-k8s.io/control-plane' -o jsonpath='{range .items[*]}{.spec.version}{"\n"}{end}' | sort | uniq -c | xargs)" = "%s" ]`
	return fmt.Sprintf(of+" && "+of, "", controlPlanes, "!", workers) +
		" && kubectl wait --for=condition=Ready --timeout=1s machine --all"
}

// there runs kubectl in the declared cluster.
func (c *capiUpgrade) there(t *testing.T, args string) string {
	t.Helper()
	return c.on(t, c.adminHost(), "KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /root/prod.conf "+args)
}

// toNext is the patch that takes the control plane to the next release. kubeadm's join does not touch CoreDNS.
func (c *capiUpgrade) toNext() string {
	return fmt.Sprintf(`kubectl patch kubeadmcontrolplane prod-cp --type=merge -p '{"spec": {"version": "%s", "kubeadmConfigSpec": {"clusterConfiguration": {"etcd": {"local": {"imageTag": "%s"}}, "dns": {"imageTag": "%s"}}}}}'`,
		c.to.Version, c.to.EtcdImage, c.to.CoreDNS)
}

// nextBundle names the next bundle in the KKCluster. No machine is replaced for it.
func (c *capiUpgrade) nextBundle(t *testing.T) {
	if got := c.on(t, c.adminHost(), in(c.toNext()+" 2>&1 && echo accepted; true")); !strings.Contains(got,
		c.to.Version+" is not in KKBundle site") {
		t.Fatalf("want the bundle and its versions, got\n%s", got)
	}
	before := c.on(t, c.adminHost(), in("kubectl get machine -o name | sort"))
	c.readNext(t)
	c.on(t, c.adminHost(), in(`kubectl patch kkcluster prod --type=merge -p '{"spec": {"bundleRef": {"name": "next"}}}'`))
	c.until(t, time.Minute, "the KKCluster is ready", "kubectl wait --for=condition=Ready --timeout=1s kkcluster/prod")
	if after := c.on(t, c.adminHost(), in("kubectl get machine -o name | sort")); after != before {
		t.Errorf("Machines were replaced:\n%s", difference(before, after))
	}
}

// readNext makes the KKBundle next.
func (c *capiUpgrade) readNext(t *testing.T) {
	t.Helper()
	c.serve(t, c.next, "next.kkb")
	c.apply(t, []map[string]any{kkBundle("next", "file:///next.kkb")})
	c.until(t, 2*time.Minute, "the next bundle is read, and has both versions",
		`v=$(kubectl get kkbundle next -o jsonpath='{.status.versions}') && echo "$v" | grep `+c.to.Version+
			` && echo "$v" | grep `+software.KubernetesVersion)
}

// upgrade replaces one control plane after the other, and then the workers, or brings them to the next version in place.
// The manager is killed while it cleans, or updates, the first host.
func (c *capiUpgrade) upgrade(t *testing.T) {
	how, state := "each replaced on a spare host", "Cleaning"
	if c.inPlace {
		how, state = "each in place", "Updating"
	}
	c.asking(t, plain.Count(c.planes, "control plane")+" behind a balancer, "+plain.Count(c.workers, "worker")+", "+how, func(begin time.Time) {
		c.on(t, c.adminHost(), in(c.toNext()))
		c.killWhile(t, "the first host is "+strings.ToLower(state), "{.status.state}", state)
		c.until(t, 25*time.Minute, "the control planes are of the next version", machines(c.all(c.to.Version), c.others(software.KubernetesVersion)))
		t.Logf("%d control planes are of the next version after %s", c.planes, time.Since(begin).Round(time.Second))
		c.giveWorkers(t)
		c.workersHave(t)
	})
}

// giveWorkers gives the workers the version that the control planes have.
func (c *capiUpgrade) giveWorkers(t *testing.T) {
	t.Helper()
	c.on(t, c.adminHost(), in(fmt.Sprintf(`kubectl patch machinedeployment prod-md-0 --type=merge -p '{"spec": {"template": {"spec": {"version": "%s"}}}}'`, c.to.Version)))
}

// workersHave waits until they have it.
func (c *capiUpgrade) workersHave(t *testing.T) {
	t.Helper()
	c.until(t, 15*time.Minute, "the workers are, too", machines(c.all(c.to.Version), c.others(c.to.Version))+" && "+c.free(c.spares))
}

// asking asks an application and the API server without a pause while the cluster is upgraded, and records both.
func (c *capiUpgrade) asking(t *testing.T, topology string, upgrade func(begin time.Time)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const api = "https://" + besideHosts + ":6443/readyz"
	begin := time.Now()
	app := fmt.Sprintf("http://%s:%d/", besideHosts, steadyPort)
	c.applyThere(t, steady)
	c.there(t, "-n steady rollout status deployment/steady --timeout=5m")
	for c.lab.Command(ctx, "curl", "-sf", "--max-time", "2", "-o", "/dev/null", app).Run() != nil {
		if time.Sleep(time.Second); time.Since(begin) > 2*time.Minute {
			t.Fatal("the application does not answer behind the balancer")
		}
	}
	begin = time.Now()
	answers := ask(t, c.lab.Command(ctx, "sh", "-c", askAgain, "sh", api), c.lab.Command(ctx, "sh", "-c", askAgain, "sh", app))
	kills := c.kills
	upgrade(begin)
	t.Logf("upgraded after %s", time.Since(begin).Round(time.Second))
	cancel()
	m := results.Move{
		From: software.KubernetesVersion, To: c.to.Version, Kills: c.kills - kills, Seconds: int(time.Since(begin).Seconds()),
		Topology: "Cluster API: " + topology,
	}
	seen := answers()
	c.asked = map[string]*gap{"the application": seen[app]}
	if c.planes > 1 { // etcd has two members between the join of a single one's successor and its end, and needs both
		c.asked["the API server"] = seen[api]
	}
	if g := seen[app]; g != nil {
		m.Asked, m.Missed = g.asked, g.failed
		t.Logf("the application: %d asked, %d missed", g.asked, g.failed)
	}
	if g := seen[api]; g != nil {
		for _, d := range g.times {
			m.Away = append(m.Away, int(d.Milliseconds()))
		}
		t.Logf("the API server: %d asked, %d missed", g.asked, g.failed)
	}
	c.moves = append(c.moves, m)
}

// answered checks what was asked during the upgrade.
func (c *capiUpgrade) answered(t *testing.T) {
	for what, g := range c.asked {
		if g == nil || g.asked == 0 || g.failed*100 > g.asked {
			t.Errorf("%s missed more than one question of a hundred: %+v", what, g)
		}
	}
}

// killWhile waits for a KKInstance with a value of a jsonpath, and kills the manager then.
func (c *capiUpgrade) killWhile(t *testing.T, what, jsonpath, value string) {
	t.Helper()
	c.waitFor(t, 15*time.Minute, what, 1,
		in(`kubectl get kkinstances -o jsonpath='{range .items[*]}`+jsonpath+`{"\n"}{end}' | grep -x '`+value+`'`))
	if err := c.kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the manager was killed while %s", what)
}

// verify checks the versions of nodes, of what kubeadm installs, and of CoreDNS, and etcd's members.
func (c *capiUpgrade) verify(t *testing.T) {
	nodes := c.there(t, "get nodes --no-headers")
	n := c.planes + c.workers
	if strings.Count(nodes, " Ready ") != n || strings.Count(nodes, c.to.Version) != n || strings.Count(nodes, "\n") != n {
		t.Errorf("want %d nodes that are Ready, got\n%s", n, nodes)
	}
	images := c.there(t, "-n kube-system get pods -l tier=control-plane -o jsonpath={.items[*].spec.containers[*].image}")
	for image, want := range map[string]int{":" + c.to.Version: 3 * c.planes, "etcd:" + c.to.EtcdImage: c.planes} {
		if got := strings.Count(images, image); got != want {
			t.Errorf("%d images %s, want %d: %s", got, image, want, images)
		}
	}
	for object, want := range map[string]string{"daemonset/kube-proxy": ":" + c.to.Version, "deployment/coredns": ":" + c.to.CoreDNS} {
		if got := c.there(t, "-n kube-system get "+object+" -o jsonpath={.spec.template.spec.containers[0].image}"); !strings.HasSuffix(got, want) {
			t.Errorf("%s has %s, want %s", object, got, want)
		}
	}
	c.freeAreClean(t, c.spares)
}

// healthChecks replace workers and control planes whose nodes are lost.
func healthChecks() (objects []map[string]any) {
	for name, selector := range map[string]map[string]any{
		"workers":        {"matchLabels": map[string]any{"cluster.x-k8s.io/deployment-name": "prod-md-0"}},
		"control-planes": {"matchLabels": map[string]any{"cluster.x-k8s.io/control-plane": ""}},
	} {
		var unhealthy []map[string]any
		for _, status := range []string{"Unknown", "False"} {
			unhealthy = append(unhealthy, map[string]any{"type": "Ready", "status": status, "timeoutSeconds": 30})
		}
		objects = append(objects, map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"clusterName": "prod", "selector": selector, "checks": map[string]any{"unhealthyNodeConditions": unhealthy},
			},
		})
	}
	return objects
}

// replaced waits for another worker. The lost host cannot be cleaned, and is not handed out again.
func (c *capiUpgrade) replaced(t *testing.T) {
	c.isReplaced(t, software.KubernetesVersion)
}

// loseControlPlane loses one of three, with its member of etcd.
func (c *capiUpgrade) loseControlPlane(t *testing.T) {
	c.lose(t, "cluster.x-k8s.io/control-plane")
	c.isReplaced(t, c.to.Version)
	if members := c.there(t, "-n kube-system get pods -l component=etcd --no-headers"); strings.Count(members, " Running ") != 3 {
		t.Errorf("want three members of etcd, got\n%s", members)
	}
}

// isReplaced waits for another Machine in the place of the lost one, whose host cannot be cleaned.
func (c *capiUpgrade) isReplaced(t *testing.T, version string) {
	t.Helper()
	begin := time.Now()
	c.until(t, 15*time.Minute, c.machine+" is replaced", "! kubectl get machine "+c.machine+" && "+machines(c.all(version), c.others(version)))
	t.Logf("%s is replaced another %s later", c.machine, time.Since(begin).Round(time.Second))
	got := c.on(t, c.adminHost(), in("kubectl get kkhost "+c.lost.Name+` -o jsonpath='{.status.state} {.spec.consumer} {.metadata.annotations}'`))
	if !strings.HasPrefix(got, "Quarantined  ") || !strings.Contains(got, "not cleaned after cluster prod") {
		t.Errorf("%s: %s", c.lost.Name, got)
	}
}

// comeBack switches the lost host on, cleans it as an operator does, and ends its quarantine.
func (c *capiUpgrade) comeBack(t *testing.T) {
	if err := c.lab.Start(t.Context(), c.lost); err != nil {
		t.Fatal(err)
	}
	inventory, cluster := filepath.Join(c.dir, "lost.yaml"), filepath.Join(c.dir, "lost-cluster.yaml")
	if err := c.lab.WriteInventory(inventory, hosts.Groups{
		"kube_control_plane": {c.lost.Number}, "kube_worker": {c.lost.Number},
	}); err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: prod}\nkubernetes: {version: " + software.KubernetesVersion +
		"}\nimageRegistry: {type: none}\ncni: {type: none}\n"
	if err := os.WriteFile(cluster, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, c.lab.Command(t.Context(), c.kkbundle, "reset", "--yes", "-i", inventory, "--cluster", cluster,
		"--known-hosts", c.lab.KnownHostsFile())).must(t, 0)
	c.on(t, c.adminHost(), in("kubectl annotate kkhost "+c.lost.Name+" infrastructure.kkbundle.io/quarantine-"))
	// A kubelet that came back has made its node again, which no Machine has.
	c.on(t, c.adminHost(), `export KUBECONFIG=/root/prod.conf KUBECACHEDIR=/tmp/kubectl
		kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.providerID}{"\n"}{end}' | awk 'NF == 1 {print $1}' | xargs -r kubectl delete node`)
	c.until(t, 2*time.Minute, "the host is free", c.free(2))
	if nodes := c.there(t, "get nodes --no-headers"); strings.Count(nodes, " Ready ") != 4 || strings.Count(nodes, "\n") != 4 {
		t.Errorf("want 4 nodes that are Ready, got\n%s", nodes)
	}
	c.freeAreClean(t, 2)
}
