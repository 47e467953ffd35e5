package incluster

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func packed(t *testing.T, program []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestProgramsAreCutIntoConfigMaps(t *testing.T) {
	proxy, registry := bytes.Repeat([]byte("p"), chunkSize+1), []byte("registry")
	set, err := programSet(nil).with("amd64", Programs{Start: []byte("start"), Proxy: proxy, Registry: packed(t, registry)})
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{namespace: "n", images: []borrowed{{arch: "amd64", image: "i"}}, programs: set, secret: secret{}}
	var joined []byte
	for _, m := range p.configMaps() {
		for key, data := range m.BinaryData {
			if len(data) > 1<<20 {
				t.Errorf("%s has %d bytes", m.Name, len(data))
			}
			if strings.HasPrefix(m.Name, "proxy") && key == "part" {
				joined = append(joined, data...)
			}
		}
		if m.Immutable == nil || !*m.Immutable || m.Labels[managedBy] != "kkbundle" {
			t.Errorf("%s: immutable %v, labels %v", m.Name, m.Immutable, m.Labels)
		}
	}
	if !bytes.Equal(joined, proxy) {
		t.Error("the parts of the proxy are not the proxy")
	}
	sum := sha256.Sum256(registry)
	if got := set["amd64"].registrySum; got != hex.EncodeToString(sum[:]) {
		t.Errorf("the registry's digest is %s", got)
	}
	for _, at := range p.deployment().Spec.Template.Spec.Containers[0].VolumeMounts {
		if !strings.HasPrefix(at.MountPath, "/kkbundle/") {
			t.Errorf("%s is mounted at %s", at.Name, at.MountPath)
		}
	}
	other, err := programSet(nil).with("amd64", Programs{Start: []byte("start"), Proxy: proxy[1:], Registry: packed(t, registry)})
	if err != nil || other["amd64"].proxy[0].name == set["amd64"].proxy[0].name || other["amd64"].start.name != set["amd64"].start.name {
		t.Errorf("names of other programs: %v, %v", other["amd64"].proxy, err)
	}
}

func TestAStarterThatNoConfigMapHoldsIsRefused(t *testing.T) {
	_, err := programSet(nil).with("amd64", Programs{Start: make([]byte, 1<<20+1), Proxy: []byte("p"), Registry: packed(t, nil)})
	if err == nil || !strings.Contains(err.Error(), "1048577") {
		t.Errorf("got %v", err)
	}
}

// TestTheStarterFits reads what make helper built.
func TestTheStarterFits(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		data, err := os.ReadFile(filepath.Join("../../cmd/internal/helper/bin", "kkbundle-start-"+arch+".gz"))
		if err != nil {
			t.Skipf("%v: run make helper", err)
		}
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(z); err != nil {
			t.Fatal(err)
		}
		if b.Len() > 1<<20 {
			t.Errorf("kkbundle-start for %s has %d bytes, and a ConfigMap holds %d", arch, b.Len(), 1<<20)
		}
	}
}

func TestPodsAreRestricted(t *testing.T) {
	set, err := programSet(nil).with("amd64", Programs{Start: []byte("s"), Proxy: []byte("p"), Registry: packed(t, []byte("r"))})
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{namespace: "n", port: 15050, clusterIP: "10.96.0.9", images: []borrowed{{arch: "amd64", image: "i"}}, programs: set, secret: secret{}, storage: storage{class: "fast"}}
	registry, proxy := p.deployment().Spec.Template.Spec, p.proxies()[0].Spec.Template.Spec
	for _, pod := range []corev1.PodSpec{registry, proxy} {
		c := pod.Containers[0].SecurityContext
		if !*pod.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || c.Capabilities.Drop[0] != "ALL" ||
			*pod.AutomountServiceAccountToken || pod.SecurityContext.SeccompProfile.Type != "RuntimeDefault" {
			t.Errorf("%+v %+v", pod.SecurityContext, c)
		}
	}
	if registry.HostNetwork || !proxy.HostNetwork {
		t.Error("only the proxy is in the node's network")
	}
	if got := proxy.Volumes[len(proxy.Volumes)-1].Secret.Items; len(got) != 1 || got[0].Key != "ca.crt" {
		t.Errorf("the proxy sees %v of the Secret", got)
	}
	if got := strings.Join(proxy.Containers[0].Command[4:], " "); got != "kkbundle-proxy forward 127.0.0.1:15050 10.96.0.9:5443 /kkbundle/secret/ca.crt" {
		t.Errorf("the proxy runs %q", got)
	}
	p.storage = storage{node: "host2"}
	onNode := p.deployment().Spec.Template.Spec
	if onNode.NodeSelector["kubernetes.io/hostname"] != "host2" || *onNode.SecurityContext.RunAsUser != 0 || onNode.Containers[0].SecurityContext.Capabilities.Drop[0] != "ALL" {
		t.Errorf("with the content on a node: %+v", onNode.SecurityContext)
	}
}

func TestSecretsAreMadeOnce(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	first, changed, err := complete(nil, now)
	if err != nil || !changed || first.push().Password == first.pull().Password || len(first.pull().Password) < 26 {
		t.Fatalf("changed %v, %v", changed, err)
	}
	again, changed, err := complete(first, now.AddDate(8, 0, 0))
	if err != nil || changed || again.sum() != first.sum() {
		t.Errorf("a second run: changed %v, %v", changed, err)
	}
	late, changed, err := complete(first, now.AddDate(9, 6, 0))
	if err != nil || !changed || late.pull() != first.pull() || bytes.Equal(late[keyCert], first[keyCert]) {
		t.Errorf("half a year before the certificate's end: changed %v, %v", changed, err)
	}
	delete(again, keyPullers)
	mended, changed, err := complete(again, now)
	if err != nil || !changed || mended.pull() == first.pull() || mended.push() != first.push() {
		t.Errorf("without the pullers' file: changed %v, %v", changed, err)
	}
}

func TestPollSaysWhatIsMissing(t *testing.T) {
	w := &work{Options: Options{Wait: 10 * time.Millisecond}}
	err := w.poll(t.Context(), func(context.Context) (string, error) { return "the registry is not ready", nil })
	if err == nil || !strings.HasPrefix(err.Error(), "the registry is not ready: ") {
		t.Errorf("got %v", err)
	}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x")
	if err := w.poll(t.Context(), func(context.Context) (string, error) { return "", gone }); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}
