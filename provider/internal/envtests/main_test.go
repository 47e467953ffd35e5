// Package envtests runs the reconcilers and the webhooks against a genuine API server, with a stand-in for kkbundle and without Cluster API's
// own controllers, whose part the tests play. The API server and etcd are those of the lab (testdata/lab), or of KUBEBUILDER_ASSETS.
package envtests

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/config"
	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
	"github.com/kkbundle/kkbundle/provider/internal/webhooks"
)

// server is the API server of all tests; each test has a namespace and a manager of its own.
var server struct {
	config *rest.Config
	client client.Client
	// manager is the login of the managers: they may do what the components allow, and no more.
	manager *rest.Config
	scheme  *runtime.Scheme
	reason  string // why there is none
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&logs))))
	klog.SetOutput(&logs)
	klog.LogToStderr(false)
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "envtests: %s\n%s", err, logs.String())
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // as the testing package wants it
}

// logs is what the managers say.
var logs logBuffer

type logBuffer struct {
	mu   sync.Mutex
	data strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.data.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.data.String()
}

const startLimit = 5 * time.Minute

func run(m *testing.M) (int, error) {
	bin := binaries()
	if bin == "" {
		server.reason = "no kube-apiserver and etcd: build the lab's with make lab, or name a directory with both in KUBEBUILDER_ASSETS"
		return m.Run(), nil
	}
	server.scheme = runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, runtimev1.AddToScheme, infrav1.AddToScheme} {
		if err := add(server.scheme); err != nil {
			return 1, err
		}
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return 1, fmt.Errorf("go list -m sigs.k8s.io/cluster-api: %w", err)
	}
	capi := strings.TrimSpace(string(dir))
	crds, err := config.CRDs()
	if err != nil {
		return 1, err
	}
	validating, mutating := config.Validating(), config.Mutating()
	for i := range validating.Webhooks {
		validating.Webhooks[i].TimeoutSeconds = ptr.To[int32](30) // on a busy machine
	}
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].TimeoutSeconds = ptr.To[int32](30)
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: bin, Scheme: server.scheme, ErrorIfCRDPathMissing: true,
		CRDDirectoryPaths: []string{
			filepath.Join(capi, "core/config/crd/bases/cluster.x-k8s.io_clusters.yaml"), filepath.Join(capi, "core/config/crd/bases/cluster.x-k8s.io_machines.yaml"),
			filepath.Join(capi, "core/config/crd/bases/cluster.x-k8s.io_clusterclasses.yaml"), filepath.Join(capi, "core/config/crd/bases/runtime.cluster.x-k8s.io_extensionconfigs.yaml"),
			filepath.Join(capi, "core/config/crd/bases/cluster.x-k8s.io_machinedeployments.yaml"), filepath.Join(capi, "controlplane/kubeadm/config/crd/bases"),
			filepath.Join(capi, "bootstrap/kubeadm/config/crd/bases"), filepath.Join(capi, "core/config/crd/bases/cluster.x-k8s.io_machinesets.yaml"),
		},
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			MaxTime: startLimit, ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{validating}, MutatingWebhooks: []*admissionv1.MutatingWebhookConfiguration{mutating},
		},
		// A busy machine takes minutes for what takes seconds.
		ControlPlaneStartTimeout: startLimit, CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: startLimit},
	}
	for _, crd := range crds {
		file, err := writeCRD(crd)
		if err != nil {
			return 1, err
		}
		defer os.Remove(file)
		env.CRDDirectoryPaths = append(env.CRDDirectoryPaths, file)
	}
	if server.config, err = env.Start(); err != nil {
		return 1, errors.Join(err, env.Stop())
	}
	defer func() { _ = env.Stop() }()
	server.config.QPS, server.config.Burst = -1, -1
	if server.client, err = client.New(server.config, client.Options{Scheme: server.scheme}); err != nil {
		return 1, err
	}
	if server.manager, err = login(env); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := serveWebhooks(ctx, &env.WebhookInstallOptions); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

const managerUser = "kkbundle-provider"

// login makes the user of the managers, with the permissions of the components.
func login(env *envtest.Environment) (*rest.Config, error) {
	const name = managerUser
	user, err := env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		return nil, err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: config.ManagerRules()}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}
	for _, o := range []client.Object{role, binding} {
		if err := server.client.Create(context.Background(), o); err != nil {
			return nil, err
		}
	}
	conf := user.Config()
	conf.QPS, conf.Burst = -1, -1
	return conf, nil
}

// binaries returns the directory of kube-apiserver and etcd; "" if there is none.
func binaries() string {
	dirs := []string{os.Getenv("KUBEBUILDER_ASSETS")}
	lab := os.Getenv("KKBUNDLE_LAB")
	if cache, err := os.UserCacheDir(); lab == "" && err == nil {
		lab = filepath.Join(cache, "kkbundle-lab")
	}
	if found, err := filepath.Glob(filepath.Join(lab, "bin-*")); err == nil {
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		_, noServer := os.Stat(filepath.Join(dir, "kube-apiserver"))
		_, noStore := os.Stat(filepath.Join(dir, "etcd"))
		if dir != "" && noServer == nil && noStore == nil {
			return dir
		}
	}
	return ""
}

func writeCRD(crd interface{ MarshalJSON() ([]byte, error) }) (string, error) {
	data, err := crd.MarshalJSON()
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "crd-*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	return f.Name(), errors.Join(err, f.Close())
}

