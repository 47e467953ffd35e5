package settingcheck_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/charts/sandbox/sandboxtest"
	"github.com/kkbundle/kkbundle/installer/settingcheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const kubelet = "kubelet"

func TestMain(m *testing.M) { sandboxtest.Main(m, nil) }

// contents are items by their references, and blobs by their digests.
type contents struct {
	items map[string]digest.Digest
	blobs map[digest.Digest][]byte
}

func (c contents) Find(_ context.Context, of *manifest.Cluster, need manifest.Need,
	platform scalar.Platform,
) (digest.Digest, error) {
	ref, err := catalog.Ref(of, need, platform)
	if d, ok := c.items[ref]; ok || err != nil {
		return d, err
	}
	return "", errors.New("the bundle has none")
}

func (c contents) Open(_ context.Context, d digest.Digest) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(c.blobs[d])), nil
}

func (c contents) ReadBlob(_ context.Context, d digest.Digest, _ int64) ([]byte, error) {
	return c.blobs[d], nil
}

func (c contents) keep(data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	c.blobs[d] = data
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d, Size: int64(len(data))}
}

func (c contents) keepJSON(t *testing.T, v any) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return c.keep(data)
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
	one := filepath.Join(dir, kubelet)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", one, "./testdata/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"kube-apiserver", "kube-scheduler"} {
		if err := os.Link(one, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// release returns the contents with kubelet, kube-apiserver and kube-scheduler of a release for this machine. The
// image of kube-scheduler has nothing for it.
func release(t *testing.T, version string) contents {
	t.Helper()
	dir := programs(t)
	all := contents{items: map[string]digest.Digest{}, blobs: map[digest.Digest][]byte{}}
	c := clusterOf(t, "kubernetes: {version: "+version+"}\n")
	ref, err := catalog.Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: kubelet}, "linux/"+runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, kubelet))
	if err != nil {
		t.Fatal(err)
	}
	all.items[ref] = all.keep(file).Digest
	for _, name := range []string{"kube-apiserver", "kube-scheduler", foreign} {
		from := name
		if name == foreign {
			from = "kube-scheduler"
		}
		if file, err = os.ReadFile(filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
		image := all.keepJSON(t, ocispec.Manifest{Layers: []ocispec.Descriptor{
			all.keep(layer(t, "usr/local/bin/"+name, file)), all.keep(layer(t, "etc/passwd", []byte("root"))),
		}})
		image.Platform = &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
		other := all.keepJSON(t, ocispec.Manifest{})
		other.Platform = &ocispec.Platform{OS: "linux", Architecture: "s390x"}
		list := []ocispec.Descriptor{other, image}
		if name == foreign {
			list = list[:1]
		}
		if ref, err = catalog.ImageRef(c, name); err != nil {
			t.Fatal(err)
		}
		all.items[ref] = all.keepJSON(t, ocispec.Index{Manifests: list}).Digest
	}
	return all
}

// foreign is a program whose image has nothing for this machine.
const foreign = "kube-controller-manager"

// TestAsk: the kubelet and the control plane's programs refuse settings that their release does not have; each is
// named with its place. A program that cannot be asked is named, and is no refusal.
func TestAsk(t *testing.T) {
	t.Parallel()
	const version = "v1.36.3"
	all := release(t, version)
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
		"kubeadm: {controllerManager: {extraArgs: {no-such-flag: '1'}}}": nil, // its image has nothing for this machine
	} {
		c := clusterOf(t, "kubernetes: {version: "+version+", "+text+"}\n")
		answer := settingcheck.Ask(t.Context(), c, all)
		err := answer.Err()
		if (err != nil) != (want != nil) {
			t.Errorf("%s: %v", text, err)
		}
		for _, w := range want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v\nwant %s", text, err, w)
			}
		}
		unasked := errors.Join(answer.Unasked...)
		if absent := strings.Contains(text, "controllerManager"); absent != (unasked != nil) || absent &&
			!strings.Contains(unasked.Error(), "its image has none for linux/") {
			t.Errorf("%s: unasked %v", text, unasked)
		}
	}
}

// TestNobodyIsAsked: a cluster without settings of its own, and k3s, ask no program; after an interruption no further
// one is asked.
func TestNobodyIsAsked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kubernetes: {version: v1.36.3}": "",
		"kubernetes: {version: v1.36.3, kubelet: {maxOpenFiles: 1}, kubeadm: {scheduler: {extraArgs: {v: '2'}}}}": "kube-scheduler kubelet",
	} {
		if got := strings.Join(settingcheck.Programs(clusterOf(t, text+"\n")), " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	c := clusterOf(t, "kubernetes: {version: v1.36.3, kubelet: {hairpinMode: bogus}}\n")
	if a := settingcheck.Ask(ended, c, nil); a.Err() != nil || a.Unasked != nil {
		t.Errorf("%v", a)
	}
}
