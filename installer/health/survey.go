package health

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Survey is the observed state of a cluster. Taking it changes nothing.
type Survey struct {
	Now        time.Time // by the clock of the host that kubectl runs on
	Kubernetes bool      // the cluster is kubeadm's
	Manual     bool      // certificates: {renew: manual}
	Version    string    // of the nodes as the cluster file has it; "" if unknown
	ownNetwork bool      // the cluster file says that the operator brings the pod network, perhaps later
	System     []string  // the namespaces of Kubernetes and the pod network

	Nodes   []corev1.Node
	Pods    []corev1.Pod
	Objects map[string]kube.Object // kubeadm's and the components' objects, by kind/name
	Classes []storagev1.StorageClass
	Tokens  []Bootstrap
	Hosts   []Surveyed

	Registries []RegistryState
}

// A Surveyed host is the observed state of one host.
type Surveyed struct {
	Name                 string
	Worker, ControlPlane bool
	Node, Etcd           bool  // the host should be one
	Wanted               bool  // the run includes the host
	LeftOut              bool  // the run goes on without the host, and has reported it
	Err                  error // why the host could not be asked
	Member               bool
	Runtime              string   // the container runtime's socket
	Disabled             []string // running units that nothing starts at boot
	API                  error
	Asked                bool // etcd was asked
	EtcdErr              error
	Metrics              EtcdMetrics
	Certificates         []node.Certificate
}

// A Bootstrap is a token of the cluster, without its secret.
type Bootstrap struct {
	Name    string
	Expires string // RFC 3339; "" never
}

const socketRecord = "kubeadm.alpha.kubernetes.io/cri-socket"

const instanceFile = "/var/lib/kubelet/instance-config.yaml"

// ExcludeLabel is kubeadm's label that keeps control planes out of external load balancers.
const ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// DefaultClass is the annotation of a default storage class.
const DefaultClass = "storageclass.kubernetes.io/is-default-class"

const etcdHealthPort = "2381"

// KubeadmRoles returns the roles and bindings that kubeadm creates, by kind/name.
func KubeadmRoles() []string {
	return []string{
		"Role/kubeadm:nodes-kubeadm-config", "RoleBinding/kubeadm:nodes-kubeadm-config",
		"Role/kubeadm:kubelet-config", "RoleBinding/kubeadm:kubelet-config",
		"ClusterRole/kubeadm:get-nodes", "ClusterRoleBinding/kubeadm:get-nodes",
		"ClusterRoleBinding/kubeadm:kubelet-bootstrap",
		"ClusterRoleBinding/kubeadm:node-autoapprove-bootstrap",
		"ClusterRoleBinding/kubeadm:node-autoapprove-certificate-rotation",
	}
}

// SignerRole and SignerBinding let joining nodes read ConfigMap cluster-info.
const (
	SignerRole    = "Role/kubeadm:bootstrap-signer-clusterinfo"
	SignerBinding = "RoleBinding/kubeadm:bootstrap-signer-clusterinfo"
)

// Leased returns the leases of components of which one instance works at a time.
func Leased() []string { return []string{"Lease/kube-scheduler", "Lease/kube-controller-manager"} }

// NewSurvey surveys the cluster through t, and every host that this run is connected to. The error names failed
// questions; the survey holds the other answers.
func NewSurvey(ctx context.Context, r *task.Site, t *task.Host) (*Survey, error) {
	s := &Survey{
		Kubernetes: r.Cluster.Kubernetes.Distribution == manifest.DistributionKubernetes,
		Version:    r.Cluster.Kubernetes.Version,
		Manual:     r.Cluster.Certificates.Renew == manifest.RenewManual,
		ownNetwork: !r.Cluster.CNI.Type.Installed() && r.Rule != task.AnyCluster, System: systemNamespaces(r),
		Objects: map[string]kube.Object{}, Now: r.Now(),
	}
	tasks := []func(context.Context) error{
		func(ctx context.Context) error { s.Hosts = surveyHosts(ctx, r); return nil },
		func(ctx context.Context) error { s.Registries = SurveyRegistries(ctx, r); return nil },
	}
	if t != nil {
		tasks = append(tasks, surveyCluster(t, s)...)
	}
	errs := make([]error, len(tasks))
	var wait sync.WaitGroup
	for i, one := range tasks {
		wait.Go(func() { errs[i] = one(ctx) })
	}
	wait.Wait()
	return s, errors.Join(errs...)
}

