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
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

func parsed(t *testing.T, text string) *manifest.Cluster {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\n"+text))
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

// TestImagesOfAnotherRegistry: the catalog is the one place for images of another registry; kubeadm's repositories
// follow from it.
func TestImagesOfAnotherRegistry(t *testing.T) {
	t.Parallel()
	c := parsed(t, "kubernetes: {version: v1.34.3}\n")
	entry := func(ref string) catalogfile.CatalogEntry {
		return catalogfile.CatalogEntry{
			Follows: "kubernetes", Default: "v1.2.3",
			Images: []catalogfile.CatalogImage{{Name: ref + ":{version}"}},
		}
	}
	c.Catalogs = []*catalogfile.Catalog{{Components: map[string]catalogfile.CatalogEntry{"kube-apiserver": entry(
		"k8s.site/fips/kube-apiserver"), "coredns": entry("k8s.site/fips/coredns")}}}
	k, err := NewConfig(c, "10.0.0.3:6443")
	if err != nil {
		t.Fatal(err)
	}
	d := k.ClusterConfiguration()
	want := []any{
		"k8s.site/fips",
		kube.Document{"imageTag": "v1.2.3"},
		kube.Document{"local": kube.Document{"imageRepository": "registry.k8s.io", "imageTag": "3.6.5-0"}},
	}
	if diff := cmp.Diff(want, []any{d["imageRepository"], d["dns"], d["etcd"]}); diff != "" {
		t.Error(diff)
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
	// kubeadm knows its own and the one before
	release := "kubernetes: {version: " + strings.TrimSpace(string(version)) + "}\n"
	tag := map[string]string{}
	for _, name := range []string{"coredns", "pause", "etcd"} {
		if tag[name], err = catalog.Version(parsed(t, release), name); err != nil {
			t.Fatal(err)
		}
	}
	dns, pause, etcd := "registry.k8s.io/coredns/coredns:"+tag["coredns"], "registry.k8s.io/pause:"+tag["pause"],
		"registry.k8s.io/etcd:"+tag["etcd"]
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
		// the first four have the release's version
		if got := strings.Fields(string(out)); len(got) < 4 || !slices.Equal(got[4:], want) {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestControlGroupsOfVersion1: from 1.35 on kubeadm refuses them unless SystemVerification is skipped, whatever the
// kubelet is told.
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
