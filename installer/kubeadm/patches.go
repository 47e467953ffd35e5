package installer

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// patchesDir is where kubeadm reads patches from, when it makes a node and when it upgrades one.
	patchesDir = configDir + "/patches"
	// hostPatch has what the inventory says of one host's kubelet. kubeadm applies patches in the order of their names, so
	// that it wins over one without a suffix, and one with a larger suffix wins over it.
	hostPatch = "kubeletconfiguration0kkbundle+merge.yaml"
	// PatchesTask is the name of the task that puts kubernetes.patches on hosts.
	PatchesTask = "kubeadm-patches"
)

// patchesTask puts kubeadm's patches on the nodes. On a node that is there already, the kubelet's are applied as kubeadm
// documents it: https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-reconfigure/
func patchesTask() Task {
	return settle(Task{Name: PatchesTask, Apart: true, Roles: []manifest.Role{manifest.RoleCluster}},
		func(_ context.Context, t *Target) (setting, error) {
			files, err := t.patches()
			if err != nil {
				return setting{}, err
			}
			return setting{
				files: files,
				apply: func(ctx context.Context, t *Target) error { return t.applyPatches(ctx, files) },
				holds: func(ctx context.Context, t *Target) (bool, error) {
					others, err := t.otherPatches(ctx, files)
					return len(others) == 0, err
				},
			}, nil
		})
}

// patches are the patches for a host's node: those of the cluster file, and one with what is different on the host.
func (t *Target) patches() ([]textFile, error) {
	var files []textFile
	for _, name := range t.run.cluster.Kubernetes.Patches {
		data, err := t.run.Values(name)
		if err != nil {
			return nil, fmt.Errorf("kubernetes.patches: %w", err)
		}
		files = append(files, textFile{path.Join(patchesDir, path.Base(name)), 0o600, data})
	}
	own, err := t.hostKubelet()
	if err != nil || len(own) == 0 {
		return files, err
	}
	data, err := yaml.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("render kubelet configuration of %s: %w", t.Name, err)
	}
	return append(files, textFile{path.Join(patchesDir, hostPatch), 0o600, data}), nil
}

// hostKubelet returns what is different in the kubelet's configuration on this host, as a merge patch.
func (t *Target) hostKubelet() (document, error) {
	own, err := t.run.on(t.Host)
	if err != nil {
		return nil, err
	}
	parts := t.run.parts()
	all := kubeadmConfig{cluster: t.run.cluster, parts: parts}
	here := kubeadmConfig{cluster: own, parts: parts}
	return differences(all.kubeletConfiguration(), here.kubeletConfiguration()), nil
}

// differences returns the entries of to that are not in from, as a merge patch; nothing is ever missing in to.
func differences(from, to document) document {
	patch := document{}
	for key, want := range to {
		below, isMap := want.(map[string]any)
		was, wasMap := from[key].(map[string]any)
		switch {
		case isMap && wasMap:
			if deeper := differences(was, below); len(deeper) > 0 {
				patch[key] = deeper
			}
		case !reflect.DeepEqual(from[key], want):
			patch[key] = want
		}
	}
	return patch
}

// otherPatches lists files in the directory of patches that do not belong there any more; kubeadm would apply them.
func (t *Target) otherPatches(ctx context.Context, files []textFile) ([]string, error) {
	there, err := t.test(ctx, "test", "-d", patchesDir)
	if err != nil || !there {
		return nil, err
	}
	out, err := t.output(ctx, "find", patchesDir, "-mindepth", "1", "-print0")
	var others []string
	for name := range strings.SplitSeq(string(bytes.TrimSuffix(out, []byte{0})), "\x00") {
		if name != "" && !slices.ContainsFunc(files, func(f textFile) bool { return f.path == name }) {
			others = append(others, name)
		}
	}
	return others, err
}

// applyPatches removes what is not wanted any more, and configures the kubelet of a node that is there anew.
func (t *Target) applyPatches(ctx context.Context, files []textFile) error {
	others, err := t.otherPatches(ctx, files)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		if err := t.command(ctx, append([]string{"rm", "-rf", "--"}, others...)...); err != nil {
			return err
		}
	}
	if member, err := t.isMember(ctx); err != nil || !member || len(files)+len(others) == 0 {
		return err
	}
	args := []string{"kubeadm", "upgrade", "node", "phase", "kubelet-config"}
	if len(files) > 0 {
		args = append(args, "--patches="+patchesDir)
	}
	if err := t.command(ctx, args...); err != nil {
		return err
	}
	return t.systemctl(ctx, "restart", "kubelet.service")
}
