package kubeadm

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Config renders what kubeadm reads, in the version of its API that the cluster's kubeadm knows best.
type Config struct {
	cluster  *manifest.Cluster
	endpoint string // host:port of the API server
	beta4    bool   // v1beta4 of the API, else v1beta3
	parts    []task.KubeadmPart
}

// NewKubeadmConfig chooses the API version: v1beta4 exists since Kubernetes 1.31, v1beta3 is gone in time.
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
func NewKubeadmConfig(c *manifest.Cluster, endpoint string, parts ...task.KubeadmPart) (Config, error) {
	v, err := semver.NewVersion(c.Kubernetes.Version)
	if err != nil {
		return Config{}, fmt.Errorf("kubernetes version %q: %w", c.Kubernetes.Version, err)
	}
	beta4 := !v.LessThan(semver.New(1, 31, 0, "", ""))
	return Config{cluster: c, endpoint: endpoint, beta4: beta4, parts: parts}, nil
}

func (k Config) APIVersion() string {
	if k.beta4 {
		return "kubeadm.k8s.io/v1beta4"
	}
	return "kubeadm.k8s.io/v1beta3"
}

// init is for the first control plane. The token is the one that kubeadm would make for a day if it were given none.
func (k Config) init(j Joining) ([]byte, error) {
	d := kube.Document{
		"apiVersion":       k.APIVersion(),
		"kind":             "InitConfiguration",
		"bootstrapTokens":  []any{kube.Document{"token": j.token, "ttl": "5m0s", "description": "made by kkbundle for kubeadm init"}},
		"localAPIEndpoint": LocalEndpoint(j.IPs[0]),
		"nodeRegistration": k.Registration(j),
	}
	j.addPatches(d)
	return kube.Documents(
		d,
		k.ClusterConfiguration(),
		k.KubeletConfiguration(),
		k.KubeProxyConfiguration(),
	)
}

// A Joining node trusts the cluster by its authority's public key and is trusted by a token.
type Joining struct {
	name string
	// ips are the node's addresses, one of each family that the cluster has.
	IPs          []netip.Addr
	token        string
	pin          string
	worker       bool
	controlPlane bool
	// taints are what the inventory gives the node.
	taints []manifest.Taint
	// patched says that there are patches for the node.
	Patched bool
	// certificateKey decrypts the authorities' keys that a control plane fetches from the cluster.
	certificateKey string
}

// join is for every other node.
func (k Config) join(j Joining) ([]byte, error) {
	d := kube.Document{
		"apiVersion":       k.APIVersion(),
		"kind":             "JoinConfiguration",
		"nodeRegistration": k.Registration(j),
		"discovery": kube.Document{
			"bootstrapToken": kube.Document{
				"apiServerEndpoint": k.endpoint,
				"token":             j.token,
				"caCertHashes":      []any{j.pin},
			},
			"tlsBootstrapToken": j.token,
		},
	}
	if j.controlPlane {
		d["controlPlane"] = kube.Document{"certificateKey": j.certificateKey, "localAPIEndpoint": LocalEndpoint(j.IPs[0])}
	}
	j.addPatches(d)
	return kube.Documents(d)
}

// uploadCerts is for `kubeadm init phase upload-certs`, which puts the authorities' keys into the cluster, encrypted
// with a key that only a joining control plane gets.
func (k Config) uploadCerts(certificateKey string, ip netip.Addr) ([]byte, error) {
	return kube.Documents(
		kube.Document{
			"apiVersion":       k.APIVersion(),
			"kind":             "InitConfiguration",
			"certificateKey":   certificateKey,
			"localAPIEndpoint": LocalEndpoint(ip),
			"nodeRegistration": kube.Document{"criSocket": cri.RuntimeOf(k.cluster).Socket},
		},
		k.ClusterConfiguration(),
	)
}

func LocalEndpoint(ip netip.Addr) kube.Document {
	return kube.Document{"advertiseAddress": ip.String(), "bindPort": manifest.DefaultPort}
}

