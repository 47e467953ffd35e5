package fetch_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// An everyHost is every host that the catalog names, in one: a file or image of the host is below the host's name, as
// on the mirrors of a zone. What it serves are stand-ins; their paths and the forms of their checksums are
// upstream's.
type everyHost struct {
	*site
	sources []sources.Source
}

func newEveryHost(t *testing.T, a catalog.Additions, platforms []string) *everyHost {
	t.Helper()
	u := &everyHost{site: &site{files: map[string]siteFile{}}}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			images.ServeHTTP(w, r)
			return
		}
		u.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	u.url = srv.URL
	u.host = strings.TrimPrefix(srv.URL, "http://")
	for i, image := range a.Images {
		u.push(t, image.Name, int64(i))
	}
	sums := map[string]*bytes.Buffer{}
	for _, f := range a.Files {
		for _, p := range f.PlatformsIn(platforms) {
			content := []byte(f.Name + " " + f.Version + " for " + p)
			if strings.HasSuffix(f.URL, "gz") {
				content = append([]byte("\x1f\x8b"), content...) // what gzip begins with
			}
			u.publish(t, manifest.FileURL(f, p), content)
			if f.Checksums != "" {
				at := scalar.Expand(f.Checksums, p)
				if sums[at] == nil {
					sums[at] = &bytes.Buffer{}
				}
				sums[at].WriteString(checksumLine(f.Name, path.Base(manifest.FileURL(f, p)),
					hex.EncodeToString(sum(content))))
			}
		}
	}
	for at, text := range sums {
		u.publish(t, at, text.Bytes())
	}
	for _, c := range a.Charts {
		u.publish(t, c.URL, bundletest.ChartArchive(t, c.Name, strings.TrimPrefix(c.Version, "v")))
	}
	return u
}

// checksumLine is an entry in the form that upstream publishes: Kubernetes the sum alone, docker-compose the form of
// binary files, all others that of sha256sum.
func checksumLine(component, file, sum string) string {
	switch component {
	case "kubeadm", "kubelet", "kubectl":
		return sum
	case "docker-compose":
		return sum + " *" + file + "\n"
	}
	return sum + "  " + file + "\n"
}

func (u *everyHost) reach(host string) {
	if !slices.ContainsFunc(u.sources, func(s sources.Source) bool { return s.Host == host }) {
		u.sources = append(u.sources, sources.Source{
			Host: host, Mirrors: sources.Mirrors{u.host + "/" + host},
			MirrorOnly: true, PlainHTTP: true,
		})
	}
}

func (u *everyHost) publish(t *testing.T, address string, content []byte) {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.reach(at.Host)
	u.put("/"+at.Host+at.Path, content)
}

func (u *everyHost) push(t *testing.T, image string, seed int64) {
	t.Helper()
	host, _, _ := strings.Cut(image, "/")
	u.reach(host)
	ref, err := name.ParseReference(u.host+"/"+image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, bundletest.MultiImage(t, 10_000*seed)); err != nil {
		t.Fatal(err)
	}
}

// Everything that clusters of every network, runtime and registry need, for two architectures, is locked from under
// its real path: with upstream's checksum where there is one, and with one request for each artifact and each file of
// checksums.
func TestCatalogIsFetched(t *testing.T) {
	t.Parallel()
	platforms := []string{"linux/amd64", "linux/arm64"}
	b := &manifest.Bundle{Platforms: platforms}
	for i, text := range []string{
		"cni: {type: calico}\nmetrics: true\nstorage: {local: true, nfs: true}\ndns: {nodeLocal: true}",
		"cni: {type: cilium}\ncri: {type: docker}\nimageRegistry: {type: harbor}\ncontrolPlaneEndpoint: {type: haproxy}",
		"cni: {type: multus, with: kube-ovn}\ncri: {type: crio}\netcd: {type: external}\ncontrolPlaneEndpoint: {type: kube-vip, address: 10.0.0.9}",
		"cni: {type: flannel}", "k3s",
	} {
		kubernetes := "kubernetes: {version: v1.34.3}\n"
		if text == "k3s" {
			kubernetes, text = "kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\n", ""
		}
		c, err := manifest.ParseCluster("cluster.yaml",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\n"+kubernetes+text))
		if err != nil {
			t.Fatal(i, err)
		}
		a, err := catalog.Resolve(c, plan.Needed(c), catalog.Options{Platforms: platforms})
		if err != nil {
			t.Fatal(i, err)
		}
		if b, err = a.AddTo(b); err != nil {
			t.Fatal(err)
		}
	}
	u := newEveryHost(t, catalog.Additions{Files: b.Files, Images: b.Images, Charts: b.Charts}, platforms)
	b.Sources = u.sources
	l, err := fetch.Resolve(t.Context(), b, fetch.Options{
		Store: newStore(t), Platforms: platforms, Sources: u.sources, Retry: fetch.Retry{Idle: never},
	})
	if err != nil {
		t.Fatal(err)
	}
	var firstUse []string
	for _, pin := range l.Items {
		if pin.Kind == manifest.ItemFile && pin.Verified == manifest.VerifiedFirstUse {
			firstUse = append(firstUse, pin.Name+" "+pin.Platform)
		}
	}
	slices.Sort(firstUse)
	want := []string{
		"cri-dockerd linux/amd64", "cri-dockerd linux/arm64", "docker linux/amd64", "docker linux/arm64",
		"harbor linux/amd64",
	}
	if diff := cmp.Diff(firstUse, want); diff != "" {
		t.Errorf("without upstream's checksum (-got +want):\n%s", diff)
	}
	asked := map[string]int{}
	for _, r := range u.seen() {
		asked[r.method+" "+r.path]++
	}
	for request, n := range asked {
		if n > 1 {
			t.Errorf("%d times %s", n, request)
		}
	}
	t.Logf("%d items, %d requests for files and charts", len(l.Items), len(u.seen()))
}
