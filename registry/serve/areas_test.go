package serve_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/downloader"
	"helm.sh/helm/v3/pkg/getter"
	helmregistry "helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// TestClients pulls with the programs and libraries that users have.
func TestClients(t *testing.T) {
	t.Parallel()
	x := bundletest.New(t)
	s := start(t, serve.Options{}, x.Path)
	host := strings.TrimPrefix(s.URL, "http://")
	t.Run("go-containerregistry", func(t *testing.T) {
		ref, err := name.ParseReference(host + "/" + app + ":1.0")
		if err != nil {
			t.Fatal(err)
		}
		img, err := remote.Image(ref, remote.WithContext(t.Context()))
		if err == nil {
			err = validate.Image(img)
		}
		if err != nil {
			t.Error(err)
		}
		if ref, err = name.ParseReference(host + "/" + multi + ":2.1"); err != nil {
			t.Fatal(err)
		}
		idx, err := remote.Index(ref, remote.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		m, err := idx.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range m.Manifests {
			img, err := idx.Image(d.Digest)
			if err == nil {
				err = validate.Image(img)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("skopeo", func(t *testing.T) {
		skopeo, err := exec.LookPath("skopeo")
		if err != nil {
			t.Skip("skopeo is not installed")
		}
		for _, ref := range []string{app + ":1.0", multi + ":2.1", "charts.example/stable/demo:0.1.0"} {
			cmd := exec.CommandContext(t.Context(), skopeo, "--insecure-policy", "copy", "--all",
				"--src-tls-verify=false", "docker://"+host+"/"+ref, "dir:"+t.TempDir())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", ref, err, out)
			}
		}
	})
	t.Run("curl", func(t *testing.T) {
		curl, err := exec.LookPath("curl")
		if err != nil {
			t.Skip("curl is not installed")
		}
		dir := t.TempDir()
		for _, args := range [][]string{{"-r", "0-4"}, {"-C", "-"}} { // in two parts
			cmd := exec.CommandContext(t.Context(), curl, append(args, "-sSfo", "it", s.URL+
				"/files/files.example/tool/v1/linux/amd64/it")...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		if got, err := os.ReadFile(filepath.Join(dir, "it")); err != nil || string(got) != bundletest.FileContent {
			t.Errorf("%q: %v", got, err)
		}
	})
}

// TestHelm uses Helm's own repository and registry clients.
func TestHelm(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	first, second := bundletest.ChartArchive(t, "demo", "0.1.0"), bundletest.ChartArchive(t, "demo", "0.10.0+build.1")
	b.Chart("https://charts.example/stable/demo:0.1.0", "demo", "0.1.0", first)
	b.Chart("https://charts.example/stable/demo:0.10.0+build.1", "demo", "0.10.0+build.1", second)
	b.Chart("https://other.example/demo:0.1.0", "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0-other"))
	b.Chart("local/mine:1.0.0", "mine", "1.0.0", bundletest.ChartArchive(t, "mine", "1.0.0"))
	signed(b, "https://charts.example/stable/signed:2.0.0", []byte("chart"), []byte("provenance"))
	s := start(t, serve.Options{}, b.Bundle().Path)
	settings := cli.New()
	settings.RepositoryCache = t.TempDir()
	for dir, want := range map[string][]string{
		"":                       {"demo-0.10.0+build.1", "demo-0.1.0", "mine-1.0.0", "signed-2.0.0"},
		"/charts.example/stable": {"demo-0.10.0+build.1", "demo-0.1.0", "signed-2.0.0"},
		"/other.example":         {"demo-0.1.0"},
	} {
		r, err := repo.NewChartRepository(&repo.Entry{Name: "x", URL: s.URL + "/charts" + dir}, getter.All(settings))
		if err != nil {
			t.Fatal(err)
		}
		r.CachePath = settings.RepositoryCache
		path, err := r.DownloadIndexFile()
		if err != nil {
			t.Fatal(err)
		}
		index, err := repo.LoadIndexFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, chart := range []string{"demo", "mine", "signed"} {
			for _, v := range index.Entries[chart] {
				have = append(have, v.Name+"-"+v.Version)
			}
		}
		if strings.Join(have, " ") != strings.Join(want, " ") {
			t.Errorf("%s has %q, want %q", dir, have, want)
		}
	}
	pull := func(version string) []byte {
		to := t.TempDir()
		dl := downloader.ChartDownloader{
			Out: &bytes.Buffer{}, Getters: getter.All(settings),
			RepositoryCache: settings.RepositoryCache,
		}
		at, err := repo.FindChartInRepoURL(s.URL+"/charts", "demo", version, "", "", "", getter.All(settings))
		if err != nil {
			t.Fatal(err)
		}
		path, _, err := dl.DownloadTo(at, version, to)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if !bytes.Equal(pull(""), second) {
		t.Error("the newest version is not what was pulled without one")
	}
	if r := s.ask(t, "GET", "/charts/charts.example/stable/demo-0.1.0.tgz"); !bytes.Equal(r.body, first) {
		t.Errorf("%s with %d bytes", r.Status, len(r.body))
	}
	if r := s.ask(t, "GET", "/charts/signed-2.0.0.tgz.prov"); string(r.body) != "provenance" {
		t.Errorf("provenance: %s: %q", r.Status, r.body)
	}
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(),
		helmregistry.ClientOptWriter(&bytes.Buffer{}),
		helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")))
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Pull(strings.TrimPrefix(s.URL, "http://") + "/charts.example/stable/demo:0.10.0+build.1")
	if err != nil || !bytes.Equal(got.Chart.Data, second) {
		t.Errorf("helm pull oci://: %v", err)
	}
}

// signed adds a chart that has provenance.
func signed(b *bundletest.Builder, ref string, archive, provenance []byte) {
	name, version, _ := strings.Cut(ref[strings.LastIndexByte(ref, '/')+1:], ":")
	layer, prov := b.Bytes(archive), b.Bytes(provenance)
	layer.MediaType, prov.MediaType = bundle.MediaTypeChartContent, bundle.MediaTypeChartProvenance
	config := b.JSON(map[string]string{"apiVersion": "v2", "name": name, "version": version})
	config.MediaType = bundle.MediaTypeChartConfig
	artifact(b, bundle.KindChart, ref, ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{layer, prov}})
}

// TestFiles holds where files are, and that hostile names do no harm.
func TestFiles(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.Index.Name, b.Index.Version = "site", "1.0"
	amd64, arm64 := &ocispec.Platform{OS: "linux", Architecture: "amd64"},
		&ocispec.Platform{OS: "linux", Architecture: "arm64"}
	b.File("https://dl.example:8443/v1/tool", "tool", amd64, []byte("amd64"))
	b.File("https://dl.example:8443/v1/tool", "tool", arm64, []byte("arm64"))
	b.File("https://dl.example/get?name=secret", "get", nil, []byte("query"))
	b.File("https://dl.example/../../etc/%2e%2e/passwd", "passwd", nil, []byte("dots"))
	b.File("https://dl.example/<script>alert(1)</script>.html", "x.html", nil, []byte("<script>alert(1)</script>"))
	b.File("https://dl.example/line%0Abreak", "line", nil, []byte("line"))
	b.File("https://dl.example/a%20b;$(reboot)'", "odd", nil, []byte("odd"))
	b.File("local/mine", "mine", amd64, []byte("local"))
	x := b.Bundle()
	s := start(t, serve.Options{}, x.Path)
	for path, want := range map[string]string{
		"dl.example_8443/v1/tool":                           "amd64",
		"dl.example_8443/v1/linux/arm64/tool":               "arm64",
		"dl.example/__/__/etc/__/passwd":                    "dots",
		"dl.example/%3Cscript%3Ealert(1)%3C/script%3E.html": "<script>alert(1)</script>",
		"dl.example/line_break":                             "line",
		"local/linux/amd64/mine":                            "local",
		"dl.example/q-" + hashOf("name=secret") + "/get":    "query",
	} {
		r := s.ask(t, "GET", "/files/"+path)
		if r.StatusCode != 200 || string(r.body) != want {
			t.Errorf("%s: %s: %q, want %q", path, r.Status, r.body, want)
			continue
		}
		for name, want := range map[string]string{
			"Content-Type":           "application/octet-stream",
			"X-Content-Type-Options": "nosniff", "Accept-Ranges": "bytes",
		} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if !strings.HasPrefix(r.Header.Get("Content-Disposition"), "attachment;") ||
			!strings.Contains(r.Header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: a browser would show it: %q", path, r.Header)
		}
	}
	sums := string(s.ask(t, "GET", "/files/dl.example_8443/SHA256SUMS").body)
	want := hexSum("arm64") + "  v1/linux/arm64/tool\n" + hexSum("amd64") + "  v1/tool\n"
	if sums != want {
		t.Errorf("SHA256SUMS:\n%swant\n%s", sums, want)
	}
	for _, path := range []string{"/files/", "/files/dl.example/", "/files/dl.example_8443/v1/", "/", "/?q=script"} {
		r := s.ask(t, "GET", path)
		if r.StatusCode != 200 || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") ||
			bytes.Contains(r.body, []byte("<script>alert")) || bytes.Contains(r.body, []byte("secret&#")) &&
			path != "/" && path != "/?q=script" {
			t.Errorf("%s: %s\n%s", path, r.Status, r.body)
		}
	}
	if r := s.ask(t, "GET", "/files/dl.example"); r.StatusCode != 301 ||
		r.Header.Get("Location") != "/files/dl.example/" {
		t.Errorf("%s to %s", r.Status, r.Header.Get("Location"))
	}
	for _, path := range []string{
		"/files/none", "/files/../../etc/passwd", "/files/%2e%2e/%2e%2e/etc/passwd",
		"/files/dl.example//etc", "/assets/../page.go", "/assets/head.html", "/assets/", "/none", "/charts/none",
		"/v2/%2e%2e/manifests/x",
	} {
		if r := s.ask(t, "GET", path); r.StatusCode == 200 && r.Header.Get("Location") == "" {
			t.Errorf("%s: %s: %.100s", path, r.Status, r.body)
		}
	}
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func hashOf(s string) string { return hexSum(s)[:12] }

// TestPage holds what the page says, with and without a question.
func TestPage(t *testing.T) {
	t.Parallel()
	x, b := bundletest.New(t), bundletest.NewBuilder(t)
	for i := range 450 {
		b.File(fmt.Sprintf("https://dl.example/f%03d", i), "f", nil, []byte(fmt.Sprint(i)))
	}
	b.File("https://dl.example/it's; reboot", "f", nil, []byte("odd"))
	s := start(t, serve.Options{}, x.Path, b.Bundle().Path)
	host := strings.TrimPrefix(s.URL, "http://")
	get := func(path string) string {
		r := s.ask(t, "GET", path)
		if csp := r.Header.Get("Content-Security-Policy"); r.StatusCode != 200 ||
			!strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s, %s", path, r.Status, csp)
		}
		return string(r.body)
	}
	first := get("/")
	for _, want := range []string{
		"docker pull " + host + "/" + app + ":1.0", "docker pull " + host + "/" + multi + ":2.1",
		"helm pull demo --repo " + s.URL + "/charts --version 0.1.0",
		`<span class="platform">linux/arm64</span>`, `href="/?page=2"`, "1 to 200 of 455", x.Reader.Digest().String(),
	} {
		if !strings.Contains(first, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(first, "<script>") || strings.Contains(first, " style=") ||
		strings.Contains(first, " onclick=") {
		t.Error("the page has script or style in it")
	}
	if last := get("/?page=3"); !strings.Contains(last, "401 to 455 of 455") ||
		!strings.Contains(last, `href="/?page=2"`) {
		t.Error("the last page is not there")
	}
	if one := get("/?q=MULTI+arm64"); !strings.Contains(one, "1 to 1 of 1") || !strings.Contains(one, multi) {
		t.Error("one item was to be found")
	}
	if odd := get("/?kind=file&q=reboot"); !strings.Contains(odd, "curl -fLO "+s.URL+
		"/files/dl.example/it%27s%3B%20reboot") && !strings.Contains(odd, `curl -fLO &#39;`) {
		t.Errorf("the odd name:\n%s", odd)
	}
	if none := get(`/?q="><script>alert(1)</script>&kind="><b>`); !strings.Contains(none, "Nothing here fits") ||
		strings.Contains(none, "<b>") {
		t.Error("a question came back as HTML")
	}
	if long := get("/?q=" + strings.Repeat("multi+", 5000)); !strings.Contains(long, "1 to 1 of 1") ||
		strings.Count(long, "multi ") > 300/len("multi ") {
		t.Error("a question of 30 KB was looked for as a whole")
	}
	for _, file := range []string{"page.css", "page.js"} {
		if r := s.ask(t, "GET", "/assets/"+file); r.StatusCode != 200 || len(r.body) == 0 {
			t.Errorf("%s: %s", file, r.Status)
		}
	}
}

// TestSeveralBundles has a tag in two bundles.
func TestSeveralBundles(t *testing.T) {
	t.Parallel()
	var paths []string
	for seed := range int64(2) {
		b := bundletest.NewBuilder(t)
		b.Image(bundletest.ImageRef, bundletest.RandomImage(t, seed+1, 1, 2000))
		b.Image(fmt.Sprintf("docker.io/library/app:only-%d", seed), bundletest.RandomImage(t, seed+1, 1, 2000))
		b.File("https://dl.example/f", "f", nil, []byte(fmt.Sprint("file ", seed)))
		paths = append(paths, b.Bundle().Path)
	}
	s := start(t, serve.Options{}, paths...)
	get := func(ref string) string {
		r := s.ask(t, "GET", "/v2/"+app+"/manifests/"+ref)
		if r.StatusCode != 200 {
			t.Fatalf("%s: %s", ref, r.Status)
		}
		var m ocispec.Manifest
		if err := json.Unmarshal(r.body, &m); err != nil {
			t.Fatal(err)
		}
		if b := s.ask(t, "GET", "/v2/"+app+"/blobs/"+string(m.Layers[0].Digest)); b.StatusCode != 200 {
			t.Errorf("the layer of %s: %s", ref, b.Status)
		}
		return r.Header.Get("Docker-Content-Digest")
	}
	first, second := get("only-0"), get("only-1")
	if got := get("1.0"); got != second || first == second {
		t.Errorf("1.0 is %s, want %s of the bundle that was named last", got, second)
	}
	if got := get(first); got != first {
		t.Errorf("%s is %s", first, got)
	}
	if log := s.log.String(); !strings.Contains(log, "docker.io/library/app:1.0 is "+second) ||
		!strings.Contains(log, "is available by digest only") {
		t.Errorf("no warning:\n%s", log)
	}
	if r := s.ask(t, "GET", "/files/dl.example/f"); string(r.body) != "file 1" {
		t.Errorf("the file is %q", r.body)
	}
	if page := string(s.ask(t, "GET", "/").body); !strings.Contains(page, app+"@"+first) {
		t.Error("the page does not say how to get what the tag is not")
	}
}

// TestManual serves the manual where there is one, and leads to it from the front page then only.
func TestManual(t *testing.T) {
	t.Parallel()
	path := bundletest.New(t).Path
	text := http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request,
	) {
		_, _ = io.WriteString(w, "manual "+r.URL.Path)
	})
	for _, c := range []struct {
		manual http.Handler
		status int
		body   string
	}{{text, http.StatusOK, "manual /docs/start/bundle.html"}, {nil, http.StatusNotFound, ""}} {
		s := start(t, serve.Options{Manual: c.manual}, path)
		if r := s.ask(t, http.MethodGet, "/docs/start/bundle.html"); r.StatusCode != c.status ||
			!strings.Contains(string(r.body), c.body) {
			t.Errorf("%d %s", r.StatusCode, r.body)
		}
		if r := s.ask(t, http.MethodGet, "/"); strings.Contains(string(r.body), `href="/docs/"`) != (c.manual != nil) {
			t.Errorf("with a manual: %t\n%s", c.manual != nil, r.body)
		}
	}
}
