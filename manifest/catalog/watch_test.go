package catalog

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// TestWatches: every version that moves with upstream's patches is watched, with an item whose reference has the
// version; no version of what kubeadm, a chart or another component decides is.
func TestWatches(t *testing.T) {
	k, err := Merged()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, w := range Watches(k) {
		found[w.Component]++
		if w.Pin.Ref != "" && !strings.Contains(w.Pin.Ref, strings.TrimPrefix(w.Version, "v")) {
			t.Errorf("%s %s: the item is %s", w.Component, w.Version, w.Pin.Ref)
		}
	}
	if found["kubernetes"] != len(k.Releases) || found["calico"] != len(k.Components["calico"].Since) ||
		found["cni-plugins"] != 1 {
		t.Errorf("watched: %v", found)
	}
	for _, name := range []string{"etcd", "coredns", "pause", "kubeadm", "hubble", "calicoctl", "flannel-cni-plugin"} {
		if found[name] > 0 {
			t.Errorf("%s is watched", name)
		}
	}
}

// TestApply: a file has the changed entries whole, keeps those of the file before, and changes neither.
func TestApply(t *testing.T) {
	k, err := Merged()
	if err != nil {
		t.Fatal(err)
	}
	before := k.Components["calico"].Since["v1.32.0"]
	own := &catalogfile.Catalog{Components: map[string]catalogfile.CatalogEntry{"extra": {Default: "v1"}}}
	out := Apply(k, own, []Change{
		{Component: "calico", Since: "v1.32.0", To: "v3.31.99"},
		{Component: "cni-plugins", To: "v9.9.9"},
		{Component: "kubernetes", Since: "v1.34", To: "v1.34.99"},
	})
	c := out.Components["calico"]
	if c.Since["v1.32.0"] != "v3.31.99" || c.Since["v1.30.0"] != k.Components["calico"].Since["v1.30.0"] ||
		c.Chart == nil || len(c.Images) == 0 {
		t.Errorf("calico is %+v", c)
	}
	if out.Components["cni-plugins"].Default != "v9.9.9" || out.Components["extra"].Default != "v1" ||
		out.Releases["v1.34"] != "v1.34.99" || len(out.Components) != 3 {
		t.Errorf("got %+v", out)
	}
	if k.Components["calico"].Since["v1.32.0"] != before || len(own.Components) != 1 {
		t.Error("the catalogs that were given have changed")
	}
	data, err := manifest.MarshalCatalog(out, "# header\n")
	if err != nil || !strings.HasPrefix(string(data), "# header\napiVersion: ") {
		t.Errorf("%s, %v", data, err)
	}
}

// TestEndOfLife: an item has the day of its component's line; components of Kubernetes' own version that of Kubernetes.
func TestEndOfLife(t *testing.T) {
	for _, c := range []struct {
		pin  manifest.Pin
		want string
	}{
		{manifest.Pin{Kind: manifest.ItemFile, Name: "kubelet", Version: "v1.32.4"}, "2026-02-28"},
		{
			manifest.Pin{Kind: manifest.ItemImage, Name: "registry.k8s.io/kube-apiserver", Version: "v1.30.14"},
			"2025-06-28",
		},
		{manifest.Pin{Kind: manifest.ItemFile, Name: "containerd", Version: "v2.1.9"}, "2026-07-03"},
		{manifest.Pin{Kind: manifest.ItemFile, Name: "containerd", Version: "v9.1.0"}, ""},
		{manifest.Pin{Kind: manifest.ItemImage, Name: "registry.k8s.io/pause", Version: "3.10"}, ""},
		{manifest.Pin{Kind: manifest.ItemImage, Name: "docker.io/library/nginx", Version: "1.30.0"}, ""},
		{manifest.Pin{Kind: manifest.ItemFile, Name: "tool", Version: "v1.30.0"}, ""},
	} {
		if got, err := EndOfLife(c.pin); err != nil || got != c.want {
			t.Errorf("%s %s: %q, %v; want %q", c.pin.Name, c.pin.Version, got, err, c.want)
		}
	}
}
