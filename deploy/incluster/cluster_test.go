package incluster_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kkbundle/kkbundle/deploy/incluster"
	"github.com/kkbundle/kkbundle/internal/packed"
)

// The tests of this file run against the cluster of a kubeconfig, and change nothing outside of two namespaces of
// their own. They are run in the order: TestClusterRegistry, then TestClusterPulls at any time, for example after a
// reboot, then TestClusterRemove. The lab's TestDeployInCluster does.
const kubeconfigVariable = "KKBUNDLE_TEST_KUBECONFIG"

const testNamespace = "kkbundle-registry-test"

type cluster struct {
	api kubernetes.Interface
	o   incluster.Options
}

func open(t *testing.T) cluster {
	t.Helper()
	path := os.Getenv(kubeconfigVariable)
	if path == "" {
		t.Skip(kubeconfigVariable + " names no kubeconfig of a cluster to put a registry into")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 50, 100
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return cluster{api, incluster.Options{
		Config: config, Programs: programs, Wait: 4 * time.Minute,
		StorageClass: os.Getenv("KKBUNDLE_TEST_STORAGE_CLASS"),
		Logger:       slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
}

// programs reads what `make helper` built, in its directory or another one.
func programs(arch string) (incluster.Programs, error) {
	dir := cmp.Or(os.Getenv("KKBUNDLE_TEST_PROGRAMS"), "../../cmd/internal/helper/bin")
	var p incluster.Programs
	var err [3]error
	at := os.DirFS(dir)
	p.Start, err[0] = packed.Program(at, "kkbundle-start", arch)
	p.Proxy, err[1] = packed.Program(at, "kkbundle-proxy", arch)
	p.Registry, err[2] = packed.Stream(at, packed.Dictionary, arch)
	return p, errors.Join(err[:]...)
}

func (c cluster) ensure(t *testing.T) *incluster.Registry {
	t.Helper()
	begin := time.Now()
	r, err := incluster.Ensure(t.Context(), c.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("registry at %s on every node but %v, content in %s, %d changed, after %s", r.Address, r.Without, r.Storage,
		r.Changed, time.Since(begin).Round(time.Millisecond))
	return r
}

// TestClusterRegistry puts the registry into the cluster, pushes an image and pulls it, and loses the registry's pod.
func TestClusterRegistry(t *testing.T) {
	c := open(t)
	r := c.ensure(t)
	if r.Changed == 0 {
		t.Log("the registry was there already")
	}
	if r = c.ensure(t); r.Changed != 0 {
		t.Errorf("a second run changed %d objects", r.Changed)
	}
	tunnel, err := r.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	image := payload(t)
	to, err := name.ParseReference(tunnel.Address+"/test/payload:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := remote.Write(to, image, login(r.Push), through(tunnel), remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Logf("the image was pushed after %s", time.Since(begin).Round(time.Millisecond))
	if err := remote.Write(to.Context().Tag("2"), image, login(r.Pull), through(tunnel),
		remote.WithContext(t.Context())); err == nil || !strings.Contains(err.Error(), "only pull") {
		t.Errorf("a push with the pull login: %v", err)
	}
	c.pull(t, r, "first")
	c.anonymous(t, r)
	pods := c.api.CoreV1().Pods(incluster.DefaultNamespace)
	if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=registry"}); err != nil {
		t.Fatal(err)
	}
	if r = c.ensure(t); r.Changed != 0 {
		t.Errorf("a run after the pod's loss changed %d objects", r.Changed)
	}
	c.pull(t, r, "after-loss")
	begin = time.Now()
	tunnelled(t, tunnel, r)
	t.Logf("the tunnel leads to the new pod after %s", time.Since(begin).Round(time.Millisecond))
}

// tunnelled waits until a tunnel answers: its pod was lost.
func tunnelled(t *testing.T, tunnel *incluster.Tunnel, r *incluster.Registry) {
	t.Helper()
	var last error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		to, err := name.ParseReference(tunnel.Address+"/test/payload:1", name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if _, last = remote.Head(to, login(r.Pull), through(tunnel), remote.WithContext(t.Context())); last == nil {
			return
		}
	}
	t.Errorf("the tunnel does not lead to the new pod: %v", last)
}

// TestClusterPulls pulls what TestClusterRegistry pushed.
func TestClusterPulls(t *testing.T) {
	c := open(t)
	r := c.ensure(t)
	if r.Changed != 0 {
		t.Errorf("%d objects had to change", r.Changed)
	}
	c.pull(t, r, "again")
}

// TestClusterRemove removes the registry.
func TestClusterRemove(t *testing.T) {
	c := open(t)
	left, err := incluster.Remove(t.Context(), c.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("left: %q", left)
	for _, n := range []string{incluster.DefaultNamespace, testNamespace} {
		err := c.api.CoreV1().Namespaces().Delete(t.Context(), n, metav1.DeleteOptions{})
		if n == incluster.DefaultNamespace && !apierrors.IsNotFound(err) {
			t.Errorf("namespace %s after its removal: %v", n, err)
		}
	}
	if left, err := incluster.Remove(t.Context(), c.o); left != "" || err != nil {
		t.Errorf("a second removal: %q, %v", left, err)
	}
}

// TestPayload is what the pulled image runs.
func TestPayload(*testing.T) {
	if os.Getenv("KKBUNDLE_TEST_PAYLOAD") == "" {
		return
	}
	server := http.Server{
		Addr: ":8080", ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "payload\n")
		}),
	}
	panic(server.ListenAndServe())
}

func login(l incluster.Login) remote.Option {
	return remote.WithAuth(&authn.Basic{Username: l.User, Password: l.Password})
}

// through believes the registry at the tunnel's end alone.
func through(t *incluster.Tunnel) remote.Option {
	return remote.WithTransport(&http.Transport{TLSClientConfig: t.TLS})
}

// payload is an image of this test program, which is static and so needs nothing else.
func payload(t *testing.T) v1.Image {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err = w.WriteHeader(&tar.Header{Name: "payload", Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser,
		error,
	) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	config := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/payload", "-test.run=^TestPayload$", "-test.timeout=0"},
			Env:        []string{"KKBUNDLE_TEST_PAYLOAD=1"},
		},
	}
	if have, err := image.ConfigFile(); err == nil {
		config.RootFS = have.RootFS
	}
	if image, err = mutate.ConfigFile(image, &config); err != nil {
		t.Fatal(err)
	}
	return image
}

// pull runs the image on every node, with a pull secret.
func (c cluster) pull(t *testing.T, r *incluster.Registry, round string) {
	t.Helper()
	ctx := t.Context()
	c.namespace(ctx, t, r)
	nodes, err := c.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		node := nodes.Items[i].Name
		pod := c.pod(ctx, t, "pull-"+round+"-"+node, corev1.PodSpec{
			NodeName: node, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
			Containers: []corev1.Container{{
				Name: "payload", Image: r.Address + "/test/payload:1",
				ImagePullPolicy: corev1.PullAlways,
			}},
		})
		begin := time.Now()
		state := c.until(ctx, t, pod, func(s string) bool { return s == "running" })
		t.Logf("%s pulled from %s: %s after %s", node, r.Address, state, time.Since(begin).Round(time.Millisecond))
	}
}

