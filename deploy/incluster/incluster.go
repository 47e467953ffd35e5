// Package incluster puts a registry of kkbundle's into a cluster that kkbundle did not make. Only the API server is
// asked: nothing logs in to a node, and nothing is pulled. DESIGN.md has the reasons.
package incluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	// DefaultNamespace holds all objects, and is itself one of them.
	DefaultNamespace = "kkbundle-registry"
	// DefaultPort is the port of each node's loopback address. It is outside the ranges of node ports and of
	// ephemeral ports.
	DefaultPort = 15050
	// NodeDirectory is the directory of the content on one node, for a registry without a storage class.
	NodeDirectory = "/var/lib/kkbundle-registry"

	defaultSize = "20Gi"
	defaultWait = 5 * time.Minute
)

// Programs are the programs of one architecture. Registry is a zstd stream; the others are as they are executed.
type Programs struct{ Start, Proxy, Registry []byte }

// Options describe the registry. Config and Programs are required.
type Options struct {
	Config    *rest.Config
	Programs  func(arch string) (Programs, error) // for Go's names of architectures
	Namespace string                              // "" is DefaultNamespace. It is created and never shared
	// StorageClass is the class of the volume with the content. "" keeps the content in NodeDirectory on one node, or
	// where an existing registry has it.
	StorageClass string
	Size         resource.Quantity // of the volume; zero is 20Gi
	// of the nodes' loopback addresses; 0 is that of an existing registry, else DefaultPort
	Port   int
	Wait   time.Duration // until the pods are ready; 0 is 5 minutes
	Logger *slog.Logger  // nil discards
}

// A Login is a user and password of the registry.
type Login struct{ User, Password string }

// A Registry is a registry that runs in the cluster.
type Registry struct {
	// Address is the HOST:PORT from which every node pulls.
	Address string
	// Pull may only pull.
	Pull Login
	// Push may pull and push, through Open.
	Push Login
	// Changed is the number of objects that Ensure created, changed or removed.
	Changed int
	// Without are the nodes that lack an image for the proxy. Their pods cannot pull.
	Without []string
	// Storage describes where the content is.
	Storage string

	authority []byte // PEM; nil of an earlier release's registry, which Find returns
	work      *work
}

// work is a run of Ensure or Remove.
type work struct {
	Options
	typed    kubernetes.Interface
	dynamic  dynamic.Interface
	metadata metadata.Interface
	changed  int
}

func begin(o Options) (*work, error) {
	o.Namespace, o.Wait = cmp.Or(o.Namespace, DefaultNamespace), cmp.Or(o.Wait, defaultWait)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Size.IsZero() {
		o.Size = resource.MustParse(defaultSize)
	}
	w := &work{Options: o}
	var errs [3]error
	w.typed, errs[0] = kubernetes.NewForConfig(o.Config)
	w.dynamic, errs[1] = dynamic.NewForConfig(o.Config)
	w.metadata, errs[2] = metadata.NewForConfig(o.Config)
	return w, errors.Join(errs[:]...)
}

// Ensure makes the cluster run the registry, and waits until nodes can pull from it. It can be repeated at any time:
// an interrupted run is continued, other programs replace the ones before, and a finished run is found and not
// changed.
func Ensure(ctx context.Context, o Options) (*Registry, error) {
	w, err := begin(o)
	if err != nil {
		return nil, err
	}
	s, err := w.survey(ctx)
	if err != nil {
		return nil, err
	}
	p, err := w.prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := w.place(ctx, p); err != nil {
		return nil, err
	}
	if err := w.wait(ctx, p); err != nil {
		return nil, err
	}
	if err := w.sweep(ctx, p); err != nil {
		return nil, err
	}
	return &Registry{
		Address: p.address(), Pull: p.secret.pull(), Push: p.secret.push(), Changed: w.changed, Without: p.without(),
		Storage:   p.storage.String(),
		authority: p.secret[keyAuthority], work: w,
	}, nil
}

// ErrNone means that the cluster has no registry of ours.
var ErrNone = errors.New("the cluster has no registry of kkbundle's")

// Find returns the registry that an earlier Ensure made, and changes nothing. The error is ErrNone if there is none.
func Find(ctx context.Context, o Options) (*Registry, error) {
	w, err := begin(o)
	if err != nil {
		return nil, err
	}
	where, err := w.existing(ctx)
	if err != nil {
		return nil, err
	}
	now, err := w.currentProxies(ctx)
	if err != nil {
		return nil, err
	}
	data, err := w.stored(ctx)
	if err != nil {
		return nil, err
	}
	if data == nil || where == nil || now.port == 0 {
		return nil, ErrNone
	}
	p := &plan{port: now.port}
	s := secret(data.Data)
	r := &Registry{Address: p.address(), Pull: s.pull(), Push: s.push(), Storage: where.String(), work: w}
	if data.Name == secretName { // an earlier release's registry has no TLS at the address for pushes
		r.authority = s[keyAuthority]
	}
	return r, nil
}

