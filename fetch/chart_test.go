package fetch_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	gname "github.com/google/go-containerregistry/pkg/name"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	helmregistry "helm.sh/helm/v3/pkg/registry"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// chartDir writes the chart app and returns its directory.
func chartDir(t testing.TB, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "app")
	for file, text := range map[string]string{
		"Chart.yaml":        fmt.Sprintf("apiVersion: v2\nname: app\nversion: %s\ndescription: test\n", version),
		"templates/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func chartArchive(t testing.TB, version string) []byte {
	t.Helper()
	c, err := charts.LoadDir(chartDir(t, version))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Archive(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const provenance = "-----BEGIN PGP SIGNED MESSAGE-----\ntest\n-----BEGIN PGP SIGNATURE-----\n"

// helmRepo publishes versions of a chart; digests are in the index if stated.
func helmRepo(t testing.TB, s *site, stated bool, versions ...string) {
	t.Helper()
	var index strings.Builder
	index.WriteString("apiVersion: v1\nentries:\n  app:\n")
	for _, v := range versions {
		data := chartArchive(t, v)
		s.put("/repo/app-"+v+".tgz", data)
		fmt.Fprintf(&index, "  - name: app\n    version: %s\n    urls:\n    - app-%s.tgz\n", v, v)
		if stated {
			fmt.Fprintf(&index, "    digest: %s\n", digestOf(data).Encoded())
		}
	}
	s.put("/repo/index.yaml", []byte(index.String()))
}

func oneChart(c manifest.Chart) *manifest.Bundle {
	return &manifest.Bundle{Metadata: manifest.Metadata{Name: "b", Version: "1"}, Charts: []manifest.Chart{c}}
}

func TestChartFromRepository(t *testing.T) {
	t.Parallel()
	for name, stated := range map[string]bool{"digest in the index": true, "no digest": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, true)
			helmRepo(t, s, stated, "4.13.0", "4.14.0", "4.14.1", "4.14.2-rc1")
			s.put("/repo/app-4.14.1.tgz.prov", []byte(provenance))
			store := newStore(t)
			b := oneChart(manifest.Chart{Name: "app", Repo: s.url + "/repo", Version: "4.14.x"})
			l, err := fetch.Resolve(t.Context(), b, options(store, s))
			if err != nil {
				t.Fatal(err)
			}
			p := l.Items[0]
			data := chartArchive(t, "4.14.1")
			if p.Ref != s.url+"/repo/app:4.14.1" || p.Version != "4.14.1" || p.Digest != digestOf(data) ||
				p.Size != int64(len(data)) {
				t.Errorf("pin: %+v", p)
			}
			if p.URL != s.url+"/repo/app-4.14.1.tgz" || p.Provenance != digestOf([]byte(provenance)) {
				t.Errorf("pin: %+v", p)
			}
			if want := map[bool]manifest.Verification{
				true:  manifest.VerifiedUpstream,
				false: manifest.VerifiedFirstUse,
			}[stated]; p.Verified != want {
				t.Errorf("verified %q, want %q", p.Verified, want)
			}
			if err := l.Covers(b); err != nil {
				t.Error(err)
			}
			text, err := l.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if l, err = manifest.ParseLock("lock.yaml", text); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			first, err := fetch.All(t.Context(), l, options(store, s))
			if err != nil {
				t.Fatal(err)
			}
			if n := s.count("GET", "/repo/app-4.14.1.tgz"); n != 1 {
				t.Errorf("the archive was fetched %d times", n)
			}
			// The lock alone, in another cache, gives the same bytes.
			other := newStore(t)
			second, err := fetch.All(t.Context(), l, options(other, s))
			if err != nil {
				t.Fatal(err)
			}
			if first[0].Descriptor.Digest != second[0].Descriptor.Digest {
				t.Error("one lock, two artifacts")
			}
			wantChart(t, store, first[0], data, provenance)
		})
	}
}