// Registration names the node and its address, which kubeadm and the kubelet would else guess from the default route.
func (k Config) Registration(j Joining) kube.Document {
	d := kube.Document{
		"name":             j.name,
		"criSocket":        cri.RuntimeOf(k.cluster).Socket,
		"imagePullPolicy":  "IfNotPresent",
		"kubeletExtraArgs": k.args(map[string]string{"node-ip": Commas(j.IPs)}),
	}
	if taints := j.registeredTaints(); taints != nil {
		d["taints"] = taints
	}
	return d
}

// registeredTaints are those that a node has from its first moment, nil for kubeadm's own choice: none for workers, and one
// for control planes, unless they are workers as well.
func (j Joining) registeredTaints() []any {
	if len(j.taints) == 0 && (!j.controlPlane || !j.worker) {
		return nil
	}
	list := []any{}
	if j.controlPlane && !j.worker {
		list = append(list, kube.Document{"key": kube.ControlPlaneTaint, "effect": "NoSchedule"})
	}
	for _, t := range j.taints {
		if t.Key == kube.ControlPlaneTaint && t.Effect == "NoSchedule" && len(list) > 0 {
			continue
		}
		d := kube.Document{"key": t.Key, "effect": t.Effect}
		if t.Value != "" {
			d["value"] = t.Value
		}
		list = append(list, d)
	}
	return list
}

// addPatches tells kubeadm where patches are.
func (j Joining) addPatches(d kube.Document) {
	if j.Patched {
		d["patches"] = kube.Document{"directory": PatchesDir}
	}
}

// Commas writes addresses as Kubernetes takes several of them.
func Commas(ips []netip.Addr) string {
	var list []string
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return strings.Join(list, ",")
}

func (k Config) ClusterConfiguration() kube.Document {
	c := k.cluster
	base := kube.Document{
		"apiVersion":           k.APIVersion(),
		"kind":                 "ClusterConfiguration",
		"clusterName":          c.Metadata.Name,
		"kubernetesVersion":    c.Kubernetes.Version,
		"controlPlaneEndpoint": k.endpoint,
		"networking": kube.Document{
			"podSubnet":     c.Kubernetes.PodCIDR.String(),
			"serviceSubnet": c.Kubernetes.ServiceCIDR.String(),
			"dnsDomain":     kube.ClusterDomain,
		},
	}
	for _, p := range k.parts {
		base = k.laid(base, p.Cluster)
	}
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		if d := k.component(name); len(d) > 0 {
			base = k.laid(base, kube.Document{name: d})
		}
	}
	return k.laid(base, c.Kubernetes.Kubeadm)
}

func (k Config) KubeletConfiguration() kube.Document {
	base := kube.Document{
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"kind":         "KubeletConfiguration",
		"cgroupDriver": "systemd",
		"maxPods":      k.cluster.Kubernetes.MaxPods,
	}
	for _, p := range k.parts {
		base = merged(base, p.Kubelet)
	}
	return merged(base, k.cluster.Kubernetes.Kubelet)
}

func (k Config) KubeProxyConfiguration() kube.Document {
	base := kube.Document{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
		"kind":       "KubeProxyConfiguration",
		"mode":       string(k.cluster.Kubernetes.ProxyMode),
	}
	for _, p := range k.parts {
		base = merged(base, p.KubeProxy)
	}
	return merged(base, k.cluster.Kubernetes.KubeProxy)
}

// newToken makes a bootstrap token: six and sixteen characters of [a-z0-9].
func newToken() string { return task.RandomHex(3) + "." + task.RandomHex(8) }

// bootstrapToken is the Secret that makes a token valid until a time, for joining and nothing else.
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
func bootstrapToken(token, expires, purpose string) ([]byte, error) {
	const idLength = 6
	id, secret := token[:idLength], token[idLength+1:]
	return kube.YAML(&corev1.Secret{
		Type:       corev1.SecretTypeBootstrapToken,
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: kube.SystemNamespace},
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
