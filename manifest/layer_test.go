package manifest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/document"
)

const layered = `apiVersion: kkbundle.io/v1
kind: Cluster
metadata: {name: site}
kubernetes:
  version: v1.34.3
  maxPods: 120
  kubelet: {a: 1, b: {c: [x, y], d: true}}
addons:
  - {chart: web}
  - {chart: db, namespace: data}
`

const layers = `
vars: {cluster: {precheck: {minKernel: 5.4.0}}}
groupVars:
  kube_worker: {cluster: {kubernetes: {maxPods: 200, kubelet: {b: {d: false}}}}}
hosts:
  cp: {address: 10.0.0.1}
  w[1:2]: {address: "10.0.0.1[1:2]"}
  big: {address: 10.0.0.20, cluster: {kubernetes: {maxPods: 250}}}
groups: {kube_control_plane: [cp], kube_worker: ["w[1:2]", big]}
`

// Default < cluster file < vars < groupVars < host < --set, each value with the place it is from.
func TestForHost(t *testing.T) {
	inv := parseInventory(t, layers)
	c, err := ParseCluster("c.yaml", []byte(layered), "kubernetes.kubelet.a=2", "addons[0].namespace=front",
		"etcd.dataDir=")
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]map[string]string{
		"cp": {
			"kubernetes.maxPods": "120 c.yaml:6:12", "kubernetes.kubelet[a]": "2 --set",
			"kubernetes.kubelet[b][d]": "true c.yaml:7:37",
			"precheck.minKernel":       "5.4.0 i:4:40 (vars)", "etcd.dataDir": "/var/lib/etcd default",
			"addons[0].namespace": "front --set",
			"addons[0].chart":     "web c.yaml:9:13", "addons[1].namespace": "data c.yaml:10:28",
		},
		"w2": {
			"kubernetes.maxPods": "200 i:6:49 (group kube_worker)", "kubernetes.kubelet[a]": "2 --set",
			"kubernetes.kubelet[b][d]": "false i:6:71 (group kube_worker)",
			"kubernetes.kubelet[b][c]": "[x y] c.yaml:7:26",
		},
		"big": {"kubernetes.maxPods": "250 i:10:61 (host big)"},
	} {
		h, err := inv.Host(host)
		if err != nil {
			t.Fatal(err)
		}
		k, err := c.ForHost(inv, h)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, v := range k.Values() {
			if _, ok := want[v.Path]; ok {
				got[v.Path] = fmt.Sprint(v.Value, " ", v.Origin)
			}
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", host, diff)
		}
	}
	if c.Kubernetes.MaxPods != 120 || c.Kubernetes.Kubelet["b"].(map[string]any)["d"] != true {
		t.Errorf("the cluster itself changed: %+v", c.Kubernetes)
	}
}

