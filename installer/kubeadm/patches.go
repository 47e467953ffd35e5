package kubeadm

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// PatchesDir is the directory of kubeadm's patches, for init, join and upgrade.
	PatchesDir = task.ConfigDir + "/patches"
	// HostPatch has the kubelet settings of one host. kubeadm applies patches in the order of their names: it overrides
	// those without a suffix, and those with a larger suffix override it.
	HostPatch = "kubeletconfiguration0kkbundle+merge.yaml"
	// PatchesTaskName is the name of the task that writes kubernetes.patches to hosts.
	PatchesTaskName = "kubeadm-patches"
)

// PatchesTask writes kubeadm's patches to hosts. An existing node applies the kubelet's patches as documented in
// https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-reconfigure/
func PatchesTask() task.Task {
	return task.Settle(task.Task{
		Name: PatchesTaskName, Independent: true,
		Roles: []manifest.Role{manifest.RoleCluster},
	},
		func(ctx context.Context, t *task.Host) (task.Setting, error) {
			files, err := patches(ctx, t)
			if err != nil {
				return task.Setting{}, err
			}
			return task.Setting{
				Files: files,
				Apply: func(ctx context.Context, t *task.Host) error { return applyPatches(ctx, t, files) },
				Holds: func(ctx context.Context, t *task.Host) (bool, error) {
					others, err := stalePatches(ctx, t, files)
					return len(others) == 0, err
				},
			}, nil
		})
}

// patches returns the patches for a host's node: kkbundle's reservations, those of the cluster file and the host's own.
func patches(ctx context.Context, t *task.Host) ([]task.File, error) {
	files, err := reservations(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, name := range t.Site.Cluster.Kubernetes.Patches {
		data, err := t.Site.Values(name)
		if err != nil {
			return nil, fmt.Errorf("kubernetes.patches: %w", err)
		}
		files = append(files, task.File{Path: path.Join(PatchesDir, path.Base(name)), Mode: 0o600, Data: data})
	}
	own, err := hostKubelet(t)
	if err != nil || len(own) == 0 {
		return files, err
	}
	return appendPatch(files, HostPatch, own)
}

// hostKubelet returns the host's own kubelet settings as a merge patch.
func hostKubelet(t *task.Host) (kube.Document, error) {
	own, err := t.Site.ClusterOn(t.Host)
	if err != nil {
		return nil, err
	}
	parts := Parts(t.Site, false) // no security file is the kubelet's
	all := Config{cluster: t.Site.Cluster, parts: parts}
	here := Config{cluster: own, parts: parts}
	return differences(all.KubeletConfiguration(), here.KubeletConfiguration()), nil
}

// differences returns the entries of to that differ from those of from, as a merge patch. to has every key of from.
func differences(from, to kube.Document) kube.Document {
	patch := kube.Document{}
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

// stalePatches lists other files in the directory of patches; kubeadm would apply them.
func stalePatches(ctx context.Context, t *task.Host, files []task.File) ([]string, error) {
	there, err := t.Test(ctx, "test", "-d", PatchesDir)
	if err != nil || !there {
		return nil, err
	}
	out, err := t.Output(ctx, "find", PatchesDir, "-mindepth", "1", "-print0")
	var others []string
	for name := range strings.SplitSeq(string(bytes.TrimSuffix(out, []byte{0})), "\x00") {
		if name != "" && !slices.ContainsFunc(files, func(f task.File) bool { return f.Path == name }) {
			others = append(others, name)
		}
	}
	return others, err
}

// applyPatches removes stale patches and reconfigures the kubelet of an existing node.
func applyPatches(ctx context.Context, t *task.Host, files []task.File) error {
	others, err := stalePatches(ctx, t, files)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		if err := t.Run(ctx, append([]string{"rm", "-rf", "--"}, others...)...); err != nil {
			return err
		}
	}
	if member, err := member.IsMember(ctx, t); err != nil || !member || len(files)+len(others) == 0 {
		return err
	}
	args := []string{"kubeadm", "upgrade", "node", "phase", "kubelet-config"}
	if len(files) > 0 {
		args = append(args, "--patches="+PatchesDir)
	}
	if err := t.Run(ctx, args...); err != nil {
		return err
	}
	return t.Systemctl(ctx, "restart", KubeletUnit)
}
