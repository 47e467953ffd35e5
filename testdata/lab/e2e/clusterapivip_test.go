package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestClusterAPIVIP declares three control planes and a worker by the template kube-vip, and loses the control plane
// that holds the address: its Machine is deleted, and another one comes.
func TestClusterAPIVIP(t *testing.T) {
	c := startClusterAPI(t, 5, 1)
	c.endpoint, c.flavor = vip, "kube-vip"
	c.roles = func(number int) []string {
		if number < 5 {
			return []string{"control-plane"}
		}
		return []string{"worker"}
	}
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"the bundle is published, and hosts form a pool", c.publishedPool},
		{"three control planes and a worker come up behind an address of kube-vip", c.generateThree},
		{"the Machine that holds the address is replaced, and the address answers", c.replaceHolder},
		{"a deleted cluster leaves its hosts as they were", c.goes},
		{"no packet left the hosts' network", c.packets},
	})
}

// generateThree declares the cluster by the template of clusterctl's repository.
func (c *clusterAPI) generateThree(t *testing.T) {
	begin := time.Now()
	template := c.atSite(t, "generate cluster prod -n site --infrastructure kkbundle --kubernetes-version "+software.KubernetesVersion+
		" --control-plane-machine-count 3 --worker-machine-count 1 --flavor "+c.flavor)
	c.apply(t, forLab(objectsOf(t, template)))
	c.answers(t, begin)
	// kube-vip starts again when its host is done, and nobody has the address for a moment.
	c.until(t, 5*time.Minute, "a host is done", `kubectl get kkinstances -o jsonpath='{.items[*].status.state}' | grep Running`)
	c.answers(t, begin)
	c.podNetwork(t)
	c.fourReady(t, "a cluster of three control planes and a worker")
	t.Logf("the cluster is available after %s", time.Since(begin).Round(time.Second))
	if kubeconfig := c.on(t, c.adminHost(), "cat /root/prod.conf"); !strings.Contains(kubeconfig, "server: https://"+vip+":6443") {
		t.Errorf("the kubeconfig has another address than %s", vip)
	}
}

func (c *clusterAPI) fourReady(t *testing.T, what string) {
	t.Helper()
	c.until(t, 15*time.Minute, what, `kubectl wait --for=condition=Ready --timeout=1s machine --all && kubectl get machine --no-headers | wc -l | grep -x 4`)
	c.until(t, 5*time.Minute, "the Cluster is Available", "kubectl wait --for=condition=Available --timeout=1s cluster/prod")
}

// replaceHolder deletes the Machine of the node that holds the address.
func (c *clusterAPI) replaceHolder(t *testing.T) {
	const lease = "kubectl --kubeconfig /root/prod.conf -n kube-system get lease plndr-cp-lock -o jsonpath={.spec.holderIdentity}"
	holder := c.on(t, c.adminHost(), in(lease))
	number := c.hostOf(t, holder)
	if got := c.on(t, number, "ip -oneline address show to "+vip); got == "" {
		t.Fatalf("host%d of %s, which holds the lease, does not have %s", number, holder, vip)
	}
	c.on(t, c.adminHost(), in("kubectl delete machine "+holder+" --wait=false"))
	c.until(t, 15*time.Minute, "its Machine is gone", "! kubectl get machine "+holder)
	c.fourReady(t, "another Machine in its place")
	now := c.on(t, c.adminHost(), in(lease))
	if now == holder || now == "" {
		t.Errorf("the address is %q's, whose Machine is gone", now)
	}
	var with []string
	for _, h := range c.poolHosts() {
		if c.on(t, h.Number, "ip -oneline address show to "+vip) != "" {
			with = append(with, fmt.Sprintf("host%d", h.Number))
		}
	}
	if want := []string{fmt.Sprintf("host%d", c.hostOf(t, now))}; !slices.Equal(with, want) {
		t.Errorf("%v have the address, want %v", with, want)
	}
}

// hostOf returns the number of the host of a Machine.
func (c *clusterAPI) hostOf(t *testing.T, machine string) (number int) {
	t.Helper()
	name := c.on(t, c.adminHost(), in("kubectl get kkinstance "+machine+" -o jsonpath={.spec.hostName}"))
	if _, err := fmt.Sscanf(name, "host%d", &number); err != nil {
		t.Fatalf("host %q of Machine %s: %v", name, machine, err)
	}
	return number
}
