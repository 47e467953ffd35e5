package e2e

import (
	"testing"
	"time"

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

// capiInPlace is a cluster without a spare host.
type capiInPlace struct {
	*capiUpgrade
	before string // machines and nodes
}

// createAll declares the cluster, whose rollouts make no machine before one is away.
func (c *capiInPlace) createAll(t *testing.T) {
	begin := time.Now()
	objects := c.declared(t, c.planes)
	for _, o := range objects {
		spec := o["spec"].(map[string]any)
		update := map[string]any{"maxSurge": 0}
		switch o["kind"] {
		case "KubeadmControlPlane":
			spec["kubeadmConfigSpec"].(map[string]any)["clusterConfiguration"] = map[string]any{
				"etcd": map[string]any{"local": map[string]any{"imageTag": c.etcdThrough()}},
			}
		case "MachineDeployment":
			spec["replicas"] = c.workers
			update["maxUnavailable"] = 1
		default:
			continue
		}
		spec["rollout"] = map[string]any{"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": update}}
	}
	c.apply(t, objects)
	c.answers(t, begin)
	c.podNetwork(t)
	const version = software.KubernetesVersion
	c.until(t, 12*time.Minute, "control planes and workers are Ready", machines(c.all(version), c.others(version)))
	t.Logf("control planes and workers are Ready after %s", time.Since(begin).Round(time.Second))
	c.before = c.identities(t)
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