// systemNamespaces returns the namespaces of Kubernetes and the pod network; without a cluster file, of every pod
// network that kkbundle installs.
func systemNamespaces(r *task.Site) []string {
	if r.Rule != task.AnyCluster {
		return addon.OwnNamespaces(r.Cluster)
	}
	return addon.SystemNamespaces(r.Cluster)
}

// surveyCluster returns the questions to the API server.
func surveyCluster(t *task.Host, s *Survey) []func(context.Context) error {
	var mu sync.Mutex
	objects := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			list, err := t.Kube().List(ctx, append([]string{"--ignore-not-found"}, args...)...)
			mu.Lock()
			defer mu.Unlock()
			for _, o := range list {
				s.Objects[o.GetObjectKind().GroupVersionKind().Kind+"/"+o.GetName()] = o
			}
			return err
		}
	}
	tasks := []func(context.Context) error{
		func(ctx context.Context) (err error) { s.Now, err = t.Clock(ctx); return err },
		func(ctx context.Context) (err error) { s.Nodes, err = t.Kube().Nodes(ctx); return err },
		func(ctx context.Context) (err error) {
			s.Pods, err = t.Kube().Pods(ctx, "--all-namespaces")
			return err
		},
		func(ctx context.Context) (err error) { s.Classes, err = t.Kube().StorageClasses(ctx); return err },
	}
	if !s.Kubernetes {
		return tasks
	}
	return append(tasks,
		func(ctx context.Context) (err error) { s.Tokens, err = bootstraps(ctx, t); return err },
		objects(append(slices.Concat(KubeadmRoles(), Leased()), "--namespace="+kube.SystemNamespace,
			"ConfigMap/kubeadm-config", "ConfigMap/kubelet-config", "Deployment/coredns", "DaemonSet/kube-proxy")...),
		objects("--namespace="+kube.PublicNamespace, "ConfigMap/cluster-info", SignerRole, SignerBinding))
}

// bootstraps returns the names and ends of tokens without their secrets.
func bootstraps(ctx context.Context, t *task.Host) ([]Bootstrap, error) {
	out, err := t.Kubectl(ctx, "get", "secrets", "--namespace="+kube.SystemNamespace,
		"--field-selector=type=bootstrap.kubernetes.io/token",
		"--output=custom-columns=NAME:.metadata.name,END:.data.expiration", "--no-headers")
	if err != nil {
		return nil, err
	}
	var list []Bootstrap
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		b := Bootstrap{Name: fields[0]}
		if end, err := base64.StdEncoding.DecodeString(fields[1]); err == nil {
			b.Expires = string(end)
		}
		list = append(list, b)
	}
	return list, nil
}

// surveyedRoles returns the roles of Surveyed hosts.
func surveyedRoles() []manifest.Role { return []manifest.Role{manifest.RoleCluster, manifest.RoleEtcd} }

func surveyHosts(ctx context.Context, r *task.Site) []Surveyed {
	targets := r.WithRole(surveyedRoles()...)
	list := make([]Surveyed, len(targets))
	_ = r.OnAll(targets, func(i int, t *task.Host) error { list[i] = surveyHost(ctx, t); return nil })
	return list
}

func surveyHost(ctx context.Context, t *task.Host) Surveyed {
	s := Surveyed{
		Name: t.Name, Worker: t.Is(manifest.RoleWorker), ControlPlane: t.Is(manifest.RoleControlPlane),
		Node: t.Is(manifest.RoleCluster), Wanted: t.Site.IsWanted(t), LeftOut: t.Site.LeftOut(t.Name),
		Etcd: t.Site.Cluster.Etcd.Type == manifest.EtcdInternal && t.Is(manifest.RoleControlPlane) &&
			t.Site.Cluster.Kubernetes.Distribution == manifest.DistributionKubernetes,
		Err: t.Err,
	}
	if t.Conn == nil || s.Err != nil {
		if s.Err == nil {
			s.Err = errors.New("this run has no connection to the host")
		}
		return s
	}
	if s.Certificates, s.Err = Certificates(ctx, t); s.Err != nil {
		return s
	}
	if s.Member, s.Err = member.IsMember(ctx, t); s.Err != nil || !s.Member {
		return s
	}
	if s.Runtime, s.Err = runtimeRecord(ctx, t); s.Err != nil {
		return s
	}
	if s.Disabled, s.Err = disabledUnits(ctx, t); s.Err != nil {
		return s
	}
	if s.ControlPlane {
		s.API = APIHealth(ctx, t)
	}
	if s.Etcd {
		s.Asked = true
		s.Metrics, s.EtcdErr = etcdHealth(ctx, t)
	}
	return s
}

