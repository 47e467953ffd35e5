package incluster_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/kkbundle/kkbundle/deploy/incluster"
)

// TestAPIServer runs against a genuine API server, controller manager and scheduler without a node: the objects,
// their limits, reruns and removal are real. The node and its kubelet are stand-ins: no program runs, and nothing is
// pulled or forwarded. The lab's TestDeployInClusterAPI starts the server.
func TestAPIServer(t *testing.T) {
	path := os.Getenv("KKBUNDLE_TEST_NODELESS")
	if path == "" {
		t.Skip("KKBUNDLE_TEST_NODELESS names no kubeconfig of an API server without nodes")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{api, incluster.Options{
		Config: config, Programs: programs, Wait: time.Minute,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	if _, err := incluster.Ensure(t.Context(), c.o); err == nil ||
		!strings.Contains(err.Error(), "no ready Linux node") {
		t.Errorf("without a node: %v", err)
	}
	if _, err := incluster.Find(t.Context(), c.o); !errors.Is(err, incluster.ErrNone) {
		t.Errorf("a registry was found: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var kubelet sync.WaitGroup
	kubelet.Go(func() { standInKubelet(ctx, api) })
	defer kubelet.Wait()
	defer cancel()
	c.standInNode(t, "stand-in")
	c.standInPod(t)
	for _, s := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"an interrupted run is continued", c.interrupted},
		{"a rerun changes nothing", func(t *testing.T) {
			if r := c.ensure(t); r.Changed != 0 {
				t.Errorf("%d objects changed", r.Changed)
			}
		}},
		{"another program replaces the one before", c.replaced},
		{"content is not moved", c.moved},
		{"another port", c.anotherPort},
		{"a namespace of others is not touched", c.taken},
		{"a node without the registry reads no secret of it", c.otherNode},
		{"removed", func(t *testing.T) {
			left, err := incluster.Remove(t.Context(), c.o)
			if err != nil || left != "directory /var/lib/kkbundle-registry of node stand-in" {
				t.Errorf("left %q, %v", left, err)
			}
		}},
	} {
		t.Run(s.name, s.run)
	}
}

// standInNode creates a node.
func (c cluster) standInNode(t *testing.T, name string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
	}}}
	nodes := c.api.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	change := func(change func(*corev1.Node) error) { // controllers change it, too
		t.Helper()
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
			if n, err = nodes.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				return err
			}
			return change(n)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	change(func(n *corev1.Node) error {
		n.Spec.Taints = nil // the node controller's, of a node that is not ready yet
		_, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{})
		return err
	})
	change(func(n *corev1.Node) error {
		_, err := nodes.UpdateStatus(t.Context(), readyNode(n), metav1.UpdateOptions{})
		return err
	})
}

// readyNode returns a node with room that is ready.
func readyNode(n *corev1.Node) *corev1.Node {
	n.Status.NodeInfo = corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity, n.Status.Allocatable = room, room
	return n
}

// standInPod creates a pod on the node stand-in.
func (c cluster) standInPod(t *testing.T) {
	t.Helper()
	no := false
	var err error
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.PodSpec{
		NodeName: "stand-in", Containers: []corev1.Container{{Name: "c", Image: "registry.k8s.io/kube-proxy:v1.37.0"}},
		AutomountServiceAccountToken: &no,
	}}
	for range 60 { // the service account follows the namespace
		if _, err = c.api.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		if p, err = c.api.CoreV1().Pods("default").Get(t.Context(), "other", metav1.GetOptions{}); err == nil &&
			p.Status.Phase == corev1.PodRunning {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	t.Fatal("the stand-in's pod does not run")
}

// standInKubelet says of every scheduled pod that it runs, and removes deleted ones.
func standInKubelet(ctx context.Context, api kubernetes.Interface) {
	for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		pods, err := api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			now := int64(0)
			switch {
			case p.Spec.NodeName == "":
			case p.DeletionTimestamp != nil:
				_ = api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
			case p.Status.Phase != corev1.PodRunning:
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = append(p.Status.Conditions,
					corev1.PodCondition{
						Type: corev1.PodReady, Status: corev1.ConditionTrue,
						LastTransitionTime: metav1.Now(),
					})
				for _, c := range p.Spec.Containers {
					p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
						Name: c.Name, Ready: true,
						State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					})
				}
				_, _ = api.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
			}
		}
	}
}

// A stopper cancels at a message.
type stopper struct {
	slog.Handler
	at   string
	stop func()
}

// Handle implements slog.Handler.
func (s stopper) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if strings.HasPrefix(a.Value.String(), s.at) {
			s.stop()
		}
		return true
	})
	return s.Handler.Handle(ctx, r)
}

