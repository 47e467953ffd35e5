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
		"}\ncri: {version: v2.1.9}\n":                               {"cri.version"},
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
