package manifest

import (
	"strings"
	"testing"
	"time"
)

func TestAddons(t *testing.T) {
	t.Parallel()
	parse := func(more string) (*Cluster, error) {
		return ParseCluster("c",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3}\n"+
				more))
	}
	for text, want := range map[string]string{
		"addons: [{release: a}]":                                       "addons[0]: chart is missing; write the name of a chart in the bundle, or manifests",
		"addons: [{chart: a, manifests: [b.yaml]}]":                    "has a chart already; write two entries",
		"addons: [{manifests: [b.yaml]}]":                              "release is missing; manifests have no name of their own",
		"addons: [{release: a, manifests: [b.yaml], values: [c]}]":     "belongs to a chart; leave it out",
		"addons: [{release: a, manifests: [b.yaml], onFailure: keep}]": "belongs to a chart; leave it out",
		"addons: [{chart: a, wait: none, timeout: 1m}]":                "belongs to wait: ready; leave it out",
		"addons: [{chart: a}, {release: a, manifests: [b.yaml]}]":      "is there twice",
		"storage: {nfsPath: /a}":                                       "belongs to nfs: true; leave it out",
		"storage: {nfs: true, nfsPath: a}":                             "write an absolute path",
		"storage: {nfs: true, nfsPath: '/a b'}":                        "write a directory below /",
		"storage: {nfs: true, nfsPath: /}":                             "write a directory below /",
		"storage: {nfs: true, nfsPath: /a/../b}":                       "write a directory below /",
		"storage: {nfs: true, nfsPath: /home}":                         "/home belongs to the system, and kkbundle reset empties this directory: write one below it",
		"etcd: {dataDir: /}":                                           "write a directory below /",
		"etcd: {dataDir: /var/lib/}":                                   "write a directory below /",
		"etcd: {dataDir: '/data/a b'}":                                 "write a directory below /",
		"etcd: {dataDir: /var/lib}":                                    "/var/lib belongs to the system, and kkbundle reset empties this directory: write one below it",
		"etcd: {dataDir: /etc/kubernetes}":                             "belongs to the system",
		"etcd: {dataDir: /run/etcd}":                                   "/run/etcd does not outlive a restart of the host: write a directory on a disk",
		"imageRegistry: {port: 6443}":                                  "6443 is a port of Kubernetes; take another, such as 5000",
		"cni: {type: none, values: [a.yaml]}":                          "there is no network to give them to",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	c, err := parse("addons: [{chart: a}, {release: b, manifests: [b.yaml], timeout: 1m}]\nstorage: {nfs: true}")
	if err != nil {
		t.Fatal(err)
	}
	d := c.WithDefaults()
	if a := d.Addons[0]; a.Wait != "ready" || time.Duration(a.Timeout) != 5*time.Minute || a.OnFailure != "rollback" ||
		a.Release != "a" {
		t.Errorf("%+v", a)
	}
	if a := d.Addons[1]; time.Duration(a.Timeout) != time.Minute || a.OnFailure != "" || a.Namespace != "default" {
		t.Errorf("%+v", a)
	}
	if d.Storage.NFSPath != "/srv/nfs/kubernetes" {
		t.Error(d.Storage.NFSPath)
	}
}
