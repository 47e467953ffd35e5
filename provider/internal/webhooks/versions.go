package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// VersionPath is the path of the webhook Versions.
const VersionPath = "/validate-versions"

// Versions refuses a version of Kubernetes that the bundle of a KKCluster does not have, in Clusters with a topology,
// KubeadmControlPlanes and MachineDeployments, and an upgrade of control planes that would take the endpoint away. It
// lets everything pass that it knows nothing of: other providers' clusters, and bundles that have not been read.
type Versions struct{ Reader client.Reader }

// versioned is the part of these objects that counts here. Fields of one kind are empty in the others.
type versioned struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ClusterName string `json:"clusterName"`
		// KubeadmControlPlane
		Version           string `json:"version"`
		KubeadmConfigSpec struct {
			ClusterConfiguration any `json:"clusterConfiguration"`
		} `json:"kubeadmConfigSpec"`
		Topology struct {
			Version string `json:"version"`
		} `json:"topology"` // Cluster
		Template struct {
			Spec struct {
				Version string `json:"version"`
			} `json:"spec"`
		} `json:"template"` // MachineDeployment
	} `json:"spec"`
}

func (v *versioned) wanted(kind string) (field, version string) {
	switch kind {
	case "Cluster":
		return "spec.topology.version", v.Spec.Topology.Version
	case "KubeadmControlPlane":
		return "spec.version", v.Spec.Version
	case "MachineDeployment":
		return "spec.template.spec.version", v.Spec.Template.Spec.Version
	}
	return "", ""
}

func (v *versioned) cluster(kind string) string {
	if kind == "Cluster" {
		return v.Name
	}
	if v.Spec.ClusterName != "" {
		return v.Spec.ClusterName
	}
	return v.Labels[clusterv1.ClusterNameLabel]
}

// replaces returns the field whose change replaces the machines of control planes by others, or "".
func (v *versioned) replaces(kind string, old *versioned) string {
	field, is := v.wanted(kind)
	_, was := old.wanted(kind)
	now, then := v.Spec.KubeadmConfigSpec, old.Spec.KubeadmConfigSpec
	switch {
	case kind == "MachineDeployment":
		return ""
	case is != was:
		return field
	case !reflect.DeepEqual(now.ClusterConfiguration, then.ClusterConfiguration):
		return "spec.kubeadmConfigSpec.clusterConfiguration"
	}
	return ""
}

// Handle implements admission.Handler.
func (w *Versions) Handle(ctx context.Context, req admission.Request) admission.Response {
	kind := req.Kind.Kind
	var now, old versioned
	if err := json.Unmarshal(req.Object.Raw, &now); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	isNew := len(req.OldObject.Raw) == 0
	if !isNew {
		if err := json.Unmarshal(req.OldObject.Raw, &old); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
	}
	cluster := types.NamespacedName{Namespace: req.Namespace, Name: now.cluster(kind)}
	infra := w.infrastructure(ctx, cluster, req.Object.Raw, kind)
	if infra == nil {
		return admission.Allowed("")
	}
	if field := now.replaces(kind, &old); !isNew && field != "" {
		h := endpointHost(ctx, w.Reader, infra)
		if h != nil && h.Spec.Consumer != nil && h.Spec.Consumer.Cluster == cluster.Name {
			return admission.Denied(fmt.Sprintf("%s %s: %s: the endpoint of KKCluster %s is the address of KKHost %s (%s), and the machine there would be replaced by one on another host: "+
				"nobody would reach the API server any more; clusters whose endpoint is a balancer's address, or one that moves (kube-vip), can be upgraded",
				kind, now.Name, field, infra.Name, h.Name, infra.Spec.ControlPlaneEndpoint.Host))
		}
	}
	field, version := now.wanted(kind)
	if _, was := old.wanted(kind); !isNew && was == version { // what is there already may stay
		return admission.Allowed("")
	}
	b := w.bundle(ctx, infra)
	if version == "" || b == nil || len(b.Status.Versions) == 0 || slices.Contains(b.Status.Versions, canonical(version)) {
		return admission.Allowed("")
	}
	return admission.Denied(fmt.Sprintf("%s %s: %s: %s is not in KKBundle %s (%s %s), which has %s; name a version that it has, or a bundle with this one in the KKCluster",
		kind, now.Name, field, version, b.Name, b.Status.Name, b.Status.Version, strings.Join(b.Status.Versions, ", ")))
}

func canonical(version string) string { return "v" + strings.TrimPrefix(version, "v") }

// infrastructure returns the KKCluster of a cluster, or nil. Errors count as ignorance: the reconcilers check again.
func (w *Versions) infrastructure(ctx context.Context, cluster types.NamespacedName, raw []byte,
	kind string,
) *infrav1.KKCluster {
	var c clusterv1.Cluster
	if kind == "Cluster" {
		if json.Unmarshal(raw, &c) != nil {
			return nil
		}
	} else if w.Reader.Get(ctx, cluster, &c) != nil {
		return nil
	}
	ref := c.Spec.InfrastructureRef
	if ref.APIGroup != infrav1.GroupVersion.Group || ref.Kind != "KKCluster" {
		return nil
	}
	var infra infrav1.KKCluster
	if w.Reader.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: ref.Name}, &infra) != nil {
		return nil
	}
	return &infra
}

// bundle returns the bundle of a cluster, or nil.
func (w *Versions) bundle(ctx context.Context, infra *infrav1.KKCluster) *infrav1.KKBundle {
	var b infrav1.KKBundle
	if w.Reader.Get(ctx, types.NamespacedName{Namespace: infra.Namespace, Name: infra.Spec.BundleRef.Name}, &b) != nil {
		return nil
	}
	return &b
}

// endpointHost returns the host whose own address is the endpoint of a cluster, or nil.
func endpointHost(ctx context.Context, c client.Reader, infra *infrav1.KKCluster) *infrav1.KKHost {
	var all infrav1.KKHostList
	if c.List(ctx, &all, client.InNamespace(infra.Namespace)) != nil {
		return nil
	}
	endpoint := infra.Spec.ControlPlaneEndpoint.Host
	for _, h := range all.Items {
		nodes := hosts.InternalAddresses(h.Spec.Address, h.Spec.InternalIPv4, h.Spec.InternalIPv6)
		if slices.ContainsFunc(append(nodes, h.Spec.Address), func(a string) bool { return same(a, endpoint) }) {
			return &h
		}
	}
	return nil
}
