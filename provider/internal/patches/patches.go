// Package patches knows the files of a KubeadmConfig that kubeadm reads as patches of the kubelet's configuration and
// of static pods. An update in place writes them to its host: nothing but kubeadm reads them there.
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/control-plane-flags/#patches
package patches

import (
	"path"
	"reflect"
	"slices"
	"strings"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
)

// Directory returns the directory on the host, "" for none.
func Directory(spec *bootstrapv1.KubeadmConfigSpec) string {
	if dir := spec.JoinConfiguration.Patches.Directory; dir != "" {
		return dir
	}
	return spec.InitConfiguration.Patches.Directory
}

// Files returns the files in the directory that an update writes: kubeadm's patches. One that is appended to, or made
// from a template, stays as it was when the host was provisioned, and so do all if a command names their directory: it
// may have changed them on the host.
func Files(spec *bootstrapv1.KubeadmConfigSpec) []bootstrapv1.File {
	dir := path.Clean(Directory(spec))
	commands := slices.Concat(spec.BootCommands, spec.PreKubeadmCommands, spec.PostKubeadmCommands)
	namesIt := func(command string) bool { return strings.Contains(command, dir) }
	if !path.IsAbs(dir) || slices.ContainsFunc(commands, namesIt) {
		return nil
	}
	var files []bootstrapv1.File
	for _, f := range spec.Files {
		if path.Clean(f.Path) == f.Path && path.Dir(f.Path) == dir && isPatch(path.Base(f.Path)) && isWhole(f) {
			files = append(files, f)
		}
	}
	return files
}

// isPatch reports whether kubeadm takes a file of this name for a patch. Nothing would be told that another one is new.
// https://github.com/kubernetes/kubernetes/blob/v1.37.2/cmd/kubeadm/app/util/patches/patches.go
func isPatch(name string) bool {
	known := []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubeletconfiguration", "corednsdeployment",
	}
	return (path.Ext(name) == ".yaml" || path.Ext(name) == ".json") &&
		slices.ContainsFunc(known, func(target string) bool { return strings.HasPrefix(name, target) })
}

func isWhole(f bootstrapv1.File) bool {
	return (f.Append == nil || !*f.Append) && f.ContentFormat != bootstrapv1.FileContentFormatTemplate
}

// CanWrite reports whether the files of one spec become those of another one by writing the other's Files: they have
// the same directory, the other has all files, and what differs are patches.
func CanWrite(from, to *bootstrapv1.KubeadmConfigSpec) bool {
	if Directory(from) != Directory(to) {
		return false
	}
	left := map[string]bootstrapv1.File{}
	for _, f := range from.Files {
		left[f.Path] = f
	}
	if len(left) != len(from.Files) {
		return false // a file twice
	}
	written := map[string]bool{}
	for _, f := range Files(to) {
		written[f.Path] = true
	}
	for _, f := range to.Files {
		was, ok := left[f.Path]
		delete(left, f.Path)
		if ok && reflect.DeepEqual(was, f) {
			continue
		}
		if !written[f.Path] || ok && !isWhole(was) {
			return false
		}
	}
	return len(left) == 0
}