func wantChart(t *testing.T, store fetch.Store, it fetch.Item, archive []byte, prov string) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(content(t, store, it.Descriptor.Digest), &m); err != nil {
		t.Fatal(err)
	}
	if m.Config.MediaType != "application/vnd.cncf.helm.config.v1+json" ||
		m.Annotations[ocispec.AnnotationCreated] != "" {
		t.Errorf("manifest: %+v", m)
	}
	if got := content(t, store, m.Config.Digest); !json.Valid(got) || !bytes.Contains(got, []byte(`"name":"app"`)) {
		t.Errorf("config: %s", got)
	}
	found := map[string]string{}
	for _, l := range m.Layers {
		found[l.MediaType] = string(content(t, store, l.Digest))
	}
	if found["application/vnd.cncf.helm.chart.content.v1.tar+gzip"] != string(archive) ||
		found["application/vnd.cncf.helm.chart.provenance.v1.prov"] != prov {
		t.Errorf("layers: %v", m.Layers)
	}
}

func TestChartFailures(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	helmRepo(t, s, true, "1.0.0", "1.1.0")
	s.put("/other/index.yaml",
		[]byte("entries:\n  app:\n  - version: 1.0.0\n    urls: [../repo/app-1.1.0.tgz]\n    digest: "+
			digestOf(chartArchive(t, "1.1.0")).Encoded()+
			"\n  wrong:\n  - version: 1.0.0\n    urls: [../repo/app-1.1.0.tgz]\n    digest: "+digestOf(nil).Encoded()+
			"\n  gone:\n  - version: 1.0.0\n    urls: [gone.tgz]\n    digest: "+digestOf(nil).Encoded()+"\n"))
	s.put("/page/index.yaml", []byte("<html>\n"))
	s.put("/page.tgz", []byte("<html>\n"))
	for name, c := range map[string]struct {
		chart manifest.Chart
		says  []string
	}{
		"no such version": {
			manifest.Chart{Name: "app", Repo: s.url + "/repo", Version: "2.x"},
			[]string{"no version 2.x", "newest are 1.1.0, 1.0.0"},
		},
		"no such chart": {manifest.Chart{Name: "none", Repo: s.url + "/repo"}, []string{"no chart none"}},
		"no such repository": {
			manifest.Chart{Name: "app", Repo: s.url + "/none"},
			[]string{"/none/index.yaml", "no such file"},
		},
		"no repository": {manifest.Chart{Name: "app", Repo: s.url + "/page"}, []string{"not an index of charts"}},
		"another version": {
			manifest.Chart{Name: "app", Repo: s.url + "/other"},
			[]string{"the archive has chart app 1.1.0 instead of app 1.0.0"},
		},
		"wrong checksum": {
			manifest.Chart{Name: "wrong", Repo: s.url + "/other"},
			[]string{"wrong content", digestOf(nil).String()},
		},
		"archive is gone": {
			manifest.Chart{Name: "gone", Repo: s.url + "/other"},
			[]string{"gone.tgz", "no such file"},
		},
		"no chart at URL": {manifest.Chart{URL: s.url + "/page.tgz"}, []string{"not a packaged chart"}},
		"another name": {
			manifest.Chart{Name: "db", URL: s.url + "/repo/app-1.0.0.tgz"},
			[]string{"the manifest names the chart db", "app"},
		},
		"no such directory": {manifest.Chart{Path: "not/there"}, []string{"not/there"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(newStore(t), s)
			o.Dir = t.TempDir()
			l, err := fetch.Resolve(t.Context(), oneChart(c.chart), o)
			if err == nil {
				_, err = fetch.All(t.Context(), l, o)
			}
			wantError(t, err, append(c.says, "chart ")...)
		})
	}
}