// anonymous expects that a pod without a pull secret cannot pull.
func (c cluster) anonymous(t *testing.T, r *incluster.Registry) {
	t.Helper()
	pod := c.pod(t.Context(), t, "anonymous", corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "payload", Image: r.Address + "/test/payload:1",
			ImagePullPolicy: corev1.PullAlways,
		}},
	})
	state := c.until(t.Context(), t, pod, func(s string) bool { return strings.Contains(s, "ErrImagePull") })
	if !strings.Contains(state, "401") && !strings.Contains(state, "authorization") {
		t.Errorf("a pull without a login: %s", state)
	}
}

func (c cluster) namespace(ctx context.Context, t *testing.T, r *incluster.Registry) {
	t.Helper()
	_, err := c.api.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte(r.Pull.User + ":" + r.Pull.Password))
	data, err := json.Marshal(map[string]any{"auths": map[string]any{r.Address: map[string]string{"auth": auth}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.api.CoreV1().Secrets(testNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for range 30 { // the default service account follows its namespace
		if _, err = c.api.CoreV1().ServiceAccounts(testNamespace).Get(ctx, "default", metav1.GetOptions{}); err == nil {
			return
		}
		time.Sleep(time.Second)
	}
	t.Fatal(err)
}

func (c cluster) pod(ctx context.Context, t *testing.T, podName string, spec corev1.PodSpec) string {
	t.Helper()
	zero := int64(0)
	spec.TerminationGracePeriodSeconds = &zero
	_, err := c.api.CoreV1().Pods(testNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec:       spec,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return podName
}

// until waits for a state of a pod's container, and deletes the pod.
func (c cluster) until(ctx context.Context, t *testing.T, podName string, ok func(string) bool) string {
	t.Helper()
	state := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		p, err := c.api.CoreV1().Pods(testNamespace).Get(ctx, podName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Status.ContainerStatuses {
			switch {
			case s.State.Running != nil:
				state = "running"
			case s.State.Waiting != nil:
				state = s.State.Waiting.Reason + ": " + s.State.Waiting.Message
			default:
				state = fmt.Sprint(s.State)
			}
		}
		if ok(state) {
			_ = c.api.CoreV1().Pods(testNamespace).Delete(ctx, podName, metav1.DeleteOptions{})
			return state
		}
	}
	t.Fatalf("pod %s: %s", podName, state)
	return ""
}