// runtimeRecord returns the runtime's socket from kubeadm's file. Before 1.34 the node had an annotation instead.
func runtimeRecord(ctx context.Context, t *task.Host) (string, error) {
	there, err := t.Test(ctx, "test", "-e", instanceFile)
	if err != nil || !there {
		return "", err
	}
	data, err := t.Read(ctx, instanceFile)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "containerRuntimeEndpoint:"); ok {
			return strings.Trim(strings.TrimSpace(v), `"'`), nil
		}
	}
	return "", nil
}

// APIHealth asks this host's own API server, by its address and without credentials, or with kubectl if it refuses.
func APIHealth(ctx context.Context, t *task.Host) error {
	ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
	defer cancel()
	ca, err := t.Read(ctx, t.Site.Distribution.Authority)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	for _, path := range []string{"/livez", "/readyz"} {
		path += "?verbose"
		_, err := httpGet(ctx, t, "https://"+address+path, ca)
		var refused *statusError
		if errors.As(err, &refused) && (refused.code == http.StatusUnauthorized ||
			refused.code == http.StatusForbidden) {
			_, err = t.Kubectl(ctx, "--server=https://"+address, "get", "--raw="+path)
		} else if refused != nil {
			refused.text = failedChecks(refused.text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// failedChecks returns the failed checks of an API server's list, or the whole text if it is no such list.
func failedChecks(text string) string {
	var ill []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "[-]") {
			ill = append(ill, strings.TrimSpace(line))
		}
	}
	if ill == nil {
		return text
	}
	return strings.Join(ill, ", ")
}

// A statusError is an HTTP answer other than success.
type statusError struct {
	url, text string
	code      int
}

func (e *statusError) Error() string { return fmt.Sprintf("%s: %d: %s", e.url, e.code, e.text) }

// EtcdMetrics are metrics of an etcd member.
type EtcdMetrics struct {
	HasLeader, Leader bool
	Version           string
	Bytes             int64
	Storage           string // the minor release of the data, such as 3.6
}

// EtcdMember asks the member on this host.
func EtcdMember(ctx context.Context, t *task.Host) (EtcdMetrics, error) { return etcdHealth(ctx, t) }

// etcdHealth asks the member on this host at the address of kubeadm's liveness probe: the loopback interface of the
// node's address family, without credentials. A member is healthy only if a majority answers it.
func etcdHealth(ctx context.Context, t *task.Host) (EtcdMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
	defer cancel()
	local := "http://" + net.JoinHostPort(task.Loopback(t.IP.String()), etcdHealthPort)
	metrics, err := httpGet(ctx, t, local+"/metrics", nil)
	if err != nil {
		return EtcdMetrics{}, err
	}
	m := parseEtcdMetrics(string(metrics))
	health, err := httpGet(ctx, t, local+"/health", nil)
	if err == nil && !strings.Contains(string(health), `"health":"true"`) {
		err = fmt.Errorf("etcd's health: %s", strings.TrimSpace(string(health)))
	}
	return m, err
}

// httpGet fetches a small document over a connection from the host.
func httpGet(ctx context.Context, t *task.Host, url string, ca []byte) ([]byte, error) {
	transport, err := t.Transport(ca)
	if err != nil {
		return nil, err
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	const most = 8 << 20 // etcd's metrics are about 200 KiB
	data, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err == nil && answer.StatusCode/100 != 2 {
		const shown = 2000
		return data, &statusError{url, strings.TrimSpace(string(data[:min(len(data), shown)])), answer.StatusCode}
	}
	return data, err
}

// parseEtcdMetrics reads the text format of Prometheus.
func parseEtcdMetrics(text string) EtcdMetrics {
	var m EtcdMetrics
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch {
		case name == "etcd_server_has_leader":
			m.HasLeader = number == 1
		case name == "etcd_server_is_leader":
			m.Leader = number == 1
		case name == "etcd_mvcc_db_total_size_in_bytes":
			m.Bytes = int64(number)
		case strings.HasPrefix(name, `etcd_cluster_version{cluster_version="`):
			m.Storage, _, _ = strings.Cut(strings.TrimPrefix(name, `etcd_cluster_version{cluster_version="`), `"`)
		case strings.HasPrefix(name, `etcd_server_version{server_version="`):
			m.Version, _, _ = strings.Cut(strings.TrimPrefix(name, `etcd_server_version{server_version="`), `"`)
		}
	}
	return m
}

// Certificates returns the host's certificates of the cluster.
func Certificates(ctx context.Context, t *task.Host) ([]node.Certificate, error) {
	facts, err := t.Facts(ctx, node.Probe{Only: true, Certificates: node.CertificatePlaces()})
	return facts.ClusterCertificates(), err
}
