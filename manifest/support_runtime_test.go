package manifest

import (
	"strings"
	"testing"
)

// What k3s has no place for is refused: none of it is passed over in silence.
func TestK3sRefuses(t *testing.T) {
	const head = "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {distribution: k3s, version: v1.34.3+k3s1"
	for settings, paths := range map[string][]string{
		"}\n":                       nil,
		", patches: [etcd.yaml]}\n": {"kubernetes.patches"},
		"}\ncertificates: {ca: {cert: a, key: b}, frontProxyCA: {cert: a, key: b}, etcdCA: {cert: a, key: b}}\n": {
			"certificates.ca", "certificates.frontProxyCA", "certificates.etcdCA",
		},
		"}\netcd: {dataDir: /data/etcd}\n":                          {"etcd.dataDir"},
		"}\netcd: {dataDir: /var/lib/etcd}\n":                       nil,
		"}\nclusterAPI: {version: v1.14.2}\n":                       {"clusterAPI"},
		"}\ncri: {version: v2.1.9}\n":                               {"cri.version"},
		"}\ncri: {takeOver: true, runtimeClasses: [{name: a}]}\n":   {"cri.takeOver", "cri.runtimeClasses"},
		"}\ncni: {version: v0.28.4, values: [flannel.yaml]}\n":      {"cni.version", "cni.values"},
		"}\ncni: {type: calico, version: v3.31.2, values: [a]}\n":   nil,
		"}\ncni: {type: multus, with: flannel, values: [a.yaml]}\n": nil,
	} {
		c, err := ParseCluster("c", []byte(head+settings))
		if err != nil {
			t.Errorf("%s: %v", settings, err)
			continue
		}
		err = c.CheckInstall()
		if (err == nil) != (len(paths) == 0) {
			t.Errorf("%s: %v", settings, err)
		}
		for _, path := range paths {
			if err != nil && !strings.Contains(err.Error(), path+": ") {
				t.Errorf("%s: %v, and nothing of %s", settings, err, path)
			}
		}
	}
}

// Docker and CRI-O have no place for containerd's settings.
func TestRuntimeSettingsOfContainerd(t *testing.T) {
	const head = "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3}\n"
	const settings = "takeOver: true, runtimeClasses: [{name: nvidia, binary: /usr/bin/nvidia-container-runtime}]}\n"
	for kind, refused := range map[string]bool{
		"": false, "type: containerd, ": false, "type: docker, ": true,
		"type: crio, ": true,
	} {
		c, err := ParseCluster("c", []byte(head+"cri: {"+kind+settings))
		if err != nil {
			t.Fatal(err)
		}
		err = c.CheckInstall()
		if got := err != nil && strings.Contains(err.Error(), "cri.takeOver: ") &&
			strings.Contains(err.Error(), "cri.runtimeClasses: "); got != refused || err != nil && !refused {
			t.Errorf("%q: %v", kind, err)
		}
	}
}

// Every value of a runtime class that would break containerd's configuration or the API's object has its own problem.
func TestRuntimeClassValues(t *testing.T) {
	const head = "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3}\ncri: {runtimeClasses: ["
	for text, want := range map[string]string{
		"{name: kata, type: io.containerd.kata.v2, binary: /opt/kata/bin/shim, options: {ConfigPath: /etc/k.toml}, nodeSelector: {kata.io/on: yes-1}}": "",
		"{type: io.containerd.kata.v2}":                        "name",
		"{name: runc}":                                         "cri.runtimeClasses[0].name: runc is the default",
		"{name: Kata}":                                         "cri.runtimeClasses[0].name: ",
		"{name: a}, {name: a}":                                 "cri.runtimeClasses[1].name: a is there twice",
		"{name: a, type: kata}":                                "cri.runtimeClasses[0].type: ",
		"{name: a, binary: kata}":                              "cri.runtimeClasses[0].binary: ",
		"{name: a, binary: \"/a\\nb\"}":                        "cri.runtimeClasses[0].binary: ",
		"{name: a, options: {\"A]\": b}}":                      "is not an option",
		"{name: a, options: {A: \"b\\nc\"}}":                   "cri.runtimeClasses[0].options[A]: has control characters",
		"{name: a, binary: /b, options: {BinaryName: /c}}":     "options[BinaryName]: is the same as binary",
		"{name: a, nodeSelector: {\"a b\": c}}":                "is not a label name",
		"{name: a, nodeSelector: {gpu: \"no value of this\"}}": "is not a label value",
	} {
		_, err := ParseCluster("c", []byte(head+text+"]}\n"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
