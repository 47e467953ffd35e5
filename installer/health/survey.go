package installer

import (
	"context"
	"crypto/x509"
	_ "embed" // scripts
	"encoding/base64"
	"encoding/pem"
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

	"github.com/kkbundle/kkbundle/installer/host"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/manifest"
)

// A survey is what there is to see of a cluster, without making anything in it.
type survey struct {
	now        time.Time // by the clock of the host that kubectl runs on
	kubernetes bool      // the cluster is kubeadm's
	version    string    // that the nodes should run; "" if that is not known
	ownNetwork bool      // the pod network is the operator's, and may not be there yet
	system     []string  // the namespaces of Kubernetes and the pod network

	nodes   []corev1.Node
	pods    []corev1.Pod
	objects map[string]kube.Object // kubeadm's and the components', by kind/name
	classes []storagev1.StorageClass
	tokens  []bootstrap
	hosts   []surveyed

	registries []registrySeen
}

// A surveyed host is what it says itself.
type surveyed struct {
	name                 string
	worker, controlPlane bool
	node, etcd           bool  // it should be one
	wanted               bool  // this run is about it
	left                 bool  // the run goes on without it, and has said so
	err                  error // why it could not be asked
	member               bool
	runtime              string // how the kubelet reaches the container runtime
	api                  error
	asked                bool // etcd was
	etcdErr              error
	metrics              etcdMetrics
	certificates         []report.Certificate
}

// A bootstrap is a token of the cluster, without what is secret of it.
type bootstrap struct {
	name    string
	expires string // RFC 3339; "" never
}

// kubeadm's names. https://github.com/kubernetes/kubernetes/blob/v1.34.3/cmd/kubeadm/app/constants/constants.go
// and, for roles, phases/uploadconfig, phases/kubelet, phases/bootstraptoken.
const (
	kubeSystem     = "kube-system"
	kubePublic     = "kube-public"
	socketRecord   = "kubeadm.alpha.kubernetes.io/cri-socket"
	instanceFile   = "/var/lib/kubelet/instance-config.yaml"
	controlLabel   = "node-role.kubernetes.io/control-plane"
	excludeLabel   = "node.kubernetes.io/exclude-from-external-load-balancers"
	defaultClass   = "storageclass.kubernetes.io/is-default-class"
	etcdHealthPort = "2381"
)

func kubeadmRoles() []string {
	return []string{
		"Role/kubeadm:nodes-kubeadm-config", "RoleBinding/kubeadm:nodes-kubeadm-config",
		"Role/kubeadm:kubelet-config", "RoleBinding/kubeadm:kubelet-config",
		"ClusterRole/kubeadm:get-nodes", "ClusterRoleBinding/kubeadm:get-nodes",
		"ClusterRoleBinding/kubeadm:kubelet-bootstrap",
		"ClusterRoleBinding/kubeadm:node-autoapprove-bootstrap",
		"ClusterRoleBinding/kubeadm:node-autoapprove-certificate-rotation",
	}
}

const (
	signerRole    = "Role/kubeadm:bootstrap-signer-clusterinfo"
	signerBinding = "RoleBinding/kubeadm:bootstrap-signer-clusterinfo"
)

// leased are the components of which one at a time works, by their leases.
func leased() []string { return []string{"Lease/kube-scheduler", "Lease/kube-controller-manager"} }

// survey looks at the cluster from t, and at every host that this run is connected to. What could not be seen is in the
// error; the rest is there all the same.
func (r *Site) survey(ctx context.Context, t *Target) (*survey, error) {
	s := &survey{
		kubernetes: r.cluster.Kubernetes.Distribution == manifest.DistributionKubernetes, version: r.cluster.Kubernetes.Version,
		ownNetwork: r.cluster.CNI.Type == manifest.NetworkNone, system: ownNamespaces(r.cluster), objects: map[string]kube.Object{}, now: r.Now(),
	}
	tasks := []func(context.Context) error{
		func(ctx context.Context) error { s.hosts = r.surveyHosts(ctx); return nil },
		func(ctx context.Context) error { s.registries = r.surveyRegistries(ctx); return nil },
	}
	if t != nil {
		tasks = append(tasks, t.surveyCluster(s)...)
	}
	errs := make([]error, len(tasks))
	var wait sync.WaitGroup
	for i, one := range tasks {
		wait.Go(func() { errs[i] = one(ctx) })
	}
	wait.Wait()
	return s, errors.Join(errs...)
}