func TestChartFromURL(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	data := chartArchive(t, "1.0.0")
	address := s.put("/download/app.tgz", data)
	store := newStore(t)
	b := oneChart(manifest.Chart{URL: address})
	l, err := fetch.Resolve(t.Context(), b, options(store, s))
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Items[0]; p.Ref != address || p.Name != "app" || p.Version != "1.0.0" || p.URL != "" ||
		p.Verified != manifest.VerifiedFirstUse {
		t.Errorf("pin: %+v", p)
	}
	if err := l.Covers(b); err != nil {
		t.Error(err)
	}
	before := s.count("", "")
	items, err := fetch.All(t.Context(), l, options(store, s))
	if err != nil || s.count("", "") != before {
		t.Fatalf("%v, %d requests", err, s.count("", "")-before)
	}
	wantChart(t, store, items[0], data, "")
}

func TestLocalChart(t *testing.T) {
	t.Parallel()
	dir := chartDir(t, "0.1.0")
	file := writeFile(t, "app.tgz", string(chartArchive(t, "0.2.0")))
	for path, version := range map[string]string{dir: "0.1.0", file: "0.2.0"} {
		o := options(newStore(t))
		o.Dir = filepath.Dir(path)
		b := oneChart(manifest.Chart{Path: filepath.Base(path)})
		l, err := fetch.Resolve(t.Context(), b, o)
		if err != nil {
			t.Fatal(err)
		}
		if p := l.Items[0]; p.Ref != "local/app:"+version || p.URL != filepath.Base(path) ||
			p.Digest != digestOf(chartArchive(t, version)) {
			t.Errorf("pin: %+v", p)
		}
		o.Store = newStore(t)
		items, err := fetch.All(t.Context(), l, o)
		if err != nil {
			t.Fatal(err)
		}
		wantChart(t, o.Store, items[0], chartArchive(t, version), "")
	}
	o := options(newStore(t))
	o.Dir = filepath.Dir(dir)
	l, err := fetch.Resolve(t.Context(), oneChart(manifest.Chart{Path: "app"}), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "values.yaml"), []byte("new: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Store = newStore(t)
	_, err = fetch.All(t.Context(), l, o)
	wantError(t, err, "kkbundle lock")
}

func TestOCIChart(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(), helmregistry.ClientOptWriter(io.Discard),
		helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")))
	if err != nil {
		t.Fatal(err)
	}
	pushed := map[string]string{}
	for _, v := range []string{"1.0.0", "1.1.0", "1.1.1+b.1", "2.0.0-rc.1"} {
		res, err := client.Push(chartArchive(t, v), u.Host+"/hub/charts/app:"+v,
			helmregistry.PushOptProvData([]byte(provenance)))
		if err != nil {
			t.Fatal(err)
		}
		pushed[v] = res.Manifest.Digest
	}
	u.pushImage("hub/charts/image:1.0.0", platformImage(t, "linux/amd64"))
	u.pushChart("hub/charts/app:latest", chartArchive(t, "3.0.0"), "") // no version: ranges pass over it
	for want, version := range map[string]string{
		"1.0.0": "1.0.0", "1.x": "1.1.1+b.1", "": "1.1.1+b.1",
		"*": "1.1.1+b.1", "1.1.1+b.1": "1.1.1+b.1", "2.0.0-rc.1": "2.0.0-rc.1",
	} {
		store := newStore(t)
		b := oneChart(manifest.Chart{Name: "app", Repo: "oci://docker.io/charts", Version: want})
		l, err := fetch.Resolve(t.Context(), b, u.options(store))
		if err != nil {
			t.Fatal(err)
		}
		if p := l.Items[0]; p.Ref != "oci://docker.io/charts/app:"+version || p.Digest.String() != pushed[version] ||
			p.Version != version {
			t.Errorf("%q: pin: %+v", want, p)
		}
		if err := l.Covers(b); want != "" && err != nil {
			t.Errorf("%q: %v", want, err)
		}
		items, err := fetch.All(t.Context(), l, u.options(store))
		if err != nil {
			t.Fatal(err)
		}
		if items[0].Descriptor.Digest.String() != pushed[version] {
			t.Errorf("%q: the digest is not upstream's", want)
		}
		var m ocispec.Manifest
		if err := json.Unmarshal(content(t, store, items[0].Descriptor.Digest), &m); err != nil || len(m.Layers) != 2 {
			t.Errorf("%v, layers %v", err, m.Layers)
		}
		for _, l := range append(m.Layers, m.Config) {
			content(t, store, l.Digest)
		}
	}
	// A repository named otherwise than its chart, a moving tag, a tag with a v.
	for tag, v := range map[string]string{
		"hub/charts/app-chart:1.1.0": "1.1.0", "hub/charts/moving:1.1": "1.1.0",
		"hub/charts/v:v1.1.0": "1.1.0", "hub/charts/off:2.0": "1.0.0",
	} {
		if _, err := client.Push(chartArchive(t, v), u.Host+"/"+tag,
			helmregistry.PushOptStrictMode(false)); err != nil {
			t.Fatal(err)
		}
	}
	for chart, want := range map[[2]string]string{
		{"app-chart", "1.1.0"}: "1.1.0", {"app-chart", ""}: "1.1.0",
		{"moving", "1.1"}: "1.1.0", {"moving", "^1"}: "1.1.0", {"v", "1.1.0"}: "v1.1.0",
	} {
		store := newStore(t)
		l, err := fetch.Resolve(t.Context(), oneChart(manifest.Chart{
			Name: chart[0], Repo: "oci://docker.io/charts",
			Version: chart[1],
		}), u.options(store))
		if err != nil {
			t.Errorf("%v: %v", chart, err)
			continue
		}
		if p := l.Items[0]; p.Name != chart[0] || p.Version != want || p.Ref != "oci://docker.io/charts/"+chart[0]+":"+
			want {
			t.Errorf("%v: pin: %+v", chart, p)
		}
		if newer, err := fetch.Outdated(t.Context(), l.Items, u.options(store)); err != nil || newer[0].Removed {
			t.Errorf("%v: outdated: %+v, %v", chart, newer, err)
		}
		if _, err := fetch.All(t.Context(), l, u.options(store)); err != nil {
			t.Errorf("%v: %v", chart, err)
		}
	}
	for name, c := range map[string]struct {
		chart manifest.Chart
		says  []string
	}{
		"another version": {
			manifest.Chart{Name: "off", Repo: "oci://docker.io/charts", Version: "2.0"},
			[]string{"the tag 2.0 has version 1.0.0 of the chart"},
		},
		"no such version": {
			manifest.Chart{Name: "app", Repo: "oci://docker.io/charts", Version: "3.0.0"},
			[]string{"no such tag", u.Host},
		},
		"no such range": {
			manifest.Chart{Name: "app", Repo: "oci://docker.io/charts", Version: "3.x"},
			[]string{"no version 3.x", "newest are 2.0.0-rc.1, 1.1.1+b.1"},
		},
		"an image": {
			manifest.Chart{Name: "image", Repo: "oci://docker.io/charts", Version: "1.0.0"},
			[]string{"not a Helm chart"},
		},
		"no such chart": {
			manifest.Chart{Name: "none", Repo: "oci://docker.io/charts", Version: "1.x"},
			[]string{"no such"},
		},
	} {
		_, err := fetch.Resolve(t.Context(), oneChart(c.chart), u.options(newStore(t)))
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		wantError(t, err, c.says...)
	}
}

// TestChartInIndex wants the chart of a tag that leads to an index of images and a chart, whether its entry says what
// it is or not.
func TestChartInIndex(t *testing.T) {
	t.Parallel()
	for name, artifactType := range map[string]string{
		"named":   "application/vnd.cncf.helm.config.v1+json",
		"unnamed": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, registrytest.Options{})
			client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(),
				helmregistry.ClientOptWriter(io.Discard),
				helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")))
			if err != nil {
				t.Fatal(err)
			}
			pushed, err := client.Push(chartArchive(t, "1.0.0"), u.Host+"/hub/charts/app:1.0.0")
			if err != nil {
				t.Fatal(err)
			}
			ref, err := gname.NewTag(u.Host+"/hub/charts/app:1.0.0", gname.Insecure)
			if err != nil {
				t.Fatal(err)
			}
			chart, err := remote.Image(ref)
			if err != nil {
				t.Fatal(err)
			}
			index := mutate.AppendManifests(empty.Index,
				mutate.IndexAddendum{
					Add:        platformImage(t, "linux/amd64"),
					Descriptor: gcr.Descriptor{Platform: &gcr.Platform{OS: "linux", Architecture: "amd64"}},
				},
				mutate.IndexAddendum{Add: chart, Descriptor: gcr.Descriptor{ArtifactType: artifactType}})
			if err := remote.WriteIndex(ref, index); err != nil {
				t.Fatal(err)
			}
			store := newStore(t)
			l, err := fetch.Resolve(t.Context(), oneChart(manifest.Chart{
				Name: "app", Repo: "oci://docker.io/charts",
				Version: "1.0.0",
			}), u.options(store))
			if err != nil {
				t.Fatal(err)
			}
			items, err := fetch.All(t.Context(), l, u.options(store))
			if err != nil || items[0].Descriptor.Digest.String() != pushed.Manifest.Digest {
				t.Errorf("got %v, %v", items, err)
			}
			if newer, err := fetch.Outdated(t.Context(), l.Items, u.options(store)); err != nil ||
				newer[0].Moved != "" || newer[0].Removed {
				t.Errorf("outdated: %+v, %v", newer, err)
			}
		})
	}
}

