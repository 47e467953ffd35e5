package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestClusterAPI installs a management cluster from one bundle, without a connection: clusterctl, Cluster API's
// controllers, cert-manager and the provider, which run as pods. With clusterctl at the site it declares a cluster, which
// comes up on hosts of a pool and goes again.
func TestClusterAPI(t *testing.T) {
	c := startClusterAPI(t, 3, 1)
	steps(t, []step{
		{"a management cluster of one host is installed", c.install},
		{"all providers are available, in the bundle's versions", c.available},
		{"the bundle is published, and hosts form a pool", c.publishedPool},
		{"clusterctl's cluster comes up, with a control plane and a worker", c.generate},
		{"clusterctl works at the site", c.clusterctl},
		{"a rerun changes nothing", c.again},
		{"a deleted cluster leaves its hosts as they were", c.goes},
		{"no packet left the hosts' network", c.packets},
	})
}

// startClusterAPI starts hosts and makes the bundle of a management cluster. The first hosts are for management clusters,
// the next one for the control plane of a declared cluster, and the others for its workers.
func startClusterAPI(t *testing.T, number, managers int) *clusterAPI {
	t.Helper()
	const registry = "10.250.0.11:5443"
	checkout, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts: number, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}},
		with:     []software.Extra{software.ManagementCluster, software.KubeVIP},
		checkout: checkout, given: append(software.CertManager(), software.KubeVIPProgram),
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"),
				"addons:\n  - chart: web\n    namespace: web\n    values: [web.yaml]\n",
				"clusterAPI: {version: "+software.ClusterAPIVersion+"}\n")
		},
	})
	c := &clusterAPI{published: registry + "/bundles/lab:1.0.0", capi: &capi{
		thread: th, managers: managers, registry: registry + "/mirror", ca: ca, life: t.Context(),
		endpoint: th.lab.Hosts[managers].Address, source: "oci://" + registry + "/bundles/lab:1.0.0",
		roles: func(number int) []string {
			if number == managers+1 {
				return []string{"control-plane"}
			}
			return []string{"worker"}
		},
	}}
	th.companyRegistry(t, 1, ca)
	th.makeBundle(t)                                                     // its cluster file names no registry of a site
	if err := os.RemoveAll(filepath.Join(th.dir, "cache")); err != nil { // the hosts are on the same disk
		t.Fatal(err)
	}
	useCompanyRegistry(t, th.dir, c.registry, ca)
	c.pristine = c.poolTraces(t)
	return c
}

// clusterAPI is a management cluster whose controllers are pods.
type clusterAPI struct {
	*capi
	published string // the reference of the bundle in the site's registry
	flavor    string // of the template, for clusterctl; "" is the one without a ClusterClass
}

func (c *clusterAPI) available(t *testing.T) {
	for _, namespace := range []string{
		"cert-manager", "capi-system", "capi-kubeadm-bootstrap-system", "capi-kubeadm-control-plane-system",
		"kkbundle-provider-system",
	} {
		c.kubectl(t, "wait --for=condition=Available --timeout=1s deployment --all -n "+namespace)
	}
	got := c.kubectl(t, `get providers.clusterctl.cluster.x-k8s.io -A -o jsonpath='{range .items[*]}{.type} {.providerName} {.version}{"\n"}{end}' | sort`)
	const want = "BootstrapProvider kubeadm " + software.ClusterAPIVersion + "\nControlPlaneProvider kubeadm " + software.ClusterAPIVersion +
		"\nCoreProvider cluster-api " + software.ClusterAPIVersion + "\nInfrastructureProvider kkbundle v0.1.0\n"
	if got != want {
		t.Errorf("providers:\n%s\nwant\n%s", got, want)
	}
}

// publishedPool publishes the bundle where the provider's pod can pull it.
func (c *clusterAPI) publishedPool(t *testing.T) {
	cmd := c.lab.Command(t.Context(), c.kkbundle, "publish", "--ca", filepath.Join(c.dir, "registry-ca.pem"),
		"--username", companyUser, "--password-stdin", c.bundle(), "oci://"+c.published)
	cmd.Stdin = strings.NewReader(companyPassword + "\n")
	run(t, cmd).must(t, 0)
	c.pool(t)
}

// atSite runs clusterctl on the management cluster's host, as an operator does.
func (c *clusterAPI) atSite(t *testing.T, args string) string {
	t.Helper()
	return c.on(t, c.adminHost(), "export XDG_CONFIG_HOME=/etc/kkbundle KUBECONFIG=/etc/kubernetes/admin.conf KUBECACHEDIR=/tmp/kubectl; "+
		"CONTROL_PLANE_ENDPOINT="+c.endpoint+" REGISTRY="+c.registry+" clusterctl "+args)
}

// generate declares the cluster by the template of clusterctl's repository.
func (c *clusterAPI) generate(t *testing.T) {
	begin := time.Now()
	template := c.atSite(t, "generate cluster prod -n site --infrastructure kkbundle --kubernetes-version "+
		software.KubernetesVersion+" --worker-machine-count 1 --flavor '"+c.flavor+"' 2>/tmp/clusterctl.log || { cat /tmp/clusterctl.log; false; }")
	c.apply(t, forLab(objectsOf(t, template)))
	c.answers(t, begin)
	c.podNetwork(t)
	c.until(t, 10*time.Minute, "both Machines are Ready", `kubectl wait --for=condition=Ready --timeout=1s machine --all && kubectl get machine --no-headers | wc -l | grep -x 2`)
	c.until(t, 5*time.Minute, "the Cluster is Available", "kubectl wait --for=condition=Available --timeout=1s cluster/prod")
	t.Logf("the cluster is available after %s", time.Since(begin).Round(time.Second))
}

// clusterctl reads the cluster, its kubeconfig, and the repository.
func (c *clusterAPI) clusterctl(t *testing.T) {
	for args, want := range map[string]string{
		"describe cluster prod -n site":              "KubeadmControlPlane site/prod-cp",
		"get kubeconfig prod -n site":                "server: https://" + c.endpoint + ":6443",
		"upgrade plan":                               "You are already up to date!",
		"config repositories":                        "/etc/kkbundle/cluster-api/infrastructure-kkbundle",
		"init list-images --infrastructure kkbundle": "ghcr.io/kkbundle/provider:v0.1.0",
		"version -o short":                           software.ClusterAPIVersion,
		"move -n site --dry-run":                     "Moving Cluster API objects",
	} {
		out := c.atSite(t, args+" 2>&1")
		if !strings.Contains(out, want) {
			t.Errorf("clusterctl %s:\n%s\nwant %q in it", args, out, want)
		}
	}
	t.Log(c.atSite(t, "describe cluster prod -n site 2>&1"))
}

func (c *clusterAPI) again(t *testing.T) {
	cmd := c.site(t, "install", "-c", filepath.Join(c.dir, "cluster.yaml"))
	cmd.Env = append(os.Environ(), "SITE_REGISTRY="+companyPassword)
	if r := run(t, cmd).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

func (c *clusterAPI) goes(t *testing.T) {
	begin := time.Now()
	c.on(t, c.adminHost(), in("kubectl delete cluster prod --wait=false"))
	c.until(t, 15*time.Minute, "the cluster is gone, and every host is free", `[ -z "$(kubectl get cluster,machine,kkmachines,kkinstances --no-headers 2>/dev/null)" ] && `+
		c.free(len(c.poolHosts())))
	t.Logf("gone after %s", time.Since(begin).Round(time.Second))
	if after := c.poolTraces(t); after != c.pristine {
		t.Errorf("hosts are not as they were:\n%s", difference(c.pristine, after))
	}
}
