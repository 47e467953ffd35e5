package builder

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/proof/closure"
)

// labKubeadms returns the kubeadm programs that the lab has built, by version; one of them in a short run. Without
// one the test is skipped.
func labKubeadms(t *testing.T) map[string]string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", "kubernetes*-"+runtime.GOARCH+"-*", "kubeadm"))
	if err != nil {
		t.Fatal(err)
	}
	if own := os.Getenv("KKBUNDLE_TEST_KUBEADM"); own != "" { // one that was built by hand
		found = append(found, own)
	}
	programs := map[string]string{}
	for _, path := range found {
		version, err := exec.CommandContext(t.Context(), path, "version", "-o", "short").Output()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		programs[strings.TrimSpace(string(version))] = path
		if testing.Short() {
			break
		}
	}
	if len(programs) == 0 {
		t.Skip("the lab has built no kubeadm")
	}
	return programs
}

// askable returns a session whose cache has a program.
func askable(t *testing.T, path string) (*session, digest.Digest) {
	t.Helper()
	cache, err := cache.Open(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cache.Close() })
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(data)
	w, _, err := cache.Begin(t.Context(), d.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), int64(len(data)), d); err != nil {
		t.Fatal(err)
	}
	s := newSession(&Project{Manifest: &manifest.Bundle{}}, Options{})
	s.cache = cache
	return s, d
}

func clusterOf(t *testing.T, text string) *manifest.Cluster {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return c.WithDefaults()
}

// TestRealKubeadmsListTheirImages: genuine programs run behind the barriers, and the catalog's tables say the same of
// releases that it knows.
func TestRealKubeadmsListTheirImages(t *testing.T) {
	t.Parallel()
	for version, path := range labKubeadms(t) {
		s, d := askable(t, path)
		c := clusterOf(t, "kubernetes: {version: "+version+"}\n")
		k := kubeadmProgram{c, manifest.Pin{Digest: d}}
		began := time.Now()
		got, err := s.defaults(t.Context(), k)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		t.Logf("%s: etcd %s, coredns %s, pause %s, in %s", version, got.Etcd, got.CoreDNS, got.Pause, time.Since(began))
		if exact, err := catalog.IsExact(c); err != nil || !exact {
			continue
		}
		for _, name := range catalogfile.KubeadmComponents() {
			if want, err := catalog.Version(c, name); err != nil || want != got.Tag(name) {
				t.Errorf("%s: kubeadm takes %s %s, the catalog says %s, %v", version, name, got.Tag(name), want, err)
			}
		}
		c.Components = map[string]manifest.Component{"coredns": {Version: "v1.99.0"}, "etcd": {Version: "3.6.99-0"}}
		refs, err := s.configured(t.Context(), k)
		want := []string{
			"registry.k8s.io/kube-apiserver:" + version, "registry.k8s.io/kube-controller-manager:" + version,
			"registry.k8s.io/kube-scheduler:" + version,
			"registry.k8s.io/kube-proxy:" + version, "registry.k8s.io/coredns/coredns:v1.99.0",
			"registry.k8s.io/pause:" + got.Pause, "registry.k8s.io/etcd:3.6.99-0",
		}
		if diff := cmp.Diff(want, refs); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", version, err, diff)
		}
		c.Etcd.Type = manifest.EtcdExternal
		if refs, err = s.configured(t.Context(), k); err != nil || len(refs) != len(want)-1 {
			t.Errorf("%s with external etcd: %q, %v", version, refs, err)
		}
		c.Kubernetes.Kubeadm = manifest.Config{"networking": map[string]any{"dnsDomain": "not a domain"}}
		if _, err = s.configured(t.Context(), k); err == nil || !strings.Contains(err.Error(), "not a domain") {
			t.Errorf("%s: an invalid configuration: %v", version, err)
		}
	}
}