// serveWebhooks runs a manager with the webhooks only.
func serveWebhooks(ctx context.Context, o *envtest.WebhookInstallOptions) error {
	mgr, err := ctrl.NewManager(server.config, ctrl.Options{
		Scheme: server.scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: o.LocalServingHost, Port: o.LocalServingPort, CertDir: o.LocalServingCertDir}),
	})
	if err != nil {
		return err
	}
	if err := webhooks.Setup(mgr, managerUser); err != nil {
		return err
	}
	go func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "webhooks: %s\n", err)
		}
	}()
	address := net.JoinHostPort(o.LocalServingHost, fmt.Sprint(o.LocalServingPort))
	for range 400 {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only asks whether it listens
		if err == nil {
			return conn.Close()
		}
		time.Sleep(25 * time.Millisecond)
	}
	return fmt.Errorf("the webhooks do not listen at %s", address)
}

// A site is the namespace of a test, with its hosts and its manager.
type site struct {
	*testing.T
	client.Client
	namespace string
	program   *program
	nodes     *nodes
	places    int
	timing    controllers.Timing
	dirs      [2]string
	stop      func() // the manager in order
	kill      func() // the manager at once
}

var counter atomic.Int32

// newSite returns a site whose manager is at work.
func newSite(t *testing.T, edit ...func(*site)) *site {
	t.Helper()
	if server.client == nil {
		t.Skip(server.reason)
	}
	s := &site{
		T: t, Client: server.client, namespace: fmt.Sprintf("site-%d", counter.Add(1)), program: newProgram(), nodes: &nodes{},
		places: 10, dirs: [2]string{t.TempDir(), t.TempDir()},
		timing: controllers.Timing{Backoff: 30 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, Quarantine: 1500 * time.Millisecond, Run: time.Minute, Pull: time.Minute, Look: 100 * time.Millisecond},
	}
	for _, e := range edit {
		e(s)
	}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}})
	s.start()
	t.Cleanup(func() {
		s.stop()
		if t.Failed() && os.Getenv("KKBUNDLE_TEST_LOGS") != "" {
			t.Log(logs.String())
		}
	})
	return s
}

// errKilled is what the API server seems to say to a killed manager.
var errKilled = errors.New("killed")

type cut struct {
	next   http.RoundTripper
	killed *atomic.Bool
}

func (c cut) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.killed.Load() {
		return nil, errKilled
	}
	return c.next.RoundTrip(r)
}

// start starts a manager. A killed one writes nothing any more, as after kill -9.
func (s *site) start() {
	s.Helper()
	killed := &atomic.Bool{}
	conf := rest.CopyConfig(server.manager)
	conf.Wrap(func(rt http.RoundTripper) http.RoundTripper { return cut{rt, killed} })
	grace := patience
	mgr, err := ctrl.NewManager(conf, ctrl.Options{
		Scheme: server.scheme, Client: controllers.ClientOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}}, GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	skip := true
	operator := &hosts.Operator{Runner: s.program, Dir: s.dirs[0], Bundles: s.dirs[1]}
	c := controllers.Controllers{Operator: operator, Nodes: s.nodes, Updater: s.nodes, Timing: s.timing, Places: s.places}
	if err := c.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: 4, SkipNameValidation: &skip}); err != nil {
		s.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := mgr.Start(ctx); err != nil && !killed.Load() {
			s.Errorf("manager: %s", err)
		}
	}()
	s.stop = sync.OnceFunc(func() { cancel(); <-ended })
	s.kill = func() { killed.Store(true); s.stop() }
}

func (s *site) create(o client.Object) {
	s.Helper()
	if err := s.Create(s.Context(), o); err != nil {
		s.Fatal(err)
	}
}

func (s *site) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.namespace, Name: name}
}

func (s *site) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.namespace, Name: name}
}

// edit changes an object, against whoever else does.
func (s *site) edit(o client.Object, name string, change func()) {
	s.Helper()
	for {
		if err := s.Get(s.Context(), s.key(name), o); err != nil {
			s.Fatal(err)
		}
		change()
		err := s.Update(s.Context(), o)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "the object has been modified") {
			s.Fatal(err)
		}
	}
}

const patience = 2 * time.Minute

// eventually waits until a condition holds, and says what it was that did not.
func (s *site) eventually(what string, holds func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	s.Fatalf("not within %s: %s\n%s", patience, what, s.dump())
}

func (s *site) dump() string {
	var b strings.Builder
	var hs infrav1.KKHostList
	var ms infrav1.KKMachineList
	var is infrav1.KKInstanceList
	for _, l := range []client.ObjectList{&hs, &ms, &is} {
		_ = s.List(context.Background(), l, client.InNamespace(s.namespace))
	}
	for _, h := range hs.Items {
		fmt.Fprintf(&b, "host %s: %+v %v %v\n", h.Name, h.Spec.Consumer, h.Status, h.Annotations)
	}
	for _, m := range ms.Items {
		fmt.Fprintf(&b, "machine %s: %s %v\n", m.Name, m.Spec.HostName, m.Status)
	}
	for _, i := range is.Items {
		fmt.Fprintf(&b, "instance %s: %v %v\n", i.Name, i.Annotations, i.Status)
	}
	return b.String() + s.program.dump()
}
