package kubeadm

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Config renders kubeadm's configuration in the newest API version that the cluster's kubeadm supports.
type Config struct {
	cluster  *manifest.Cluster
	endpoint string // host:port of the API server
	beta4    bool   // v1beta4 of the API, else v1beta3
	parts    []task.KubeadmPart
	images   map[string]string // references by component
}

// NewConfig returns a Config with the API version of the cluster's Kubernetes: v1beta4 since 1.31, else v1beta3.
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
func NewConfig(c *manifest.Cluster, endpoint string, parts ...task.KubeadmPart) (Config, error) {
	v, err := semver.NewVersion(c.Kubernetes.Version)
	if err != nil {
		return Config{}, fmt.Errorf("kubernetes version %q: %w", c.Kubernetes.Version, err)
	}
	beta4 := !v.LessThan(semver.New(1, 31, 0, "", ""))
	return Config{cluster: c, endpoint: endpoint, beta4: beta4, parts: parts, images: imageRefs(c)}, nil
}

// APIVersion returns the version of kubeadm's API.
func (k Config) APIVersion() string {
	if k.beta4 {
		return "kubeadm.k8s.io/v1beta4"
	}
	return "kubeadm.k8s.io/v1beta3"
}

// init renders the configuration of the first control plane. Its token lives for minutes; kubeadm's default is a day.
func (k Config) init(n Node) ([]byte, error) {
	d := kube.Document{
		"apiVersion": k.APIVersion(),
		"kind":       "InitConfiguration",
		"bootstrapTokens": []any{kube.Document{
			"token": n.token, "ttl": "5m0s",
			"description": "made by kkbundle for kubeadm init",
		}},
		"localAPIEndpoint": LocalEndpoint(n.IPs[0]),
		"nodeRegistration": k.Registration(n),
	}
	k.addTimeouts(d)
	n.addPatches(d)
	return kube.Documents(
		d,
		k.ClusterConfiguration(),
		k.KubeletConfiguration(),
		k.KubeProxyConfiguration(),
	)
}

// startLimit is the time in which etcd and the API server have to start on a new control plane. kubeadm's default is
// 4 minutes (ControlPlaneComponentHealthCheckTimeout in cmd/kubeadm/app/constants/constants.go). A slow disk, or a
// virtual machine without hardware support, needs more. It is below engine.StallLimit.
const startLimit = 10 * time.Minute

// addTimeouts adds the timeouts of v1beta4. v1beta3 keeps them in the cluster's own configuration, where kubeadm's
// default stays.
func (k Config) addTimeouts(d kube.Document) {
	if k.beta4 {
		d["timeouts"] = kube.Document{"controlPlaneComponentHealthCheck": startLimit.String()}
	}
}

// A Node is the configuration of one node. It trusts the cluster by the CA's hash; the cluster trusts it by a token.
type Node struct {
	name string
	// IPs are the node's addresses, one per IP family of the cluster.
	IPs          []netip.Addr
	token        string
	pin          string
	worker       bool
	controlPlane bool
	taints       []manifest.Taint
	// Patched is set if the node has patches.
	Patched bool
	// certificateKey decrypts the CA keys that a control plane downloads from the cluster.
	certificateKey string
}

// join renders the configuration of every other node.
func (k Config) join(n Node) ([]byte, error) {
	d := kube.Document{
		"apiVersion":       k.APIVersion(),
		"kind":             "JoinConfiguration",
		"nodeRegistration": k.Registration(n),
		"discovery": kube.Document{
			"bootstrapToken": kube.Document{
				"apiServerEndpoint": k.endpoint,
				"token":             n.token,
				"caCertHashes":      []any{n.pin},
			},
			"tlsBootstrapToken": n.token,
		},
	}
	if n.controlPlane {
		d["controlPlane"] = kube.Document{
			"certificateKey":   n.certificateKey,
			"localAPIEndpoint": LocalEndpoint(n.IPs[0]),
		}
	}
	k.addTimeouts(d)
	n.addPatches(d)
	return kube.Documents(d)
}

