package catalog

import (
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// TestEtcdIsNotSkipped: etcd 3.6 is reached from 3.5.26 or newer only, and 3.7 from 3.6.11 or newer, in the last step
// before it, or in a step of the minor release that the hosts have.
func TestEtcdIsNotSkipped(t *testing.T) {
	const take = "3.5.32-0"
	for name, tc := range map[string]struct {
		version, from, more string
		steps, etcd         []string
	}{
		"next minor":    {"v1.34.4", "v1.33.6", "", []string{"v1.33.13"}, []string{take}},
		"newest patch":  {"v1.34.4", "v1.33.13", "", []string{"v1.33.13"}, []string{take}},
		"unknown patch": {"v1.34.4", "v1.33.99", "", []string{"v1.33.99"}, []string{take}},
		"over two":      {"v1.35.4", "v1.32.4", "", []string{"v1.33.13", "v1.34.4"}, []string{take, "3.6.5-0"}},
		"within 3.6":    {"v1.36.3", "v1.34.3", "", []string{"v1.35.4"}, []string{"3.6.6-0"}},
		"two to 3.7":    {"v1.37.2", "v1.35.4", "", []string{"v1.36.3"}, []string{"3.6.13-0"}},
		"3.5 to 3.7": {
			"v1.37.2", "v1.33.6", "",
			[]string{"v1.33.13", "v1.34.4", "v1.35.4", "v1.36.3"},
			[]string{take, "3.6.5-0", "3.6.6-0", "3.6.13-0"},
		},
		"external to 3.7":  {"v1.37.2", "v1.36.3", "etcd: {type: external}\n", nil, nil},
		"within 3.5":       {"v1.33.13", "v1.32.4", "", nil, nil},
		"to 3.7":           {"v1.37.2", "v1.36.3", "", []string{"v1.36.3"}, []string{"3.6.13-0"}},
		"before the table": {"v1.30.14", "v1.29.3", "", nil, nil},
		"own etcd": {
			"v1.34.4", "v1.33.6", "components: {etcd: {version: 3.6.15-0}}\n",
			[]string{"v1.33.13"},
			[]string{take},
		},
		"external": {"v1.34.4", "v1.33.6", "etcd: {type: external}\n", nil, nil},
	} {
		c := cluster(t, tc.version+", upgradeFrom: "+tc.from, tc.more)
		steps, err := Steps(c, list(manifest.Need{Kind: "image", Name: "etcd"}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var releases, etcds []string
		for _, s := range steps {
			version, err := Version(s.Cluster, "etcd")
			if err != nil {
				t.Error(err)
			}
			releases, etcds = append(releases, s.Cluster.Kubernetes.Version), append(etcds, version)
		}
		if !slices.Equal(releases, tc.steps) || !slices.Equal(etcds, tc.etcd) {
			t.Errorf("%s: steps %q with etcd %q", name, releases, etcds)
		}
		if len(c.Components) > 1 || c.Kubernetes.Kubeadm != nil {
			t.Errorf("%s: the cluster itself changed: %v", name, c)
		}
	}
}

// The record of nodes has kubeadm's settings, so the step is done once, and settings of the user stay.
func TestStepNamesItsEtcd(t *testing.T) {
	c := cluster(t, "v1.34.4, upgradeFrom: v1.33.13, kubeadm: {etcd: {local: {extraArgs: [{name: log-level, value: warn}]}}}", "")
	steps, err := Steps(c, nil)
	if err != nil || len(steps) != 1 || steps[0].Etcd != "3.5.32-0" {
		t.Fatalf("%+v, %v", steps, err)
	}
	local := section(section(steps[0].Cluster.Kubernetes.Kubeadm, "etcd"), "local")
	if local["imageTag"] != "3.5.32-0" || local["extraArgs"] == nil {
		t.Errorf("etcd.local is %v", local)
	}
	if _, told := section(section(c.Kubernetes.Kubeadm, "etcd"), "local")["imageTag"]; told {
		t.Error("the cluster itself changed")
	}
}

func TestThrough(t *testing.T) {
	c := cluster(t, "v1.34.4", "")
	for running, want := range map[string]string{
		"3.5.24": "3.5.32-0", "v3.5.9": "3.5.32-0", "3.5.26": "", "3.5.32": "",
		"3.6.5": "", "?": "",
	} {
		if got, err := Through(c, "etcd", running); got != want || err != nil {
			t.Errorf("from %s: %q, %v", running, got, err)
		}
	}
}

func TestThroughTo37(t *testing.T) {
	c := cluster(t, "v1.37.2", "")
	for running, want := range map[string]string{
		"3.6.8": "3.6.13-0", "3.6.10": "3.6.13-0", "3.6.11": "", "3.6.13": "",
		"3.7.0": "", "3.5.32": "3.6.13-0", "3.5.24": "3.5.32-0",
	} {
		if got, err := Through(c, "etcd", running); got != want || err != nil {
			t.Errorf("from %s: %q, %v", running, got, err)
		}
	}
}

// A release is exact if the tables were checked against it or a newer patch, or if all images of its kubeadm are
// listed.
func TestIsExact(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.34.3": true, "v1.34.4": true, "v1.34.99": false, "v1.99.0": false,
		"v1.34.98": true, "v1.34.97": false,
	} {
		c := cluster(t, version, "")
		c.Catalogs = []*catalogfile.Catalog{{Kubeadm: map[string]catalogfile.KubeadmImages{
			"v1.34.98": {Etcd: "3.6.7-0", CoreDNS: "v1.12.1", Pause: "3.10.1"}, "v1.34.97": {Etcd: "3.6.7-0"},
		}}}
		if got, err := IsExact(c); got != want || err != nil {
			t.Errorf("%s: %v, %v", version, got, err)
		}
	}
}
