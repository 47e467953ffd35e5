package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestCAPIInPlace declares three control planes behind a balancer and two workers, and upgrades all of them by a minor
// release on their own hosts, under an application: there is no other host.
func TestCAPIInPlace(t *testing.T) {
	c := &capiInPlace{capiUpgrade: startCAPIUpgrade(t, 3, 2, 0)}
	c.inPlace = true
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"Cluster API and the provider run, with the features for updates in place", c.controllers},
		{"a pool of hosts", c.pool},
		{"three declared control planes come up behind a balancer, with two workers", c.createAll},
		{"a version that is in no bundle of the cluster is refused, and another bundle is named", c.nextBundle},
		{"control planes, then workers go to the next version on their hosts", c.upgrade},
		{"everything is of the next version", c.verify},
		{"machines and nodes are those from before", c.same},
		{"the API server and the application answered meanwhile", c.answered},
		{"a deleted cluster leaves its hosts as they were", c.delete},
		{"no packet left the hosts' network", c.packets},
	})
}

// TestCAPIInPlaceWorkers declares a control plane of the next version with two workers of the version before, and upgrades
// these on their own hosts, under an application.
func TestCAPIInPlaceWorkers(t *testing.T) {
	c := &capiInPlace{capiUpgrade: startCAPIUpgrade(t, 1, 2, 0)}
	c.inPlace = true
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"Cluster API and the provider run, with the features for updates in place", c.controllers},
		{"a pool of hosts", c.pool},
		{"a declared control plane comes up behind a balancer, with two workers of the version before", c.createMixed},
		{"the workers go to the next version on their hosts", c.upgradeWorkers},
		{"everything is of the next version", c.verify},
		{"the workers' kubelets get another setting", c.setKubelets},
		{"machines and nodes are those from before", c.same},
		{"the application answered meanwhile", c.answered},
		{"a deleted cluster leaves its hosts as they were", c.delete},
		{"no packet left the hosts' network", c.packets},
	})
}

// capiInPlace is a cluster without a spare host.
type capiInPlace struct {
	*capiUpgrade
	before string // machines and nodes
}

// createAll declares the cluster, whose etcd is the release that the next one goes together with.
func (c *capiInPlace) createAll(t *testing.T) {
	c.comeUp(t, software.KubernetesVersion, func(kind string, _, spec map[string]any) {
		if kind == "KubeadmControlPlane" {
			spec["kubeadmConfigSpec"].(map[string]any)["clusterConfiguration"] = map[string]any{
				"etcd": map[string]any{"local": map[string]any{"imageTag": c.etcdThrough()}},
			}
		}
	})
}

// createMixed declares a cluster whose control plane has the next version already.
func (c *capiInPlace) createMixed(t *testing.T) {
	c.readNext(t)
	c.comeUp(t, c.to.Version, func(kind string, meta, spec map[string]any) {
		switch kind {
		case "MachineDeployment": // Cluster API lets no kubeadm join a cluster of another minor release
			meta["annotations"] = map[string]any{"machineset.cluster.x-k8s.io/skip-preflight-checks": "KubeadmVersionSkew"}
		case "KubeadmControlPlane":
			spec["version"] = c.to.Version
			delete(spec, "rollout") // refused below three replicas
		case "KKCluster":
			spec["bundleRef"] = map[string]any{"name": "next"}
		}
	})
}

// comeUp declares a cluster whose rollouts make no machine before one is away.
func (c *capiInPlace) comeUp(t *testing.T, planes string, edit func(kind string, meta, spec map[string]any)) {
	t.Helper()
	begin := time.Now()
	objects := c.declared(t, c.planes)
	for _, o := range objects {
		kind, spec := o["kind"].(string), o["spec"].(map[string]any)
		update := map[string]any{"maxSurge": 0}
		switch kind {
		case "MachineDeployment":
			spec["replicas"] = c.workers
			update["maxUnavailable"] = 1
			fallthrough
		case "KubeadmControlPlane":
			spec["rollout"] = map[string]any{"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": update}}
		}
		edit(kind, o["metadata"].(map[string]any), spec)
	}
	c.apply(t, objects)
	c.answers(t, begin)
	c.podNetwork(t)
	c.until(t, 12*time.Minute, "control planes and workers are Ready", machines(c.all(planes), c.others(software.KubernetesVersion)))
	t.Logf("control planes and workers are Ready after %s", time.Since(begin).Round(time.Second))
	c.before = c.identities(t)
}

// upgradeWorkers brings the workers to the version of the control plane. The manager is killed while it updates the
// first host.
func (c *capiInPlace) upgradeWorkers(t *testing.T) {
	c.asking(t, plain.Count(c.workers, "worker")+", each in place", func(time.Time) {
		c.giveWorkers(t)
		c.killWhile(t, "the first host is updated", "{.status.state}", "Updating")
		c.workersHave(t)
	})
}

// setKubelets changes kubeadm's patch of the workers' kubelets, by another template as Cluster API wants it.
func (c *capiInPlace) setKubelets(t *testing.T) {
	begin := time.Now()
	template := objectsOf(t, c.on(t, c.adminHost(), in("kubectl get kubeadmconfigtemplate prod-md-0 -o yaml")))[0]
	template["metadata"] = map[string]any{"name": "prod-md-1"}
	spec := template["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	patch := spec["files"].([]any)[0].(map[string]any)
	patch["content"] = strings.Replace(patch["content"].(string), "}", `, "maxPods": 77}`, 1)
	c.apply(t, []map[string]any{template})
	c.on(t, c.adminHost(), in(`kubectl patch machinedeployment prod-md-0 --type=merge -p '{"spec": {"template": {"spec": {"bootstrap": {"configRef": {"name": "prod-md-1"}}}}}}'`))
	c.until(t, 10*time.Minute, "the workers' kubelets have it", fmt.Sprintf(
		`kubectl --kubeconfig /root/prod.conf get nodes -o jsonpath='{range .items[*]}{.status.capacity.pods}{"\n"}{end}' | grep -c -x 77 | grep -x %d`, c.workers))
	t.Logf("%d kubelets have another setting after %s", c.workers, time.Since(begin).Round(time.Second))
	c.until(t, 5*time.Minute, "all Machines are Ready", machines(c.all(c.to.Version), c.others(c.to.Version)))
}

// identities are the names of Machines with their hosts, and the UIDs of nodes.
func (c *capiInPlace) identities(t *testing.T) string {
	t.Helper()
	return c.on(t, c.adminHost(), in(`kubectl get kkmachines -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid} {.spec.hostName}{"\n"}{end}'`)) +
		c.there(t, `get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}'`)
}

func (c *capiInPlace) same(t *testing.T) {
	if after := c.identities(t); after != c.before {
		t.Errorf("machines were replaced:\n%s", difference(c.before, after))
	}
	if nodes := c.there(t, "get nodes -o jsonpath={.items[*].spec.unschedulable}"); nodes != "" {
		t.Errorf("nodes are cordoned: %q", nodes)
	}
}