// What is wrong only together is said where it was given.
func TestForHostProblem(t *testing.T) {
	inv := parseInventory(t, strings.Replace(layers, "250", "300", 1))
	c, err := ParseCluster("c.yaml", []byte(layered))
	if err != nil {
		t.Fatal(err)
	}
	h, err := inv.Host("big")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.ForHost(inv, h)
	if want := "i:10:61: kubernetes.maxPods: 300 is not between 1 and 254, which a node's /24 holds"; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestSettings(t *testing.T) {
	for setting, want := range map[string]string{
		"kubernetes.maxPods=200":              "",
		"kubernetes.podCIDR=10.0.0.0/16":      "",
		"kubernetes.kubelet={x: [1, {y: z}]}": "",
		"components[odd.name].version=v1":     "",
		"addons[1]={chart: other}":            "",
		"metrics=true":                        "",
		"cni.type=calico":                     "",
		"clusterAPI.provider=v0.1.0":          "--set clusterAPI.provider: clusterAPI: version is missing",
		"clusterAPI={version: 1.14.2}":        "--set clusterAPI: clusterAPI.version: write v1.14.2",
		"kubernetes.maxPods=many":             `--set kubernetes.maxPods: kubernetes.maxPods: want a whole number, have "many"`,
		"kubernetes.maxPod=1":                 `--set kubernetes.maxPod: kubernetes: unknown field "maxPod"; did you mean maxPods?`,
		"kubernets.maxPods=1":                 `--set kubernets.maxPods: unknown field "kubernets"; did you mean kubernetes?`,
		"metrics=maybe":                       `--set metrics: metrics: want true or false, have "maybe"`,
		"cni.type=flanel":                     `--set cni.type: cni.type: must be flannel, calico, cilium, hybridnet, kube-ovn, multus or none, is "flanel"; did you mean flannel?`,
		"addons[7].namespace=x":               "--set addons[7].namespace: addons: the list has 2 entries, from [0] on, and none is [7]",
		"kubernetes":                          "--set kubernetes: want PATH=VALUE, as in kubernetes.maxPods=200",
		"=x":                                  "--set : want PATH=VALUE, as in kubernetes.maxPods=200",
		"a..b=x":                              `--set a..b: "a..b" is not a path; write one as in kubernetes.maxPods or addons[0].namespace`,
		"a[b=x":                               `--set a[b: "a[b" is not a path; write one as in kubernetes.maxPods or addons[0].namespace`,
		"kubernetes.kubelet={x: [":            "--set kubernetes.kubelet: the value is not valid YAML: did not find expected node content",
		"kubernetes.kubelet={a: &x 1, b: *x}": "--set kubernetes.kubelet: the value has an alias; write it out",
		"kubernetes.kubelet=text":             `--set kubernetes.kubelet: kubernetes.kubelet: want a mapping, have "text"`,
		"imageRegistry.auth.password=hunter2": "--set imageRegistry.auth.password: imageRegistry.auth: belongs to an existing registry; write type: existing or leave it out\n--set imageRegistry.auth.password: imageRegistry.auth: password is refused: secrets never live in this file; write passwordEnv (an environment variable's name) or passwordFile\n--set imageRegistry.auth.password: imageRegistry.auth: username is missing",
		"kind=Inventory":                      `--set kind: kind: want Cluster, have "Inventory"`,
		"kubernetes.version=" + strings.Repeat("1", 5000): `--set kubernetes.version: kubernetes.version: "` +
			strings.Repeat("1", 120) + `…" is not a version; write v and three numbers, as in v1.36.3`,
	} {
		_, err := ParseCluster("c.yaml", []byte(layered), setting)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%.60s\n got %s\nwant %s", setting, got, want)
		}
	}
}

// What can differ between hosts has the same names and types in the cluster file.
func TestHostSettings(t *testing.T) {
	sameIn(t, reflect.TypeFor[HostSettings](), reflect.TypeFor[Cluster](), "")
}

func sameIn(t *testing.T, part, whole reflect.Type, path string) {
	t.Helper()
	all := map[string]reflect.Type{}
	for _, f := range document.Fields(whole) {
		all[f.Name] = whole.Field(f.Index).Type
	}
	for _, f := range document.Fields(part) {
		own, at := part.Field(f.Index).Type, document.Join(path, f.Name)
		switch {
		case all[f.Name] == nil:
			t.Errorf("%s is not in the cluster file", at)
		case own != all[f.Name] && own.Kind() == reflect.Struct:
			sameIn(t, own, all[f.Name], at)
		case own != all[f.Name]:
			t.Errorf("%s is a %s there", at, all[f.Name])
		}
	}
}

// FuzzSetting holds for any setting: no panic, and an error that names it.
func FuzzSetting(f *testing.F) {
	for _, seed := range []string{
		"kubernetes.maxPods=200", "addons[0].namespace=web", "components[a.b]={version: v1}",
		"a[", "[=", "kubernetes.kubelet=[*a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, setting string) {
		c, err := ParseCluster("c.yaml", []byte(layered), setting)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		c.Values()
	})
}
