package installer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

const clusterDomain = "cluster.local"

// kubeadmDistribution is Kubernetes as kubeadm makes it.
func kubeadmDistribution() clusterDistribution {
	return clusterDistribution{
		authority:       clusterCA,
		kubectl:         []string{"kubectl", "--kubeconfig=" + adminConf},
		nodes:           kubeadmTasks,
		dns:             dnsSpreadTasks,
		hardening:       hardeningTasks,
		services:        func(c *manifest.Cluster) *manifest.Cluster { return c },
		verifies:        func(tasks []Task) []Task { return tasks },
		refuses:         func(string) error { return nil },
		adminKubeconfig: func(ctx context.Context, t *Target) ([]byte, error) { return t.read(ctx, adminConf) },
		quorumWithout:   etcdWithout,
		keepDown:        func(context.Context, *Target) error { return nil },
	}
}

// kubeadmTasks make nodes of a cluster out of hosts.
func kubeadmTasks(c *manifest.Cluster) []Task {
	return slices.Concat(
		containerTasks(c),
		toolTasks(c),
		preloadTasks(c),
		etcdToolsTasks(c),
		[]Task{kubeletTask(c), patchesTask()},
		securityTasks(c),
		[]Task{initTask(c), apiTask()},
		endpointTasks(c),
		[]Task{
			joinTask("join-control-plane", OneByOne, manifest.RoleControlPlane),
			joinTask("join-worker", Each, manifest.RoleWorker),
		},
		localEndpointTasks(c),
		[]Task{
			labelTask(),
			adminConfTask(),
			certsTimerTask(c),
			dnsTask(),
		},
	)
}

// document is a YAML document for another program, whose shape is that program's. kubeadm's types and those of the configuration of
// the API server, the kubelet and kube-proxy are in modules that are not linked, and what the operator writes is merged into them.
type document = map[string]any

// kubeadmConfig renders what kubeadm reads, in the version of its API that the cluster's kubeadm knows best.
type kubeadmConfig struct {
	cluster  *manifest.Cluster
	endpoint string // host:port of the API server
	beta4    bool   // v1beta4 of the API, else v1beta3
	parts    []configPart
}

// newKubeadmConfig chooses the API version: v1beta4 exists since Kubernetes 1.31, v1beta3 is gone in time.
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
func newKubeadmConfig(c *manifest.Cluster, endpoint string, parts ...configPart) (kubeadmConfig, error) {
	v, err := semver.NewVersion(c.Kubernetes.Version)
	if err != nil {
		return kubeadmConfig{}, fmt.Errorf("kubernetes version %q: %w", c.Kubernetes.Version, err)
	}
	beta4 := !v.LessThan(semver.New(1, 31, 0, "", ""))
	return kubeadmConfig{cluster: c, endpoint: endpoint, beta4: beta4, parts: parts}, nil
}

func (k kubeadmConfig) apiVersion() string {
	if k.beta4 {
		return "kubeadm.k8s.io/v1beta4"
	}
	return "kubeadm.k8s.io/v1beta3"
}

// init is for the first control plane. The token is the one that kubeadm would make for a day if it were given none.
func (k kubeadmConfig) init(j joining) ([]byte, error) {
	d := document{
		"apiVersion":       k.apiVersion(),
		"kind":             "InitConfiguration",
		"bootstrapTokens":  []any{document{"token": j.token, "ttl": "5m0s", "description": "made by kkbundle for kubeadm init"}},
		"localAPIEndpoint": localEndpoint(j.ips[0]),
		"nodeRegistration": k.registration(j),
	}
	j.addPatches(d)
	return kube.Documents(
		d,
		k.clusterConfiguration(),
		k.kubeletConfiguration(),
		k.kubeProxyConfiguration(),
	)
}

// A joining node trusts the cluster by its authority's public key and is trusted by a token.
type joining struct {
	name string
	// ips are the node's addresses, one of each family that the cluster has.
	ips          []netip.Addr
	token        string
	pin          string
	worker       bool
	controlPlane bool
	// taints are what the inventory gives the node.
	taints []manifest.Taint
	// patched says that there are patches for the node.
	patched bool
	// certificateKey decrypts the authorities' keys that a control plane fetches from the cluster.
	certificateKey string
}

// join is for every other node.
func (k kubeadmConfig) join(j joining) ([]byte, error) {
	d := document{
		"apiVersion":       k.apiVersion(),
		"kind":             "JoinConfiguration",
		"nodeRegistration": k.registration(j),
		"discovery": document{
			"bootstrapToken": document{
				"apiServerEndpoint": k.endpoint,
				"token":             j.token,
				"caCertHashes":      []any{j.pin},
			},
			"tlsBootstrapToken": j.token,
		},
	}
	if j.controlPlane {
		d["controlPlane"] = document{"certificateKey": j.certificateKey, "localAPIEndpoint": localEndpoint(j.ips[0])}
	}
	j.addPatches(d)
	return kube.Documents(d)
}