// pushChart pushes a chart as Helm does and returns the digest of its manifest.
func (u *upstream) pushChart(path string, archive []byte, prov string) string {
	u.t.Helper()
	o := []helmregistry.ClientOption{
		helmregistry.ClientOptWriter(io.Discard), helmregistry.ClientOptCredentialsFile(filepath.Join(u.t.TempDir(),
			"config.json")),
		helmregistry.ClientOptHTTPClient(&http.Client{Transport: u.Transport()}),
	}
	if u.CAFile == "" {
		o = append(o, helmregistry.ClientOptPlainHTTP())
	}
	if u.Password != "" {
		o = append(o, helmregistry.ClientOptBasicAuth(u.Username, u.Password))
	}
	client, err := helmregistry.NewClient(o...)
	if err != nil {
		u.t.Fatal(err)
	}
	push := []helmregistry.PushOption{helmregistry.PushOptStrictMode(false)}
	if prov != "" {
		push = append(push, helmregistry.PushOptProvData([]byte(prov)))
	}
	res, err := client.Push(archive, u.Host+"/"+path, push...)
	if err != nil {
		u.t.Fatal(err)
	}
	return res.Manifest.Digest
}

// leadsTo publishes a repository whose index has the chart app only in a registry, as Bitnami's does: at this
// address, with this digest.
func leadsTo(s *site, address, version, sum string) {
	index := "apiVersion: v1\nentries:\n  app:\n  - name: app\n    version: " + version + "\n    urls:\n    - " +
		address + "\n"
	if sum != "" {
		index += "    digest: " + sum + "\n"
	}
	s.put("/repo/index.yaml", []byte(index))
}