// TestNoKubeadm: bytes that are no program, and programs that answer something else, are an error, and nothing is
// left behind.
func TestNoKubeadm(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for name, text := range map[string]string{
		"bytes":  "not a program",
		"script": "#!/bin/sh\necho registry.k8s.io/etcd:1\n", "empty": "",
	} {
		path := filepath.Join(t.TempDir(), "kubeadm")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, d := askable(t, path)
		got, err := s.defaults(context.Background(), kubeadmProgram{
			clusterOf(t, "kubernetes: {version: v1.34.3}\n"),
			manifest.Pin{Digest: d},
		})
		if err == nil {
			t.Errorf("%s: %+v", name, got)
		}
		t.Log(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "kkbundle-kubeadm-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// standIn builds a program that lists what kubeadm v1.37.2 lists.
func standInKubeadm(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeadm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/kubeadm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// projectOf writes a manifest with a cluster of a release, and loads it.
func projectOf(t *testing.T, version string, load func(string) (*Project, error)) (*Project, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.yaml": "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: site, version: 1.0.0}\nplatforms: [linux/" + runtime.GOARCH + "]\ncluster: cluster.yaml\n",
		"cluster.yaml": "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\nkubernetes: {version: " +
			version + "}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return load(filepath.Join(dir, "manifest.yaml"))
}

// builderOf returns a builder whose cache and lock have a program as the kubeadm of the project's release.
func builderOf(t *testing.T, p *Project, program string) *builder {
	t.Helper()
	s, d := askable(t, program)
	s.Project, s.memory = p, t.TempDir()
	platform := "linux/" + runtime.GOARCH
	c := p.clusters[0]
	ref, err := catalog.Ref(c, kubeadmNeed(), platform)
	if err != nil {
		t.Fatal(err)
	}
	size, _, err := s.cache.Stat(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	pin := manifest.Pin{
		Kind: manifest.ItemFile, Ref: ref, Name: "kubeadm", Version: c.Kubernetes.Version,
		Platform: platform, Digest: d, Size: size, Verified: manifest.VerifiedUpstream,
	}
	return &builder{session: s, lock: &manifest.Lock{
		Metadata: p.Manifest.Metadata, Manifest: d.String(),
		Items: []manifest.Pin{pin},
	}}
}

func hasImage(p *Project, name string) bool {
	return slices.ContainsFunc(p.Manifest.Images, func(i manifest.Image) bool { return i.Name == name })
}

// TestImagesAreKubeadms: the images of a release that the catalog does not know are those that its kubeadm lists, in
// the manifest, in the lock, and in the proof of completeness. TestRealKubeadmsListTheirImages has what genuine
// programs list.
func TestImagesAreKubeadms(t *testing.T) {
	const version = "v1.36.99"
	p, err := projectOf(t, version, Load)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Assumptions) > 0 {
		t.Errorf("assumed: %q", p.Assumptions)
	}
	b := builderOf(t, p, standInKubeadm(t))
	if differs, err := b.learn(t.Context(), b.lock, b.clusters); err != nil || !differs {
		t.Fatalf("learnt %v, %v", differs, err)
	}
	for name, there := range map[string]bool{
		"etcd:3.7.0-0": true, "etcd:3.6.8-0": false,
		"coredns/coredns:v1.14.6": true, "pause:3.10.2": true,
	} {
		if hasImage(b.Project, "registry.k8s.io/"+name) != there {
			t.Errorf("image %s: %v", name, !there)
		}
	}
	b.lock.Kubeadm = b.listed()
	want := catalogfile.KubeadmImages{
		Etcd: "3.7.0-0", CoreDNS: "v1.14.6", Pause: "3.10.2",
		Program: b.lock.Items[0].Digest,
	}
	if got := b.lock.Kubeadm[version]; got != want {
		t.Errorf("locked %+v", got)
	}
	if again, err := b.learn(t.Context(), b.lock, b.clusters); again || err != nil {
		t.Errorf("learnt again: %v, %v", again, err)
	}
	data, err := b.lock.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(LockFile(p.File), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err = Load(p.File); err != nil || !hasImage(p, "registry.k8s.io/etcd:3.7.0-0") {
		t.Errorf("loaded with the lock: %v", err)
	}
	needs, err := b.programNeeds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = closure.Check(needs, nil)
	if err == nil || !strings.Contains(err.Error(), "image registry.k8s.io/etcd:3.7.0-0 is missing: kubeadm "+version+
		" on kube_control_plane needs it") {
		t.Errorf("the proof without images: %v", err)
	}
}

// TestUnknownMinor: a minor release that the catalog does not know needs --assume, which the lock keeps.
func TestUnknownMinor(t *testing.T) {
	const version = "v1.99.1"
	if _, err := projectOf(t, version, Load); err == nil ||
		!strings.Contains(err.Error(),
			"kubernetes.version: this kkbundle knows no release as new as Kubernetes v1.99.1") ||
		!strings.Contains(err.Error(), "--assume") {
		t.Errorf("not refused: %v", err)
	}
	p, err := projectOf(t, version, LoadAssuming)
	if err != nil {
		t.Fatal(err)
	}
	b := builderOf(t, p, standInKubeadm(t))
	if _, err := b.learn(t.Context(), b.lock, b.clusters); err != nil {
		t.Fatal(err)
	}
	b.lock.Kubeadm = b.listed()
	if got := b.lock.Kubeadm[version]; !got.Assumed || got.Etcd != "3.7.0-0" {
		t.Errorf("locked %+v", got)
	}
	data, err := b.lock.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(LockFile(p.File), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(p.File); err != nil {
		t.Errorf("with the lock: %v", err)
	}
}

// TestUnaskedKubeadm: a kubeadm that lists nothing is an error for a release that the catalog does not know, and a
// note for others.
func TestUnaskedKubeadm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeadm")
	if err := os.WriteFile(path, []byte("not a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{"v1.36.99": "or pass --assume", "v1.34.3": ""} {
		p, err := projectOf(t, version, Load)
		if err != nil {
			t.Fatal(err)
		}
		b := builderOf(t, p, path)
		var notes []string
		b.Events = func(e Event) {
			if e.Type == EventNote {
				notes = append(notes, e.Text)
			}
		}
		differs, err := b.learn(t.Context(), b.lock, b.clusters)
		if differs || (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", version, differs, err)
		}
		if (len(notes) == 0) != (want != "") {
			t.Errorf("%s: notes %q", version, notes)
		}
	}
}

// What kubeadm prints is bounded, and no text passes as an image.
func TestImagesIn(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing": " \n", "too many": strings.Repeat("registry.k8s.io/etcd:1\n", kubeadmImages+1),
		"too long": strings.Repeat("a", kubeadmOutput+1), "no image": "registry.k8s.io/etcd:1\nerror:!\n",
	} {
		if refs, err := imagesIn([]byte(text)); err == nil {
			t.Errorf("%s: %q", name, refs)
		}
	}
}