// uploadCerts renders the configuration of `kubeadm init phase upload-certs`, which stores the CA keys in the cluster,
// encrypted with a key that only the joining control plane gets.
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

// LocalEndpoint returns the address of a control plane's own API server.
func LocalEndpoint(ip netip.Addr) kube.Document {
	return kube.Document{"advertiseAddress": ip.String(), "bindPort": manifest.DefaultPort}
}

// Registration returns the node's name, taints and address, which kubeadm would guess from the default route.
func (k Config) Registration(n Node) kube.Document {
	d := kube.Document{
		"name":             n.name,
		"criSocket":        cri.RuntimeOf(k.cluster).Socket,
		"imagePullPolicy":  "IfNotPresent",
		"kubeletExtraArgs": k.args(map[string]string{"node-ip": JoinAddresses(n.IPs)}),
	}
	if taints := n.registeredTaints(); taints != nil {
		d["taints"] = taints
	}
	if checks := IgnoredChecks(k.cluster); len(checks) > 0 {
		d["ignorePreflightErrors"] = checks
	}
	return d
}

// registeredTaints returns the taints that a node registers with, nil for kubeadm's default: one for control planes,
// none for workers. A control plane that is also a worker gets none.
func (n Node) registeredTaints() []any {
	if len(n.taints) == 0 && (!n.controlPlane || !n.worker) {
		return nil
	}
	list := []any{}
	if n.controlPlane && !n.worker {
		list = append(list, kube.Document{"key": kube.ControlPlaneLabel, "effect": "NoSchedule"})
	}
	for _, t := range n.taints {
		if t.Key == kube.ControlPlaneLabel && t.Effect == "NoSchedule" && len(list) > 0 {
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

// addPatches adds the directory of patches.
func (n Node) addPatches(d kube.Document) {
	if n.Patched {
		d["patches"] = kube.Document{"directory": PatchesDir}
	}
}

// JoinAddresses joins addresses with commas.
func JoinAddresses(ips []netip.Addr) string {
	var list []string
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return strings.Join(list, ",")
}

// ClusterConfiguration renders the cluster's part, with the settings of the cluster file last.
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
			"dnsDomain":     c.DNS.Domain,
		},
	}
	for _, p := range k.parts {
		base = k.mergeCluster(base, p.Cluster)
	}
	for _, name := range []string{apiServer, controllerManager, scheduler} {
		if d := k.component(name); len(d) > 0 {
			base = k.mergeCluster(base, kube.Document{name: d})
		}
	}
	return k.withImages(k.mergeCluster(base, c.Kubernetes.Kubeadm))
}

// KubeletConfiguration renders the kubelets' part, with the settings of the cluster file last.
func (k Config) KubeletConfiguration() kube.Document {
	base := kube.Document{
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"kind":         "KubeletConfiguration",
		"cgroupDriver": "systemd",
		"maxPods":      k.cluster.Kubernetes.MaxPods,
	}
	for _, p := range k.parts {
		base = merge(base, p.Kubelet)
	}
	return merge(base, k.cluster.Kubernetes.Kubelet)
}

// KubeProxyConfiguration renders kube-proxy's part, with the settings of the cluster file last.
func (k Config) KubeProxyConfiguration() kube.Document {
	base := kube.Document{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
		"kind":       "KubeProxyConfiguration",
		"mode":       string(k.cluster.Kubernetes.ProxyMode),
	}
	for _, p := range k.parts {
		base = merge(base, p.KubeProxy)
	}
	return merge(base, k.cluster.Kubernetes.KubeProxy)
}

// newToken returns a new bootstrap token: six and sixteen characters of [a-z0-9].
func newToken() string { return task.RandomHex(3) + "." + task.RandomHex(8) }

// bootstrapToken renders the Secret that makes a token valid for joining until it expires.
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