// TestChartIndexToRegistry follows an index of a repository to the registry that has its chart: the lock pins the
// archive, and alone gives the same bytes.
func TestChartIndexToRegistry(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{
		"release": "1.2.3", "with metadata": "1.2.4+b.1",
		"no provenance": "1.2.5",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, registrytest.Options{TLS: true, Auth: registrytest.AuthToken})
			archive, prov := chartArchive(t, version), ""
			if name != "no provenance" {
				prov = provenance
			}
			u.pushChart("hub/charts/app:"+version, archive, prov)
			s := newSite(t, true)
			address := "oci://registry-1.docker.io/charts/app:" + version
			sum := digestOf(archive).Encoded()
			leadsTo(s, address, version, sum)
			o := u.options(newStore(t))
			o.Sources = append(o.Sources, sources.Source{Host: s.host, CA: s.ca})
			b := oneChart(manifest.Chart{Name: "app", Repo: s.url + "/repo", Version: "1.x"})
			l, err := fetch.Resolve(t.Context(), b, o)
			if err != nil {
				t.Fatal(err)
			}
			p := l.Items[0]
			if p.Ref != s.url+"/repo/app:"+version || p.URL != address || p.Version != version || p.MediaType != "" {
				t.Errorf("pin: %+v", p)
			}
			if p.Digest != digestOf(archive) || p.Size != int64(len(archive)) ||
				p.Verified != manifest.VerifiedUpstream || (p.Provenance != "") != (prov != "") {
				t.Errorf("pin: %+v", p)
			}
			if err := l.Covers(b); err != nil {
				t.Error(err)
			}
			for range 2 {
				o.Store = newStore(t)
				items, err := fetch.All(t.Context(), l, o)
				if err != nil {
					t.Fatal(err)
				}
				wantChart(t, o.Store, items[0], archive, prov)
			}
			o.Keep = l
			before := s.count("", "")
			if again, err := fetch.Resolve(t.Context(), b, o); err != nil || again.Items[0].Digest != p.Digest ||
				s.count("", "") != before {
				t.Errorf("a kept pin: %+v, %v", again, err)
			}
			newer, err := fetch.Outdated(t.Context(), l.Items, o)
			if err != nil || newer[0].Moved != "" || newer[0].Removed {
				t.Errorf("outdated: %+v, %v", newer, err)
			}
		})
	}
}

