package addon

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/peers"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// at returns the value at a path with dots.
func at(values map[string]any, path string) any {
	var v any = values
	for part := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[part]
	}
	return v
}

func hostsAt(addresses ...string) []*task.Host {
	var list []*task.Host
	for _, a := range addresses {
		list = append(list, &task.Host{Host: manifest.Host{Name: "h" + a}, IP: netip.MustParseAddr(a)})
	}
	return list
}

func TestServiceValues(t *testing.T) {
	t.Parallel()
	c := tasktest.Cluster(t, "metrics: true\nstorage: {local: true, nfs: true, nfsPath: /data/k8s}")
	s := environment{cluster: c, nodes: hostsAt("10.0.0.3"), nfs: hostsAt("10.0.0.9")}
	for name, want := range map[string]map[string]any{
		metricsServer: {"image.tag": "v0.8.0", "args": []any{"--kubelet-insecure-tls"}},
		localVolumes: {
			"localpv.image.registry": "docker.io/", "helperPod.image.repository": "openebs/linux-utils",
			"hostpathClass.isDefaultClass": true, "analytics.enabled": false,
		},
		peers.Spegel: {
			"image.tag": "v0.7.4", "image.digest": "", "clusterDomain": "cluster.local.",
			"basicAuthSecretName": "spegel-login", "spegel.containerdMirrorAdd": false,
		},
		nfsProvisioner: {"nfs.server": "10.0.0.9", "nfs.path": "/data/k8s", "storageClass.defaultClass": false},
	} {
		values, err := OwnCharts(c)[name].values(s)
		if err != nil {
			t.Fatal(err)
		}
		for path, v := range want {
			if diff := cmp.Diff(at(values, path), v); diff != "" {
				t.Errorf("%s: %s (-got +want):\n%s", name, path, diff)
			}
		}
	}
	if !isDefault(tasktest.Cluster(t, "storage: {nfs: true}"), nfsClass) {
		t.Error("the only class is not the default")
	}
	if _, err := OwnCharts(c)[nfsProvisioner].values(environment{cluster: c, nodes: s.nodes}); err == nil {
		t.Error("there is no server, and it is installed all the same")
	}
}

// TestDefinitionsOfCalico: from v3.32 on a task applies Calico's definitions before its chart; the chart of earlier
// releases has them.
func TestDefinitionsOfCalico(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v3.31.7": "calico", "v3.32.0": "calico-crds calico",
		"v3.40.2": "calico-crds calico",
	} {
		var names []string
		for _, task := range NetworkTasks(tasktest.Cluster(t,
			"kubernetes: {version: v1.35.4}\ncni: {type: calico, version: "+version+"}")) {
			names = append(names, task.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: tasks %q, want %q", version, got, want)
		}
	}
}

// TestDefinitionsOnly: a chart of definitions may have nothing else. The charts are stand-ins.
func TestDefinitionsOnly(t *testing.T) {
	t.Parallel()
	const crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.example}\n"
	for name, c := range map[string]struct{ template, want string }{
		"definitions": {crd, ""},
		"a pod too": {
			crd + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\n",
			"chart standin has the Pod p; it may have custom resource definitions only",
		},
		"no YAML": {"a: [", "chart standin: "},
		"all of the memory": { // in a process of its own
			`{{ repeat 3000000000 "x" }}`, "chart standin: rendering takes more than 1.0 GiB of memory",
		},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{
			"Chart.yaml":       "apiVersion: v2\nname: standin\nversion: 1.0.0\n",
			"templates/a.yaml": c.template,
		} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		chart, err := charts.LoadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		data, err := definitions(t.Context(), chart, charts.RenderOptions{
			Release: "a", Namespace: "b", KubeVersion: "v1.35.0",
			MaxOutput: maxDefinitions,
		})
		if c.want == "" && (err != nil || !strings.Contains(string(data), "name: a.example")) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}
