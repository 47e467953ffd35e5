// Package inplace is the Runtime Extension by which Cluster API has hosts updated in place: it says which changes a
// host can be brought to, asks for them, and tells how far they are. The work is that of the controllers.
package inplace

import (
	"encoding/json"
	"path"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/patches"
)

// isOurs reports whether a reference is to a machine, or a template of one, of this provider.
func isOurs(ref clusterv1.ContractVersionedObjectReference, kind string) bool {
	return ref.APIGroup == infrav1.GroupVersion.Group && ref.Kind == kind
}

// canBring reports whether a host can be brought from one version to another: to the same one, a later patch, or the
// next minor release.
func canBring(from, to string) bool {
	if !semver.IsValid(from) || !semver.IsValid(to) || semver.Compare(from, to) > 0 ||
		semver.Major(from) != semver.Major(to) {
		return false
	}
	return minor(to)-minor(from) <= 1
}

// minor returns the number of a version's minor release.
func minor(version string) int {
	_, text, _ := strings.Cut(semver.MajorMinor(version), ".")
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0 // the version is valid
	}
	return n
}

// carried are the fields of a KubeadmConfig that an update of a control plane brings about: kubeadm upgrade node reads
// the images of etcd from the cluster, where Cluster API's control plane provider has written them; that provider
// replaces CoreDNS itself.
func carried() [][]string {
	var all [][]string
	for _, of := range [][]string{{"etcd", "local"}, {"dns"}} {
		for _, name := range []string{"imageRepository", "imageTag"} {
			all = append(all, append(append([]string{"spec", "clusterConfiguration"}, of...), name))
		}
	}
	return all
}

// canUpdate returns the patches of a Machine's version and its KubeadmConfig. Other changes are in none of them, and so
// Cluster API replaces the machine as if there were no extension.
func canUpdate(from, to runtimehooksv1.CanUpdateMachineRequestObjects) (
	machine, config runtimehooksv1.Patch, err error,
) {
	if !isOurs(to.Machine.Spec.InfrastructureRef, "KKMachine") || !canBring(from.Machine.Spec.Version, to.Machine.Spec.Version) {
		return machine, config, nil
	}
	if machine, err = merge(nested(to.Machine.Spec.Version, "spec", "version")); err != nil {
		return machine, config, err
	}
	was, err := object(from.BootstrapConfig)
	if err != nil {
		return machine, config, err
	}
	is, err := object(to.BootstrapConfig)
	if err != nil {
		return machine, config, err
	}
	files, ok, err := patchFiles(from.BootstrapConfig, to.BootstrapConfig)
	if err != nil || !ok {
		return runtimehooksv1.Patch{}, config, err
	}
	changes := map[string]any{}
	if files != nil {
		changes["spec"] = map[string]any{"files": files}
	}
	for _, field := range carried() {
		before, _, _ := unstructured.NestedFieldNoCopy(was, field...)
		after, _, _ := unstructured.NestedFieldNoCopy(is, field...)
		if reflect.DeepEqual(before, after) {
			continue
		}
		if err := unstructured.SetNestedField(changes, after, field...); err != nil {
			return machine, config, err
		}
	}
	if len(changes) > 0 {
		config, err = merge(changes)
	}
	return machine, config, err
}

// canUpdateSet is canUpdate for the machines of a MachineSet. They are workers: only their version and kubeadm's
// patches can change.
func canUpdateSet(from, to runtimehooksv1.CanUpdateMachineSetRequestObjects) (
	set, template runtimehooksv1.Patch, err error,
) {
	was, is := from.MachineSet.Spec.Template.Spec, to.MachineSet.Spec.Template.Spec
	if !isOurs(is.InfrastructureRef, "KKMachineTemplate") || !canBring(was.Version, is.Version) {
		return set, template, nil
	}
	before, err := inTemplate(from.BootstrapConfigTemplate)
	if err != nil {
		return set, template, err
	}
	after, err := inTemplate(to.BootstrapConfigTemplate)
	if err != nil {
		return set, template, err
	}
	files, ok, err := patchFiles(before, after)
	if err != nil || !ok {
		return set, template, err
	}
	if files != nil {
		if template, err = merge(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"files": files}}}}); err != nil {
			return set, template, err
		}
	}
	set, err = merge(nested(is.Version, "spec", "template", "spec", "version"))
	return set, template, err
}

// inTemplate returns the KubeadmConfig in a KubeadmConfigTemplate.
func inTemplate(raw runtime.RawExtension) (config runtime.RawExtension, err error) {
	if ours, err := isKubeadm(raw); err != nil || !ours {
		return config, err
	}
	var t struct {
		Spec struct {
			Template json.RawMessage `json:"template"`
		} `json:"spec"`
	}
	err = json.Unmarshal(raw.Raw, &t)
	return runtime.RawExtension{Raw: t.Spec.Template}, err
}

// patchFiles returns all files of a KubeadmConfig if an update can bring a host to them, nil if they stay the same or
// an update cannot. ok is false if the KubeadmConfig names a directory of patches that kubeadm would not find.
func patchFiles(from, to runtime.RawExtension) (files []bootstrapv1.File, ok bool, err error) {
	was, err := specOf(from)
	if err != nil {
		return nil, false, err
	}
	is, err := specOf(to)
	if err != nil {
		return nil, false, err
	}
	if dir := patches.Directory(&is); dir != "" && !path.IsAbs(dir) {
		return nil, false, nil
	}
	if reflect.DeepEqual(was.Files, is.Files) || !patches.CanWrite(&was, &is) {
		return nil, true, nil
	}
	return is.Files, true, nil
}

// isKubeadm reports whether a request has a KubeadmConfig, or a template of one. Other kinds may have fields of the
// same names, which cannot be read as its fields.
func isKubeadm(raw runtime.RawExtension) (bool, error) {
	if len(raw.Raw) == 0 {
		return false, nil
	}
	var t struct {
		Kind string `json:"kind"`
	}
	err := json.Unmarshal(raw.Raw, &t)
	return t.Kind == "" || t.Kind == "KubeadmConfig" || t.Kind == "KubeadmConfigTemplate", err
}

// specOf returns the spec of a KubeadmConfig in a request; an empty one if there is none.
func specOf(raw runtime.RawExtension) (bootstrapv1.KubeadmConfigSpec, error) {
	var config bootstrapv1.KubeadmConfig
	if ours, err := isKubeadm(raw); err != nil || !ours {
		return config.Spec, err
	}
	err := json.Unmarshal(raw.Raw, &config)
	return config.Spec, err
}

func nested(value string, fields ...string) map[string]any {
	o := map[string]any{}
	_ = unstructured.SetNestedField(o, value, fields...) // of an empty object
	return o
}

func merge(change map[string]any) (runtimehooksv1.Patch, error) {
	data, err := json.Marshal(change)
	return runtimehooksv1.Patch{PatchType: runtimehooksv1.JSONMergePatchType, Patch: data}, err
}

// object returns the fields of an object of a request; none if it is not there.
func object(raw runtime.RawExtension) (o map[string]any, err error) {
	if len(raw.Raw) == 0 {
		return map[string]any{}, nil
	}
	err = json.Unmarshal(raw.Raw, &o)
	return o, err
}