// TestChartIndexToRegistryForms takes an address without a tag, and one with a digest. Without a digest
// in the index the registry vouches for the chart.
func TestChartIndexToRegistryForms(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, registrytest.Options{})
	archive := chartArchive(t, "1.0.0")
	pushed := u.pushChart("hub/charts/app:1.0.0", archive, "")
	u.pushChart("hub/charts/app:2.0.0", chartArchive(t, "2.0.0"), "")
	u.pushChart("hub/charts/other:1.0.0", archive, "")
	u.pushImage("hub/charts/image:1.0.0", platformImage(t, "linux/amd64"))
	own := newUpstream(t, registrytest.Options{TLS: true, Auth: registrytest.AuthBasic})
	own.pushChart("charts/app:1.0.0", archive, "")
	sum := digestOf(archive).Encoded()
	for name, c := range map[string]struct {
		address, sum string
		verified     manifest.Verification
		says         []string
	}{
		"no digest": {address: "oci://docker.io/charts/app:1.0.0", verified: manifest.VerifiedMirror},
		"the registry itself": {
			address:  "oci://" + own.Host + "/charts/app:1.0.0",
			verified: manifest.VerifiedUpstream,
		},
		"no tag": {address: "oci://docker.io/charts/app", sum: sum, verified: manifest.VerifiedUpstream},
		"tag and digest": {
			address: "oci://docker.io/charts/app:1.0.0@" + pushed, sum: "sha256:" + sum,
			verified: manifest.VerifiedUpstream,
		},
		"digest": {
			address: "oci://docker.io/charts/app@" + pushed, sum: sum,
			verified: manifest.VerifiedUpstream,
		},
		"another name": {
			address: "oci://docker.io/charts/other:1.0.0", sum: sum,
			verified: manifest.VerifiedUpstream,
		},
		"another digest": {
			address: "oci://docker.io/charts/app:1.0.0", sum: digestOf(nil).Encoded(),
			says: []string{"the index says", sum, digestOf(nil).Encoded(), "oci://docker.io/charts/app:1.0.0"},
		},
		"another version": {
			address: "oci://docker.io/charts/app:2.0.0",
			says:    []string{"the archive has chart app 2.0.0 instead of app 1.0.0"},
		},
		"tag is gone": {address: "oci://docker.io/charts/app:3.0.0", says: []string{"no such tag", u.Host}},
		"an image": {
			address: "oci://docker.io/charts/image:1.0.0",
			says:    []string{"oci://docker.io/charts/image:1.0.0", "not a Helm chart"},
		},
		"no registry": {
			address: "oci://charts/app:1.0.0",
			says:    []string{"oci://charts/app:1.0.0", "not an OCI reference"},
		},
		"a login": {
			address: "oci://anna:geheim@docker.io/charts/app:1.0.0",
			says:    []string{"a login in it"},
		},
		"a secret": {
			address: "oci://docker.io/charts/app:1.0.0?token=geheim",
			says:    []string{"a secret in it (token)"},
		},
		"not a digest": {address: "oci://docker.io/charts/app@sha256:abc", says: []string{"sha256:abc"}},
		"another algorithm": {
			address: "oci://docker.io/charts/app@sha512:" + strings.Repeat("a", 128),
			says:    []string{"only sha256"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, true)
			leadsTo(s, c.address, "1.0.0", c.sum)
			o := u.options(newStore(t))
			o.Keychain = authn.NewMultiKeychain(u.Keychain(), own.Keychain())
			o.Sources = append(o.Sources, sources.Source{Host: s.host, CA: s.ca},
				sources.Source{Host: own.Host, CA: own.CAFile})
			l, err := fetch.Resolve(t.Context(),
				oneChart(manifest.Chart{Name: "app", Repo: s.url + "/repo", Version: "1.0.0"}), o)
			if err == nil {
				_, err = fetch.All(t.Context(), l, o)
			}
			if len(c.says) > 0 {
				wantError(t, err, c.says...)
				if strings.Contains(err.Error(), "geheim") {
					t.Errorf("shows a secret: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Items[0]; got.Verified != c.verified || got.Digest != digestOf(archive) {
				t.Errorf("pin: %+v, want it verified by %s", got, c.verified)
			}
		})
	}
}

