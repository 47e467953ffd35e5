package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// metricsCatalog has the metrics-server that the Go proxy has, which is newer than kkbundle's catalog.
const metricsCatalog = `apiVersion: kkbundle.io/v1
kind: Catalog
components:
  metrics-server:
    default: v` + software.MetricsServerChartVersion + `
    chart: {url: "https://github.com/kubernetes-sigs/metrics-server/releases/download/metrics-server-helm-chart-{number}/metrics-server-{number}.tgz", version: "{number}"}
    images: ["registry.k8s.io/metrics-server/metrics-server:` + software.MetricsServerVersion + `"]
`

// second is a network that pods may ask for besides their own.
const second = `apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: second}
spec:
  config: '{"cniVersion": "0.3.1", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}'
`

// volumeValues makes the class of a user's provisioner the default one.
const volumeValues = `image: {repository: docker.io/rancher/local-path-provisioner, tag: ` + software.LocalPathVersion + `}
helperImage: {repository: docker.io/library/busybox, tag: 1.37.0}
storageClass: {defaultClass: true}
nodePathMap: [{node: DEFAULT_PATH_FOR_NON_LISTED_NODES, paths: [` + userVolumes + `]}]
`

// userVolumes is where a user's provisioner has its volumes on nodes.
const userVolumes = "/srv/volumes"

// TestAddons installs multus on flannel, metrics-server, and local-path-provisioner as the default storage class. All
// are genuine.
func TestAddons(t *testing.T) {
	th := start(t, scenario{hosts: 2, with: []software.Extra{software.Addons}, edit: func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "cluster.yaml"),
			"cni: {type: flannel}\n", "cni: {type: multus, with: flannel}\nmetrics: true\ncatalog: [catalog.yaml]\n",
			"addons:\n", "addons:\n  - {release: second, namespace: default, manifests: [second.yaml]}\n"+
				"  - {chart: local-path-provisioner, namespace: volumes, values: [volumes.yaml]}\n")
		rewrite(t, filepath.Join(dir, "manifest.yaml"),
			"  - docker.io/lab/labapp:1\n", "  - docker.io/lab/labapp:1\n  - docker.io/library/busybox:1.37.0\n",
			"charts:\n", "charts:\n  - {name: local-path-provisioner, repo: https://charts.lab.example/local-path, version: 0.0.x, values: [volumes.yaml]}\n")
		write(t, dir, map[string]string{
			"catalog.yaml": metricsCatalog, "second.yaml": second,
			"volumes.yaml": volumeValues,
		})
	}})
	th.nodes, th.pristine = 2, th.traces(t)
	th.makeBundle(t)
	steps(t, []step{
		{"an install killed at multus and at metrics-server continues", func(t *testing.T) {
			th.killAt(t, "multus")
			th.killAt(t, "metrics-server")
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
		}},
		{"the cluster works", th.cluster},
		{"a volume was proved", func(t *testing.T) { th.volumeProved(t, "local-path") }},
		{"kubectl top has figures of nodes and pods", th.top},
		{"a pod has a second interface", th.secondInterface},
		{"a pod on each node writes to a volume of its own", func(t *testing.T) { th.volumes(t, userVolumes) }},
		{"a rerun changes nothing", th.rerun},
		{"status says healthy", th.looks},
		{
			"reset leaves a user's volumes, and nothing else",
			func(t *testing.T) { th.resetVolumes(t, userVolumes, false) },
		},
		{"no packet left the hosts' network", th.packets},
	})
}

// localVolumesCatalog has the release of OpenEBS' provisioner that is given.
const localVolumesCatalog = `apiVersion: kkbundle.io/v1
kind: Catalog
components:
  localpv-provisioner:
    default: v` + software.LocalPVVersion + `
    chart: {url: "https://openebs.github.io/dynamic-localpv-provisioner/localpv-provisioner-{number}.tgz", version: "{number}"}
    images:
      - docker.io/openebs/provisioner-localpv:{number}
      - docker.io/openebs/linux-utils:` + software.LocalPVToolsVersion + `
`

// TestLocalVolumes installs two nodes with storage.local. OpenEBS' provisioner is no module: its program and its
// chart have to be given.
func TestLocalVolumes(t *testing.T) {
	const path = "/var/openebs/local"
	th := start(t, scenario{
		hosts: 2, with: []software.Extra{software.LocalPV, software.Addons},
		given: []string{software.LocalPVProgram, software.LocalPVChart},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "cni: {type: flannel}\n",
				"cni: {type: flannel}\nstorage: {local: true}\ncatalog: [catalog.yaml]\n")
			rewrite(t, filepath.Join(dir, "manifest.yaml"), "  - docker.io/lab/labapp:1\n",
				"  - docker.io/lab/labapp:1\n  - docker.io/library/busybox:1.37.0\n")
			write(t, dir, map[string]string{"catalog.yaml": localVolumesCatalog})
		},
	})
	th.nodes, th.pristine = 2, th.traces(t)
	th.makeBundle(t)
	steps(t, []step{
		{"an install killed at the provisioner continues", func(t *testing.T) {
			th.killAt(t, "localpv-provisioner")
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
		}},
		{"a volume was proved", func(t *testing.T) { th.volumeProved(t, "local") }},
		{"a pod on each node writes to a volume of its own", func(t *testing.T) { th.volumes(t, path) }},
		{"a rerun changes nothing", th.rerun},
		{
			"reset leaves volumes alone until it is told to take them",
			func(t *testing.T) { th.resetVolumes(t, path, true) },
		},
	})
}

