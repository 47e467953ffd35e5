package kubeadm

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

func parsed(t *testing.T, text string) *manifest.Cluster {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return c.WithDefaults()
}

// TestImageTagsAreWritten: kubeadm is told each tag, so that none of its own counts; a cluster file has the last word.
func TestImageTagsAreWritten(t *testing.T) {
	t.Parallel()
	local := func(tag string) kube.Document { return kube.Document{"local": kube.Document{"imageTag": tag}} }
	for name, tc := range map[string]struct {
		text            string
		etcd            any
		repository, dns string
	}{
		"defaults":   {"kubernetes: {version: v1.34.3}\n", local("3.6.5-0"), "registry.k8s.io", "v1.12.1"},
		"components": {"kubernetes: {version: v1.34.3}\ncomponents: {etcd: {version: 3.6.99-0}, coredns: {version: v1.13.9}}\n", local("3.6.99-0"), "registry.k8s.io", "v1.13.9"},
		"the user's": {"kubernetes: {version: v1.34.3, kubeadm: {imageRepository: k8s.site, dns: {imageTag: v9.0.0}}}\n", local("3.6.5-0"), "k8s.site", "v9.0.0"},
		"external": {
			"kubernetes: {version: v1.34.3, kubeadm: {etcd: {external: {endpoints: [\"https://10.0.0.1:2379\"]}}}}\n",
			kube.Document{"external": kube.Document{"endpoints": []any{"https://10.0.0.1:2379"}}},
			"registry.k8s.io", "v1.12.1",
		},
	} {
		k, err := NewConfig(parsed(t, tc.text), "10.0.0.3:6443")
		if err != nil {
			t.Fatal(err)
		}
		d := k.ClusterConfiguration()
		got := []any{d["etcd"], d["imageRepository"], d["dns"]}
		if diff := cmp.Diff([]any{tc.etcd, tc.repository, kube.Document{"imageTag": tc.dns}}, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestRealKubeadmTakesTheTags: a genuine kubeadm lists the images of the configuration, and of its own defaults.
func TestRealKubeadmTakesTheTags(t *testing.T) {
	t.Parallel()
	program := labProgram(t, "kubernetes-amd64-*", "kubeadm")
	version, err := exec.CommandContext(t.Context(), program, "version", "--output=short").Output()
	if err != nil {
		t.Fatal(err)
	}
	release := "kubernetes: {version: " + strings.TrimSpace(string(version)) + "}\n" // kubeadm knows its own and the one before
	tag := map[string]string{}
	for _, name := range []string{"coredns", "pause", "etcd"} {
		if tag[name], err = catalog.Version(parsed(t, release), name); err != nil {
			t.Fatal(err)
		}
	}
	dns, pause, etcd := "registry.k8s.io/coredns/coredns:"+tag["coredns"], "registry.k8s.io/pause:"+tag["pause"], "registry.k8s.io/etcd:"+tag["etcd"]
	for text, want := range map[string][]string{
		"": {dns, pause, etcd},
		"components: {etcd: {version: 3.6.99-0}, coredns: {version: v1.13.9}}\n": {"registry.k8s.io/coredns/coredns:v1.13.9", pause, "registry.k8s.io/etcd:3.6.99-0"},
		"etcd: {type: external}\n": {dns, pause},
	} {
		config, err := ImagesConfig(parsed(t, release+text))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, config, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, "config", "images", "list", "--config="+file).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(string(out)); len(got) < 4 || !slices.Equal(got[4:], want) { // the first four have the release's version
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestControlGroupsOfVersion1: from 1.35 on kubeadm refuses them unless SystemVerification is skipped, whatever the kubelet is told.
func TestControlGroupsOfVersion1(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"kubernetes: {version: v1.34.3, kubelet: {failCgroupV1: false}}\n": nil,
		"kubernetes: {version: v1.35.4, kubelet: {failCgroupV1: false}}\n": {"SystemVerification"},
		"kubernetes: {version: v1.35.4, kubelet: {failCgroupV1: true}}\n":  nil,
		"kubernetes: {version: v1.35.4}\n":                                 nil,
	} {
		c := parsed(t, text)
		k, err := NewConfig(c, "10.0.0.3:6443")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := k.Registration(Node{name: "node1"})["ignorePreflightErrors"].([]string)
		if !slices.Equal(got, want) || !slices.Equal(IgnoredChecks(c), want) {
			t.Errorf("%s: %q, %q", text, got, IgnoredChecks(c))
		}
	}
}
