package incluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kkbundle/kkbundle/internal/packed"
)

func zstdOf(t *testing.T, program []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
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
	set, err := programSet(nil).with("amd64", Programs{
		Start: []byte("start"), Proxy: proxy,
		Registry: zstdOf(t, registry),
	})
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
	other, err := programSet(nil).with("amd64", Programs{
		Start: []byte("start"), Proxy: proxy[1:],
		Registry: zstdOf(t, registry),
	})
	if err != nil || other["amd64"].proxy[0].name == set["amd64"].proxy[0].name ||
		other["amd64"].start.name != set["amd64"].start.name {
		t.Errorf("names of other programs: %v, %v", other["amd64"].proxy, err)
	}
}

func TestAStarterThatNoConfigMapHoldsIsRefused(t *testing.T) {
	_, err := programSet(nil).with("amd64", Programs{
		Start: make([]byte, 1<<20+1), Proxy: []byte("p"),
		Registry: zstdOf(t, nil),
	})
	if err == nil || !strings.Contains(err.Error(), "1048577") {
		t.Errorf("got %v", err)
	}
}

// TestTheStarterFits reads what make helper built.
func TestTheStarterFits(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		data, err := packed.Program(os.DirFS("../../cmd/internal/helper/bin"), "kkbundle-start", arch)
		if errors.Is(err, fs.ErrNotExist) {
			t.Skipf("%v: run make helper", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 1<<20 {
			t.Errorf("kkbundle-start for %s has %d bytes, and a ConfigMap holds %d", arch, len(data), 1<<20)
		}
	}
}

func TestPodsAreRestricted(t *testing.T) {
	set, err := programSet(nil).with("amd64", Programs{
		Start: []byte("s"), Proxy: []byte("p"),
		Registry: zstdOf(t, []byte("r")),
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{
		namespace: "n", port: 15050, clusterIP: "10.96.0.9", images: []borrowed{{arch: "amd64", image: "i"}},
		programs: set, secret: secret{keyAuthority: []byte("public"), keyPush: []byte("p")},
		storage: storage{class: "fast"},
	}
	registry, proxy := p.deployment().Spec.Template.Spec, p.proxies()[0].Spec.Template.Spec
	for _, pod := range []corev1.PodSpec{registry, proxy} {
		c := pod.Containers[0].SecurityContext
		if !*pod.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem ||
			c.Capabilities.Drop[0] != "ALL" ||
			*pod.AutomountServiceAccountToken || pod.SecurityContext.SeccompProfile.Type != "RuntimeDefault" {
			t.Errorf("%+v %+v", pod.SecurityContext, c)
		}
	}
	if registry.HostNetwork || !proxy.HostNetwork {
		t.Error("only the proxy is in the node's network")
	}
	for _, v := range proxy.Volumes { // a kubelet may read all of a Secret that a pod on its node refers to
		if v.Secret != nil {
			t.Errorf("the proxy, which is on every node, refers to the Secret %s", v.Secret.SecretName)
		}
	}
	if a := p.authority(); len(a.Data)+len(a.BinaryData) != 1 || a.Data["ca.crt"] != "public" {
		t.Errorf("the proxies' object has %v", a.Data)
	}
	if got := strings.Join(proxy.Containers[0].Command[4:],
		" "); got != "kkbundle-proxy forward 127.0.0.1:15050 10.96.0.9:5443 /kkbundle/authority/ca.crt" {
		t.Errorf("the proxy runs %q", got)
	}
	p.storage = storage{node: "host2"}
	onNode := p.deployment().Spec.Template.Spec
	if onNode.NodeSelector["kubernetes.io/hostname"] != "host2" || *onNode.SecurityContext.RunAsUser != 0 ||
		onNode.Containers[0].SecurityContext.Capabilities.Drop[0] != "ALL" {
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

// TestSecretOfAnEarlierRelease: every kubelet could read it, so only the login stays with which all nodes pull.
func TestSecretOfAnEarlierRelease(t *testing.T) {
	earlier, _, err := complete(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientset(&corev1.Secret{ObjectMeta: meta("n", earlierSecret, "registry"), Data: earlier})
	w := &work{Options: Options{Namespace: "n"}, typed: api}
	s, err := w.secrets(t.Context())
	if err != nil || s.pull() != earlier.pull() || s.push() == earlier.push() ||
		bytes.Equal(s[keyKey], earlier[keyKey]) || bytes.Equal(s[keyAuthority], earlier[keyAuthority]) {
		t.Errorf("%v; the pull login stays: %t; the push login stays: %t", err, s.pull() == earlier.pull(),
			s.push() == earlier.push())
	}
	if again, err := w.secrets(t.Context()); err != nil || again.sum() != s.sum() {
		t.Errorf("a continued run makes others: %v", err)
	}
	if err := w.dropEarlierSecret(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := api.CoreV1().Secrets("n").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != secretName {
		t.Errorf("%v, %v", list.Items, err)
	}
}

// TestTunnelTrustsTheRegistryAlone: the port of a tunnel can be another process' while a lost connection is made again.
func TestTunnelTrustsTheRegistryAlone(t *testing.T) {
	ours, _, err := complete(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	others, _, err := complete(nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &Registry{authority: ours[keyAuthority]}
	for name, one := range map[string]struct {
		of   secret
		want bool
	}{"the registry": {ours, true}, "another process": {others, false}} {
		pair, err := tls.X509KeyPair(one.of[keyCert], one.of[keyKey])
		if err != nil {
			t.Fatal(err)
		}
		asked := false
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter,
			*http.Request,
		) {
			asked = true
		}))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: r.clientTLS()}}
		response, err := client.Get(server.URL)
		if err == nil {
			_ = response.Body.Close()
		}
		if (err == nil) != one.want || asked != one.want {
			t.Errorf("%s: asked %t, %v", name, asked, err)
		}
		server.Close()
	}
}

func TestPollSaysWhatIsMissing(t *testing.T) {
	w := &work{Options: Options{Wait: 10 * time.Millisecond}}
	err := w.poll(t.Context(), func(context.Context) (string, error) { return "the registry is not ready", nil })
	if err == nil || !strings.HasPrefix(err.Error(), "the registry is not ready: ") {
		t.Errorf("got %v", err)
	}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x")
	if err := w.poll(t.Context(),
		func(context.Context) (string, error) { return "", gone }); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}
