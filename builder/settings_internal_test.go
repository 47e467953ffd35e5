package builder

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// keep writes a blob into the cache.
func keep(t *testing.T, s *session, data []byte) ocispec.Descriptor {
	t.Helper()
	d := digest.FromBytes(data)
	w, _, err := s.cache.Begin(t.Context(), d.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), int64(len(data)), d); err != nil {
		t.Fatal(err)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d, Size: int64(len(data))}
}

func keepJSON(t *testing.T, s *session, v any) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return keep(t, s, data)
}

// layer returns a compressed layer with one file.
func layer(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{
		Name: name, Mode: 0o755, Size: int64(len(content)),
		Typeflag: tar.TypeReg,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{w.Close(), z.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// programs returns the directory with kubelet and kube-apiserver: genuine ones, or stand-ins.
func programs(t *testing.T) string {
	t.Helper()
	if own := os.Getenv("KKBUNDLE_TEST_KUBERNETES"); own != "" { // v1.36.3, built by hand
		return own
	}
	dir := t.TempDir()
	for _, name := range []string{kubelet, "kube-apiserver", "kube-scheduler"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, name), "./testdata/program")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

// TestProgramsAreAskedForSettings: the kubelet and the control plane's programs of the bundle refuse settings that
// their release does not have, before a host is touched; each is named with its place. Missing programs are a note,
// not an error.
func TestProgramsAreAskedForSettings(t *testing.T) {
	dir := programs(t)
	const version = "v1.36.3"
	platform := "linux/" + runtime.GOARCH
	var notes []string
	s := newSession(&Project{Manifest: &manifest.Bundle{}},
		Options{Events: func(e Event) { notes = append(notes, e.Text) }})
	cache, err := cache.Open(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cache.Close() })
	s.cache = cache
	b := &builder{session: s, lock: &manifest.Lock{}}
	c := clusterOf(t, "kubernetes: {version: "+version+"}\n")
	ref, err := catalog.Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: kubelet}, platform)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, kubelet))
	if err != nil {
		t.Fatal(err)
	}
	b.lock.Items = append(b.lock.Items, manifest.Pin{
		Kind: manifest.ItemFile, Ref: ref, Platform: platform,
		Digest: keep(t, s, file).Digest,
	})
	for _, name := range []string{"kube-apiserver", "kube-scheduler"} {
		if file, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		image := keepJSON(t, s, ocispec.Manifest{Layers: []ocispec.Descriptor{
			keep(t, s, layer(t, "usr/local/bin/"+name, file)), keep(t, s, layer(t, "etc/passwd", []byte("root"))),
		}})
		image.Platform = &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
		other := keepJSON(t, s, ocispec.Manifest{})
		other.Platform = &ocispec.Platform{OS: "linux", Architecture: "s390x"}
		if ref, err = catalog.ImageRef(c, name); err != nil {
			t.Fatal(err)
		}
		index := keepJSON(t, s, ocispec.Index{Manifests: []ocispec.Descriptor{other, image}})
		b.lock.Items = append(b.lock.Items, manifest.Pin{Kind: manifest.ItemImage, Ref: ref, Digest: index.Digest})
	}
	for text, want := range map[string][]string{
		"kubelet: {featureGates: {KubeletInUserNamespace: true}}, kubeadm: {apiServer: {extraArgs: {v: '2', feature-gates: SidecarContainers=true}}}": nil,
		"kubelet: {featureGates: {KubeletInUserNamespace: true, NoSuchGate: true}}": {
			"kubernetes.kubelet.featureGates.NoSuchGate: kubelet v1.36.3 does not start with --feature-gates=NoSuchGate=true: unrecognized feature gate: NoSuchGate",
		},
		"kubelet: {featureGates: {SidecarContainers: false}}": {"cannot set feature gate SidecarContainers to false, feature is locked to true"},
		"kubeadm: {apiServer: {extraArgs: [{name: v, value: '2'}, {name: no-such-flag, value: '1'}]}, scheduler: {extraArgs: {feature-gates: NoSuchGate=true}}}": {
			"kubernetes.kubeadm.apiServer.extraArgs[1]: kube-apiserver v1.36.3 does not start with --no-such-flag=1: unknown flag: --no-such-flag",
			"kubernetes.kubeadm.scheduler.extraArgs.feature-gates: kube-scheduler v1.36.3 does not start with --feature-gates=NoSuchGate=true",
		},
		"kubelet: {hairpinMode: none, containerLogMaxFiles: 3}": nil,
		"kubelet: {hairpinMode: bogus}": {
			`kubernetes.kubelet: kubelet v1.36.3 does not start with this: invalid configuration: option "bogus" specified for hairpinMode (--hairpin-mode). Valid options are "none", "hairpin-veth" or "promiscuous-bridge"`,
		},
		"kubelet: {imageMinimumGCAge: x}":                                {`kubernetes.kubelet: kubelet v1.36.3 does not start with this: time: invalid duration "x"`},
		"kubeadm: {controllerManager: {extraArgs: {no-such-flag: '1'}}}": nil, // the bundle has no such image here
	} {
		notes = nil
		c := clusterOf(t, "kubernetes: {version: "+version+", "+text+"}\n")
		s.Project = &Project{Manifest: &manifest.Bundle{}, clusters: []*manifest.Cluster{c}}
		err := b.checkSettings(t.Context())
		if (err != nil) != (want != nil) {
			t.Errorf("%s: %v", text, err)
		}
		for _, w := range want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v\nwant %s", text, err, w)
			}
		}
		if absent := strings.Contains(text, "controllerManager"); absent != (len(notes) > 0) {
			t.Errorf("%s: notes %q", text, notes)
		}
	}
}