// prepare claims the namespace, and makes or reads what a later run must find again: the secrets, the service's
// address.
func (w *work) prepare(ctx context.Context, s survey) (*plan, error) {
	p := &plan{namespace: w.Namespace, port: cmp.Or(w.Port, s.proxies.port, DefaultPort), images: s.images}
	var err error
	if p.storage, err = w.storage(s); err != nil {
		return nil, err
	}
	for _, one := range s.images {
		programs, err := w.Programs(one.arch)
		if err == nil {
			p.programs, err = p.programs.with(one.arch, programs)
		}
		if err != nil {
			return nil, fmt.Errorf("programs for nodes of architecture %s: %w", one.arch, err)
		}
	}
	if err := w.claim(ctx); err != nil {
		return nil, err
	}
	if p.secret, err = w.secrets(ctx); err != nil {
		return nil, err
	}
	if err := w.apply(ctx, p.service()); err != nil {
		return nil, err
	}
	service, err := w.typed.CoreV1().Services(w.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p.clusterIP = service.Spec.ClusterIP
	return p, nil
}

// errForeign means that an object has our name and not our label.
var errForeign = errors.New("exists and was not made by kkbundle")

// claim creates the namespace.
func (w *work) claim(ctx context.Context) error {
	have, err := w.typed.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case !isOurs(have):
		return plain.Advise(fmt.Errorf("namespace %s %w", w.Namespace, errForeign),
			"choose another namespace for the registry")
	case have.DeletionTimestamp != nil:
		return plain.Advise(fmt.Errorf("namespace %s is being deleted", w.Namespace),
			"wait until kubectl get namespace no longer lists it")
	}
	return w.apply(ctx, namespaceObject(w.Namespace))
}

func isOurs(o metav1.Object) bool { return o.GetLabels()[managedBy] == manager }

// Remove removes the registry and its namespace. The returned text names content that stays on a node, "" if none does.
func Remove(ctx context.Context, o Options) (string, error) {
	w, err := begin(o)
	if err != nil {
		return "", err
	}
	namespaces := w.typed.CoreV1().Namespaces()
	have, err := namespaces.Get(ctx, w.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !isOurs(have) {
		return "", fmt.Errorf("namespace %s %w", w.Namespace, errForeign)
	}
	if err := w.alone(ctx); err != nil {
		return "", err
	}
	where, err := w.existing(ctx)
	if err != nil {
		return "", err
	}
	if err := namespaces.Delete(ctx, w.Namespace,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))}); err != nil {
		return "", err
	}
	gone := func(ctx context.Context) (string, error) {
		_, err := namespaces.Get(ctx, w.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "namespace " + w.Namespace + " still exists", err
	}
	if err := w.poll(ctx, gone); err != nil {
		return "", err
	}
	if where != nil && where.node != "" {
		return where.String(), nil
	}
	return "", nil
}

// alone returns an error if pods of others run in the namespace: they would be removed with it.
func (w *work) alone(ctx context.Context) error {
	pods, err := w.typed.CoreV1().Pods(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "!=" +
		manager})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		return plain.Advise(fmt.Errorf("namespace %s has pod %s, which is not the registry's", w.Namespace,
			pods.Items[i].Name),
			"move or delete that pod first: the namespace is removed with all that is in it")
	}
	return nil
}

// sweep deletes ConfigMaps of programs that no pod needs any more, and an earlier release's Secret.
func (w *work) sweep(ctx context.Context, p *plan) error {
	needed := map[string]bool{}
	for _, m := range p.configMaps() {
		needed[m.Name] = true
	}
	have, err := w.metadata.Resource(configMaps()).Namespace(w.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: componentLabel + "=" + programs})
	if err != nil {
		return err
	}
	for _, m := range have.Items {
		if needed[m.Name] {
			continue
		}
		if err := w.typed.CoreV1().ConfigMaps(w.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			return err
		}
		w.changed++
	}
	return w.dropEarlierSecret(ctx)
}

// dropEarlierSecret deletes the Secret of releases whose proxies referred to it. No pod does any more.
func (w *work) dropEarlierSecret(ctx context.Context) error {
	api := w.typed.CoreV1().Secrets(w.Namespace)
	have, err := api.Get(ctx, earlierSecret, metav1.GetOptions{})
	if err == nil && isOurs(have) {
		w.changed++
		err = api.Delete(ctx, earlierSecret,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// storage is the place of the content: a volume of a class, or a directory of a node.
type storage struct {
	class string
	size  resource.Quantity
	node  string // value of the label kubernetes.io/hostname
}

// String implements fmt.Stringer.
func (s storage) String() string {
	if s.node != "" {
		return fmt.Sprintf("directory %s of node %s", NodeDirectory, s.node)
	}
	return fmt.Sprintf("volume claim %s of storage class %s", name, s.class)
}

// existing returns the storage of the registry in the cluster, nil if there is none.
func (w *work) existing(ctx context.Context) (*storage, error) {
	d, err := w.typed.AppsV1().Deployments(w.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if node := d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname]; node != "" {
		return &storage{node: node}, nil
	}
	c, err := w.typed.CoreV1().PersistentVolumeClaims(w.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &storage{size: c.Spec.Resources.Requests[corev1.ResourceStorage]}
	if c.Spec.StorageClassName != nil {
		s.class = *c.Spec.StorageClassName
	}
	return s, nil
}

// storage decides where the content is. An existing registry keeps its place, because content is never moved.
func (w *work) storage(s survey) (storage, error) {
	wanted := storage{class: w.StorageClass, size: w.Size}
	if have := s.existing; have != nil {
		if w.StorageClass != "" && w.StorageClass != have.class {
			return storage{}, plain.Advise(fmt.Errorf("the registry's content is in %s, not in storage class %s", have,
				w.StorageClass),
				"leave out the storage class; or remove the registry, deploy it with the class and push again")
		}
		return *have, nil
	}
	if w.StorageClass == "" {
		if s.node == "" {
			return storage{}, errors.New(
				"no node is ready and schedulable for the registry's content: make one ready, or give a storage class")
		}
		wanted = storage{node: s.node}
	}
	return wanted, nil
}