// uploadCerts is for `kubeadm init phase upload-certs`, which puts the authorities' keys into the cluster, encrypted
// with a key that only a joining control plane gets.
func (k kubeadmConfig) uploadCerts(certificateKey string, ip netip.Addr) ([]byte, error) {
	return kube.Documents(
		document{
			"apiVersion":       k.apiVersion(),
			"kind":             "InitConfiguration",
			"certificateKey":   certificateKey,
			"localAPIEndpoint": localEndpoint(ip),
			"nodeRegistration": document{"criSocket": runtimeOf(k.cluster).socket},
		},
		k.clusterConfiguration(),
	)
}

func localEndpoint(ip netip.Addr) document {
	return document{"advertiseAddress": ip.String(), "bindPort": manifest.DefaultPort}
}

// registration names the node and its address, which kubeadm and the kubelet would else guess from the default route.
func (k kubeadmConfig) registration(j joining) document {
	d := document{
		"name":             j.name,
		"criSocket":        runtimeOf(k.cluster).socket,
		"imagePullPolicy":  "IfNotPresent",
		"kubeletExtraArgs": k.args(map[string]string{"node-ip": commas(j.ips)}),
	}
	if taints := j.registeredTaints(); taints != nil {
		d["taints"] = taints
	}
	return d
}

// registeredTaints are those that a node has from its first moment, nil for kubeadm's own choice: none for workers, and one
// for control planes, unless they are workers as well.
func (j joining) registeredTaints() []any {
	if len(j.taints) == 0 && (!j.controlPlane || !j.worker) {
		return nil
	}
	list := []any{}
	if j.controlPlane && !j.worker {
		list = append(list, document{"key": controlPlaneTaint, "effect": "NoSchedule"})
	}
	for _, t := range j.taints {
		if t.Key == controlPlaneTaint && t.Effect == "NoSchedule" && len(list) > 0 {
			continue
		}
		d := document{"key": t.Key, "effect": t.Effect}
		if t.Value != "" {
			d["value"] = t.Value
		}
		list = append(list, d)
	}
	return list
}

// addPatches tells kubeadm where patches are.
func (j joining) addPatches(d document) {
	if j.patched {
		d["patches"] = document{"directory": patchesDir}
	}
}

// commas writes addresses as Kubernetes takes several of them.
func commas(ips []netip.Addr) string {
	var list []string
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return strings.Join(list, ",")
}

func (k kubeadmConfig) clusterConfiguration() document {
	c := k.cluster
	base := document{
		"apiVersion":           k.apiVersion(),
		"kind":                 "ClusterConfiguration",
		"clusterName":          c.Metadata.Name,
		"kubernetesVersion":    c.Kubernetes.Version,
		"controlPlaneEndpoint": k.endpoint,
		"networking": document{
			"podSubnet":     c.Kubernetes.PodCIDR.String(),
			"serviceSubnet": c.Kubernetes.ServiceCIDR.String(),
			"dnsDomain":     clusterDomain,
		},
	}
	for _, p := range k.parts {
		base = k.laid(base, p.cluster)
	}
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		if d := k.component(name); len(d) > 0 {
			base = k.laid(base, document{name: d})
		}
	}
	return k.laid(base, c.Kubernetes.Kubeadm)
}

func (k kubeadmConfig) kubeletConfiguration() document {
	base := document{
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"kind":         "KubeletConfiguration",
		"cgroupDriver": "systemd",
		"maxPods":      k.cluster.Kubernetes.MaxPods,
	}
	for _, p := range k.parts {
		base = merged(base, p.kubelet)
	}
	return merged(base, k.cluster.Kubernetes.Kubelet)
}

func (k kubeadmConfig) kubeProxyConfiguration() document {
	base := document{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
		"kind":       "KubeProxyConfiguration",
		"mode":       string(k.cluster.Kubernetes.ProxyMode),
	}
	for _, p := range k.parts {
		base = merged(base, p.kubeProxy)
	}
	return merged(base, k.cluster.Kubernetes.KubeProxy)
}

// newToken makes a bootstrap token: six and sixteen characters of [a-z0-9].
func newToken() string { return randomHex(3) + "." + randomHex(8) }

// bootstrapToken is the Secret that makes a token valid until a time, for joining and nothing else.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
func bootstrapToken(token, expires, purpose string) ([]byte, error) {
	const idLength = 6
	id, secret := token[:idLength], token[idLength+1:]
	return kube.YAML(&corev1.Secret{
		Type:       corev1.SecretTypeBootstrapToken,
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: systemNamespace},
		StringData: map[string]string{
			"token-id":                       id,
			"token-secret":                   secret,
			"expiration":                     expires,
			"description":                    purpose,
			"usage-bootstrap-authentication": "true",
			"usage-bootstrap-signing":        "true",
			"auth-extra-groups":              "system:bootstrappers:kubeadm:default-node-token",
		},
	})
}
