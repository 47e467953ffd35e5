package manifest

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Every value that the types name either works or is refused as not supported yet: nothing is passed over in silence.
// The list is what works; it grows as rows of the table go.
func TestSupported(t *testing.T) {
	want := map[string][]string{
		"kubernetes.distribution":      {"kubernetes", "k3s"},
		"kubernetes.proxyMode":         {"iptables", "nftables", "ipvs"},
		"kubernetes.security":          {"baseline", "hardened"},
		"controlPlaneEndpoint.type":    {"local", "kube-vip", "haproxy", "external"},
		"etcd.type":                    {"internal", "external", "provided"},
		"cri.type":                     {"containerd", "docker", "crio"},
		"cni.type":                     {"flannel", "calico", "cilium", "hybridnet", "kube-ovn", "multus", "none"},
		"cni.with":                     {"flannel", "calico", "cilium", "hybridnet", "kube-ovn"},
		"imageDistribution.registries": {"address", "spread"},
		"imageDistribution.peers":      {"none", "spegel"},
		"imageDistribution.programs":   {"machine", "registry"},
		"imageRegistry.type":           {"registry", "harbor", "existing", "none"},
		"precheck.internet":            {"allowed", "forbidden"},
		"certificates.renew":           {"auto", "manual"},
		"osPackages":                   {"bundle", "host", "none"},
	}
	got := map[string][]string{}
	choices := enums(reflect.TypeFor[Cluster](), "")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(choices)), slices.Sorted(maps.Keys(want))); diff != "" {
		t.Fatalf("paths with a choice (-got +want):\n%s", diff)
	}
	for path, values := range choices {
		for _, value := range values {
			if works(t, path, value) {
				got[path] = append(got[path], value)
			}
		}
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("what works (-got +want):\n%s", diff)
	}
}

func enums(t reflect.Type, path string) map[string][]string {
	found := map[string][]string{}
	for _, f := range document.Fields(t) {
		at := document.Join(path, f.Name)
		if f.Enum != nil && t.Field(f.Index).Type.Kind() != reflect.Slice { // lists are of things that can be combined
			found[at] = f.Enum
		}
		if kind := t.Field(f.Index).Type; kind.Kind() == reflect.Struct {
			maps.Copy(found, enums(kind, at))
		}
	}
	return found
}

// works parses a cluster with one value and tells whether that is supported; any other problem is a failure.
func works(t *testing.T, path, value string) bool {
	t.Helper()
	section, name, _ := strings.Cut(path, ".")
	settings := name + ": " + value
	switch path + ": " + value {
	case "etcd.type: provided":
		settings += ", endpoints: ['https://10.0.0.1:2379'], ca: a, cert: b, key: c"
	case "cni.type: multus":
		settings += ", with: flannel"
	case "imageDistribution.registries: spread":
		settings += "}\nimageRegistry: {vip: 10.0.0.9"
	}
	if section == "cni" && name == "with" {
		settings = "type: multus, " + settings
	}
	if section != "etcd" && slices.Contains([]string{"existing", "kube-vip", "external"}, value) {
		settings += ", address: host.example"
	}
	text := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\n"
	switch {
	case name == "":
		text += "kubernetes: {version: v1.34.3}\n" + path + ": " + value + "\n"
	case section == "kubernetes":
		text += "kubernetes: {version: v1.34.3, " + settings + "}\n"
	default:
		text += "kubernetes: {version: v1.34.3}\n" + section + ": {" + settings + "}\n"
	}
	c, err := ParseCluster("c", []byte(text))
	if err != nil {
		t.Errorf("%s %s: %v", path, value, err)
		return false
	}
	if err = c.CheckInstall(); err == nil {
		return true
	}
	var problems document.Problems
	if !errors.As(err, &problems) || len(problems) != 1 || !strings.Contains(err.Error(), path+": "+value+
		" is not supported yet by this version; use ") {
		t.Errorf("%s %s: %v", path, value, err)
	}
	return false
}

// A group whose ranges stand for more hosts than there can be ends the check early.
func TestInventoryBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  \"a[1:9999]\":\ngroups:\n  kube_control_plane: [a1]\n  kube_worker:\n")
	for range 90_000 {
		text.WriteString("  - \"a[1:9999]\"\n")
	}
	_, err := ParseInventory("i", []byte(text.String()))
	if err == nil || !strings.Contains(err.Error(), "more than 10000 hosts with this entry") {
		t.Errorf("%.300v", err)
	}
}

// TestEmptyClusterAPI: a key whose mapping has required keys says nothing by itself.
func TestEmptyClusterAPI(t *testing.T) {
	t.Parallel()
	_, err := ParseCluster("cluster.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Cluster
metadata: {name: c}
kubernetes: {version: v1.34.0}
clusterAPI:
cni:
`))
	if err == nil || !strings.Contains(err.Error(), "cluster.yaml:5:12: clusterAPI: has no value") || strings.Contains(err.Error(), "cni") {
		t.Errorf("got %v", err)
	}
}