// write makes files beside the manifest.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(files[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// volumeProved looks whether the installation has tried a volume of the class, and cleaned up after itself.
func (th *thread) volumeProved(t *testing.T, class string) {
	if got := th.on(t, 1, "cat /var/lib/kkbundle/applied/volume-proof"); got != class+"\n" {
		t.Errorf("a volume of %q was proved", got)
	}
	if got := th.kubectl(t, "get storageclass "+class+
		` --output=jsonpath='{.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}'`); got != "true" {
		t.Errorf("class %s is the default: %q", class, got)
	}
	eventually(t, "the proof's volume and namespace are gone", func() bool {
		got := th.kubectl(t, "get pv,namespaces -o name")
		return !strings.Contains(got, "persistentvolume/") && !strings.Contains(got, "verify")
	})
}

func (th *thread) top(t *testing.T) {
	th.waitFor(t, 2*time.Minute, "figures of both nodes", 1,
		`[ "$(KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf top nodes --no-headers | awk '$2 ~ /^[0-9]+m$/ && $4 ~ /^[0-9]+Mi$/' | grep -c '^host[12] ')" = 2 ]`)
	if got := th.kubectl(t, "top pods -n kube-system --no-headers"); !strings.Contains(got, "kube-apiserver-host1") ||
		!strings.Contains(got, "metrics-server-") {
		t.Errorf("figures of kube-system's pods:\n%s", got)
	}
}

// secondInterface runs a pod on each node with an interface of the second network beside the one that all pods have.
func (th *thread) secondInterface(t *testing.T) {
	for number := range th.nodes {
		pod := fmt.Sprintf("second%d", number+1)
		overrides := fmt.Sprintf(`{"spec":{"nodeName":%q,"tolerations":[{"operator":"Exists"}]}}`,
			th.lab.Hosts[number].Name)
		th.kubectl(t, "run "+pod+
			" --image=docker.io/library/busybox:1.37.0 --annotations=k8s.v1.cni.cncf.io/networks=second --overrides='"+
			overrides+"' -- sleep 3600")
		th.kubectl(t, "wait pod/"+pod+" --for=condition=Ready --timeout=60s")
		addresses := th.kubectl(t, "exec "+pod+" -- ip -o -4 addr")
		if !strings.Contains(addresses, " eth0 ") || !strings.Contains(addresses, "net1") ||
			!strings.Contains(addresses, " 10.77.0.") {
			t.Errorf("%s has\n%s", pod, addresses)
		}
		if status := th.kubectl(t, "get pod "+pod+
			` --output=jsonpath='{.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}'`); !strings.Contains(status, `"interface": "net1"`) {
			t.Errorf("multus says of %s: %s", pod, status)
		}
		th.kubectl(t, "delete pod "+pod+" --now")
	}
}

// claimant is a claim of the default class and a pod on a node that writes to it.
const claimant = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  tolerations: [{operator: Exists}]
  containers:
  - name: writer
    image: docker.io/library/busybox:1.37.0
    command: [sh, -c, 'echo written by %[1]s >/data/text && sleep 3600']
    readinessProbe: {exec: {command: [cat, /data/text]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s}}]
`

// volumes has a pod on each node write to a volume, and finds what it wrote below path of that node and no other.
func (th *thread) volumes(t *testing.T, path string) {
	for _, h := range th.lab.Hosts {
		th.on(t, 1, "KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f - <<'END'"+
			fmt.Sprintf(claimant, h.Name)+"END")
	}
	for _, h := range th.lab.Hosts {
		th.kubectl(t, "wait pod/"+h.Name+" --for=condition=Ready --timeout=120s")
		if got := th.on(t, h.Number, "cat "+path+"/*/text"); got != "written by "+h.Name+"\n" {
			t.Errorf("%s has %q", h.Name, got)
		}
	}
}

// resetVolumes resets the cluster while pods have volumes. Those of a provisioner that kkbundle installed are data that
// --with-data takes away; of others it knows nothing.
func (th *thread) resetVolumes(t *testing.T, path string, ours bool) {
	r := run(t, th.site(t, "reset", "--yes")).must(t, 0)
	t.Logf("reset: %s", r.took.Round(100*time.Millisecond))
	for _, h := range th.lab.Hosts {
		if got := th.on(t, h.Number, "cat "+path+"/*/text"); got != "written by "+h.Name+"\n" {
			t.Errorf("after a reset without --with-data, %s has %q", h.Name, got)
		}
		if got := th.on(t, h.Number,
			"ls /etc/cni /opt/cni 2>&1; ip -br link | grep -E 'cni0|flannel|veth'; mount | grep -E '/var/lib/kubelet/|local-path|openebs'; true"); strings.Count(got, "No such file") != 2 || strings.Count(got, "\n") != 2 {
			t.Errorf("reset leaves on %s\n%s", h.Name, got)
		}
	}
	run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	for _, h := range th.lab.Hosts {
		if got := th.on(t, h.Number, "ls "+filepath.Dir(path)+" 2>/dev/null; true"); ours != (got == "") {
			t.Errorf("after a reset with --with-data, %s on %s has %q", filepath.Dir(path), h.Name, got)
		}
	}
	if after := th.traces(t); after != th.pristine {
		t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
	}
}