// surveyCluster asks the API server, several things at a time.
func (t *Target) surveyCluster(s *survey) []func(context.Context) error {
	var mu sync.Mutex
	objects := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			list, err := t.kube().List(ctx, append([]string{"--ignore-not-found"}, args...)...)
			mu.Lock()
			defer mu.Unlock()
			for _, o := range list {
				s.objects[o.GetObjectKind().GroupVersionKind().Kind+"/"+o.GetName()] = o
			}
			return err
		}
	}
	tasks := []func(context.Context) error{
		func(ctx context.Context) (err error) { s.now, err = t.clock(ctx); return err },
		func(ctx context.Context) (err error) { s.nodes, err = t.kube().Nodes(ctx); return err },
		func(ctx context.Context) (err error) {
			s.pods, err = t.kube().Pods(ctx, "--all-namespaces")
			return err
		},
		func(ctx context.Context) (err error) { s.classes, err = t.kube().StorageClasses(ctx); return err },
	}
	if !s.kubernetes {
		return tasks
	}
	return append(tasks,
		func(ctx context.Context) (err error) { s.tokens, err = t.bootstraps(ctx); return err },
		objects(append(slices.Concat(kubeadmRoles(), leased()), "--namespace="+kubeSystem,
			"ConfigMap/kubeadm-config", "ConfigMap/kubelet-config", "Deployment/coredns", "DaemonSet/kube-proxy")...),
		objects("--namespace="+kubePublic, "ConfigMap/cluster-info", signerRole, signerBinding))
}

// clock is the host's.
func (t *Target) clock(ctx context.Context) (time.Time, error) {
	out, err := t.output(ctx, "date", "+%s")
	if err != nil {
		return time.Time{}, err
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("clock of %s: %w", t.Name, err)
	}
	return time.Unix(now, 0), nil
}

// bootstraps asks for the names and ends of tokens, and not for their secrets.
func (t *Target) bootstraps(ctx context.Context) ([]bootstrap, error) {
	out, err := t.kubectl(ctx, "get", "secrets", "--namespace="+kubeSystem, "--field-selector=type=bootstrap.kubernetes.io/token",
		"--output=custom-columns=NAME:.metadata.name,END:.data.expiration", "--no-headers")
	if err != nil {
		return nil, err
	}
	var list []bootstrap
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		b := bootstrap{name: fields[0]}
		if end, err := base64.StdEncoding.DecodeString(fields[1]); err == nil {
			b.expires = string(end)
		}
		list = append(list, b)
	}
	return list, nil
}

// surveyHosts asks every host.
func (r *Site) surveyHosts(ctx context.Context) []surveyed {
	targets := r.withRole(manifest.RoleCluster, manifest.RoleEtcd)
	list := make([]surveyed, len(targets))
	_ = r.onAll(targets, func(i int, t *Target) error { list[i] = t.survey(ctx); return nil })
	return list
}

func (t *Target) survey(ctx context.Context) surveyed {
	s := surveyed{
		name: t.Name, worker: t.Is(manifest.RoleWorker), controlPlane: t.Is(manifest.RoleControlPlane),
		node: t.Is(manifest.RoleCluster), wanted: t.run.isWanted(t), left: t.run.leftOut(t.Name),
		etcd: t.run.cluster.Etcd.Type == manifest.EtcdInternal && t.Is(manifest.RoleControlPlane) && t.run.cluster.Kubernetes.Distribution == manifest.DistributionKubernetes,
		err:  t.failure,
	}
	if t.on == nil || s.err != nil {
		if s.err == nil {
			s.err = errors.New("this run is not connected to it")
		}
		return s
	}
	if s.member, s.err = t.isMember(ctx); s.err != nil || !s.member {
		return s
	}
	if s.runtime, s.err = t.runtimeRecord(ctx); s.err != nil {
		return s
	}
	if s.certificates, s.err = t.certificates(ctx); s.err != nil {
		return s
	}
	if s.controlPlane {
		s.api = t.apiHealth(ctx)
	}
	if s.etcd {
		s.asked = true
		s.metrics, s.etcdErr = t.etcdHealth(ctx)
	}
	return s
}