// TestChartIndexToRegistrySigned checks the provenance file that lies beside the chart in the registry.
func TestChartIndexToRegistrySigned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := chartKey(t, dir+"/keys.gpg")
	chartKey(t, dir+"/other.gpg")
	u := newUpstream(t, registrytest.Options{})
	one, two := chartArchive(t, "1.0.0"), chartArchive(t, "2.0.0")
	u.pushChart("hub/charts/app:1.0.0", one, string(signedChart(t, key, "app-1.0.0.tgz", one)))
	u.pushChart("hub/charts/app:2.0.0", two, "")
	for _, c := range []struct{ version, key, problem string }{
		{"1.0.0", "keys.gpg", ""},
		{"1.0.0", "other.gpg", "no given key signed it"},
		{"2.0.0", "keys.gpg", "no provenance file"},
	} {
		s := newSite(t, true)
		leadsTo(s, "oci://docker.io/charts/app:"+c.version, c.version, "")
		o := u.options(newStore(t))
		o.Dir, o.Sources = dir, append(o.Sources, sources.Source{Host: s.host, CA: s.ca})
		b := oneChart(manifest.Chart{
			Name: "app", Repo: s.url + "/repo", Version: c.version,
			Verify: &manifest.ChartVerify{Key: c.key},
		})
		l, err := fetch.Resolve(t.Context(), b, o)
		switch {
		case c.problem != "":
			wantError(t, err, c.problem)
		case err != nil:
			t.Error(err)
		case l.Items[0].Verified != manifest.VerifiedSignature:
			t.Errorf("pin %+v", l.Items[0])
		}
	}
}
