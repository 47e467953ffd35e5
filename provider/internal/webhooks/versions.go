package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// VersionPath is the path of the webhook Versions.
const VersionPath = "/validate-versions"

// Versions refuses a version of Kubernetes that the bundle of a KKCluster does not have, in Clusters with a topology,
// KubeadmControlPlanes and MachineDeployments. It lets everything pass that it knows nothing of: other providers'
// clusters, and bundles that have not been read.
type Versions struct{ Reader client.Reader }

// versioned is the part of these objects that counts here. Fields of one kind are empty in the others.
type versioned struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ClusterName string `json:"clusterName"`
		Version     string `json:"version"` // KubeadmControlPlane
		Topology    struct {
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

// Handle implements admission.Handler.
func (w *Versions) Handle(ctx context.Context, req admission.Request) admission.Response {
	kind := req.Kind.Kind
	var now, old versioned
	if err := json.Unmarshal(req.Object.Raw, &now); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	field, version := now.wanted(kind)
	if len(req.OldObject.Raw) > 0 {
		if err := json.Unmarshal(req.OldObject.Raw, &old); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if _, was := old.wanted(kind); was == version { // what is there already may stay
			return admission.Allowed("")
		}
	}
	b := w.bundle(ctx, types.NamespacedName{Namespace: req.Namespace, Name: now.cluster(kind)}, req.Object.Raw, kind)
	switch {
	case version == "" || b == nil || len(b.Status.Versions) == 0 || slices.Contains(b.Status.Versions, canonical(version)):
		return admission.Allowed("")
	}
	return admission.Denied(fmt.Sprintf("%s %s: %s: %s is not in KKBundle %s (%s %s), which has %s; name a version that it has, or a bundle with this one in the KKCluster",
		kind, now.Name, field, version, b.Name, b.Status.Name, b.Status.Version, strings.Join(b.Status.Versions, ", ")))
}

func canonical(version string) string { return "v" + strings.TrimPrefix(version, "v") }

// bundle returns the bundle of a cluster, or nil. Errors count as ignorance: the reconcilers check again.
func (w *Versions) bundle(ctx context.Context, cluster types.NamespacedName, raw []byte,
	kind string,
) *infrav1.KKBundle {
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
	var b infrav1.KKBundle
	if w.Reader.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: infra.Spec.BundleRef.Name},
		&b) != nil {
		return nil
	}
	return &b
}