// runtimeRecord is what kubeadm keeps on the host since 1.34, where the node had an annotation before.
func (t *Target) runtimeRecord(ctx context.Context) (string, error) {
	there, err := t.test(ctx, "test", "-e", instanceFile)
	if err != nil || !there {
		return "", err
	}
	data, err := t.read(ctx, instanceFile)
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

// apiHealth asks this host's own API server, by its address and as nobody; one that lets nobody ask is asked with kubectl.
func (t *Target) apiHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	ca, err := t.read(ctx, t.run.distribution.authority)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	for _, path := range []string{"/livez", "/readyz"} {
		path += "?verbose"
		_, err := t.httpGet(ctx, "https://"+address+path, ca)
		var refused *statusError
		if errors.As(err, &refused) && (refused.code == http.StatusUnauthorized || refused.code == http.StatusForbidden) {
			_, err = t.kubectl(ctx, "--server=https://"+address, "get", "--raw="+path)
		} else if refused != nil {
			refused.text = illChecks(refused.text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// illChecks are the checks that failed, of those that an API server lists; or the whole text, if it is not such a list.
func illChecks(text string) string {
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

// A statusError is an answer that is no success.
type statusError struct {
	url, text string
	code      int
}

func (e *statusError) Error() string { return fmt.Sprintf("%s: %d: %s", e.url, e.code, e.text) }

// lookTimeout bounds one question to a component that may hang.
const lookTimeout = 15 * time.Second

// etcdMetrics is what a member says of itself.
type etcdMetrics struct {
	hasLeader, leader bool
	version           string
	bytes             int64
}

// etcdHealth asks the member on this host where kubeadm lets the kubelet ask: on the loopback interface, of the
// family of the node's address, without credentials. It is healthy only if a majority answers it.
func (t *Target) etcdHealth(ctx context.Context) (etcdMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	local := "http://" + net.JoinHostPort(loopback(t.IP.String()), etcdHealthPort)
	metrics, err := t.httpGet(ctx, local+"/metrics", nil)
	if err != nil {
		return etcdMetrics{}, err
	}
	m := parseEtcdMetrics(string(metrics))
	health, err := t.httpGet(ctx, local+"/health", nil)
	if err == nil && !strings.Contains(string(health), `"health":"true"`) {
		err = fmt.Errorf("etcd says %s", strings.TrimSpace(string(health)))
	}
	return m, err
}

// httpGet gets a small answer over a connection that the host makes.
func (t *Target) httpGet(ctx context.Context, url string, ca []byte) ([]byte, error) {
	transport, err := t.transport(ca)
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
func parseEtcdMetrics(text string) etcdMetrics {
	var m etcdMetrics
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch {
		case name == "etcd_server_has_leader":
			m.hasLeader = number == 1
		case name == "etcd_server_is_leader":
			m.leader = number == 1
		case name == "etcd_mvcc_db_total_size_in_bytes":
			m.bytes = int64(number)
		case strings.HasPrefix(name, `etcd_server_version{server_version="`):
			m.version, _, _ = strings.Cut(strings.TrimPrefix(name, `etcd_server_version{server_version="`), `"`)
		}
	}
	return m
}

//go:embed scripts/certificates.sh
var certificatesScript string

// certificates returns those of the host that the cluster depends on.
func (t *Target) certificates(ctx context.Context) ([]report.Certificate, error) {
	ctx = describedAs(withoutOutput(ctx), "read the certificates below /etc/kubernetes")
	out, err := t.output(ctx, host.Script("certificates.sh", certificatesScript)...)
	if err != nil {
		return nil, err
	}
	return parseCertificates(t.Name, string(out)), nil
}

// parseCertificates reads what certificatesScript prints: the first certificate of each file.
func parseCertificates(host, text string) []report.Certificate {
	var list []report.Certificate
	for _, section := range strings.Split("\n"+text, "\n# ")[1:] {
		file, data, _ := strings.Cut(section, "\n")
		block, _ := pem.Decode([]byte(data))
		if block == nil {
			continue // a kubeconfig that names a file
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // not one that Kubernetes could use either, and it says so
		}
		list = append(list, report.Certificate{Host: host, File: file, Subject: cert.Subject.CommonName, Expires: cert.NotAfter})
	}
	return list
}