// interrupted stops runs in their middle: while programs are uploaded, and before the proxies.
func (c cluster) interrupted(t *testing.T) {
	for _, at := range []string{"registry-amd64-", "Deployment.apps/v1"} {
		ctx, cancel := context.WithCancel(t.Context())
		o := c.o
		o.Logger = slog.New(stopper{slog.NewTextHandler(t.Output(), nil), at, cancel})
		if _, err := incluster.Ensure(ctx, o); err == nil {
			t.Errorf("a run that was stopped at %s has no error", at)
		}
		cancel()
	}
	r := c.ensure(t)
	if r.Changed == 0 || r.Address != "127.0.0.1:15050" ||
		r.Storage != "directory /var/lib/kkbundle-registry of node stand-in" || len(r.Without) != 0 {
		t.Errorf("%+v", r)
	}
	maps, err := c.api.CoreV1().ConfigMaps(incluster.DefaultNamespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=program"})
	if err != nil {
		t.Fatal(err)
	}
	bytes := 0
	for _, m := range maps.Items {
		for _, data := range m.BinaryData {
			bytes += len(data)
		}
	}
	t.Logf("%d ConfigMaps hold %d bytes", len(maps.Items), bytes)
}

func (c cluster) replaced(t *testing.T) {
	o := c.o
	o.Programs = func(arch string) (incluster.Programs, error) {
		p, err := programs(arch)
		p.Proxy = append(p.Proxy[:len(p.Proxy):len(p.Proxy)], "newer"...)
		return p, err
	}
	before := c.partNames(t)
	newer := cluster{c.api, o}
	if r := newer.ensure(t); r.Changed == 0 {
		t.Error("nothing changed")
	}
	after := c.partNames(t)
	same := 0
	for n := range after {
		if before[n] {
			same++
		}
	}
	if len(after) != len(before) || same == len(after) || same == 0 {
		t.Errorf("%d of %d ConfigMaps are the same as before, when there were %d", same, len(after), len(before))
	}
	if r := newer.ensure(t); r.Changed != 0 {
		t.Errorf("a rerun changed %d objects", r.Changed)
	}
}

func (c cluster) partNames(t *testing.T) map[string]bool {
	t.Helper()
	list, err := c.api.CoreV1().ConfigMaps(incluster.DefaultNamespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=program"})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range list.Items {
		names[m.Name] = true
	}
	return names
}

func (c cluster) moved(t *testing.T) {
	o := c.o
	o.StorageClass = "fast"
	if _, err := incluster.Ensure(t.Context(), o); err == nil ||
		!strings.Contains(err.Error(), "not in storage class fast") {
		t.Errorf("%v", err)
	}
}

// anotherPort chooses one, which later runs keep.
func (c cluster) anotherPort(t *testing.T) {
	o := c.o
	o.Port = 15051
	if r := (cluster{c.api, o}).ensure(t); r.Address != "127.0.0.1:15051" {
		t.Errorf("the address is %s", r.Address)
	}
	made := c.ensure(t)
	found, err := incluster.Find(t.Context(), c.o)
	if err != nil || found.Address != "127.0.0.1:15051" || found.Pull != made.Pull || found.Push != made.Push ||
		found.Storage != made.Storage {
		t.Errorf("found %+v, %v, and a run without a port has %s", found, err, made.Address)
	}
}

func (c cluster) taken(t *testing.T) {
	o := c.o
	o.Namespace = "taken"
	if _, err := c.api.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := incluster.Ensure(t.Context(), o); err == nil ||
		!strings.Contains(err.Error(), "was not made by kkbundle") {
		t.Errorf("%v", err)
	}
	if _, err := incluster.Remove(t.Context(), o); err == nil ||
		!strings.Contains(err.Error(), "was not made by kkbundle") {
		t.Errorf("removal: %v", err)
	}
}

// as returns a client with the rights of a node's kubelet.
func (c cluster) as(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(c.o.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"},
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// otherNode has a node with a proxy alone. The Node authorizer lets its kubelet read what the proxy needs, and neither
// the push password nor the key of the certificate, which the kubelet of the registry's node may read.
func (c cluster) otherNode(t *testing.T) {
	const other = "other-node"
	c.standInNode(t, other)
	there, here := c.as(t, other).CoreV1(), c.as(t, "stand-in").CoreV1()
	maps := there.ConfigMaps(incluster.DefaultNamespace)
	authority, err := c.api.CoreV1().ConfigMaps(incluster.DefaultNamespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=authority"})
	if err != nil || len(authority.Items) != 1 {
		t.Fatalf("%d objects of the proxies, %v", len(authority.Items), err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) { // its proxy is scheduled there
		if _, err = maps.Get(t.Context(), authority.Items[0].Name, metav1.GetOptions{}); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a proxy's node cannot read the authority: %v", err)
		}
	}
	secrets, err := c.api.CoreV1().Secrets(incluster.DefaultNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for _, s := range secrets.Items {
		for _, data := range s.Data {
			if strings.Contains(string(data), "PRIVATE KEY") {
				keys++
				if _, err := here.Secrets(s.Namespace).Get(t.Context(), s.Name, metav1.GetOptions{}); err != nil {
					t.Errorf("the registry's node cannot read %s: %v", s.Name, err)
				}
			}
		}
		if _, err := there.Secrets(s.Namespace).Get(t.Context(), s.Name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a proxy's node reads Secret %s: %v", s.Name, err)
		}
	}
	if keys == 0 {
		t.Errorf("none of %d Secrets has the key of a certificate", len(secrets.Items))
	}
	if _, err := there.Secrets(incluster.DefaultNamespace).List(t.Context(),
		metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a proxy's node lists Secrets: %v", err)
	}
}
