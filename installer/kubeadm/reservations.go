package kubeadm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// ownSuffix is the suffix of kkbundle's defaults among patches. kubeadm applies patches in the order of their names,
// and "%" sorts before "+" and "0": patches of the operator and of the host override these.
const ownSuffix = "%kkbundle"

// ReservationPatch has the resources that a host's kubelet reserves.
const ReservationPatch = "kubeletconfiguration" + ownSuffix + "+merge.yaml"

// IsOfOneHost reports whether the file of this name in PatchesDir fits the host alone that it is on.
func IsOfOneHost(name string) bool { return name == HostPatch || strings.Contains(name, ownSuffix+"+") }

// A machineSize is the size of a host.
type machineSize struct{ gib, processors int }

// sizeOf returns the host's size, and false if it is not known. Memory is rounded up to GiB: what firmware and kernel
// take of it changes with each kernel.
func sizeOf(ctx context.Context, t *task.Host) (machineSize, bool, error) {
	memory, err := t.Read(ctx, "/proc/meminfo")
	if err != nil {
		return machineSize{}, false, notExist(err)
	}
	processors, err := t.Read(ctx, "/sys/devices/system/cpu/online")
	if err != nil {
		return machineSize{}, false, notExist(err)
	}
	s := machineSize{processors: countList(strings.TrimSpace(string(processors)))}
	for line := range strings.Lines(string(memory)) {
		const kibPerGiB = 1 << 20
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			kib, _ := strconv.Atoi(f[1])
			s.gib = (kib + kibPerGiB - 1) / kibPerGiB
		}
	}
	return s, s.gib > 0 && s.processors > 0, nil
}

func notExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// countList counts the entries of a list of the kernel such as 0-3,8, 0 if it is none.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if isRange && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil || last < first {
			return 0
		}
		n += last - first + 1
	}
	return n
}

// A rate is a share of the part of a resource below a limit.
type rate struct {
	below int
	share float64
}

// reserved applies rates to an amount.
func reserved(amount int, rates []rate) float64 {
	sum, from := 0.0, 0
	for _, r := range rates {
		sum += float64(max(min(amount, r.below)-from, 0)) * r.share
		from = r.below
	}
	return sum
}

// kubeReserved returns what kubelet, container runtime and operating system need beside the pods: Google's rates, of
// which AKS' and EKS' differ little. It is a quarter of the memory at most.
// https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes#memory_and_cpu_reservations
func (s machineSize) kubeReserved() kube.Document {
	memory := reserved(s.gib, []rate{{4, 0.25}, {8, 0.20}, {16, 0.10}, {128, 0.06}, {math.MaxInt, 0.02}})
	processors := reserved(s.processors, []rate{{1, 0.06}, {2, 0.01}, {4, 0.005}, {math.MaxInt, 0.0025}})
	return kube.Document{"cpu": fmt.Sprintf("%.0fm", processors*1000), "memory": mebibytes(memory)}
}

func mebibytes(gib float64) string { return fmt.Sprintf("%.0fMi", math.Ceil(gib*1024)) }

// part returns a share of the memory between two bounds, in GiB.
func (s machineSize) part(share, least, most float64) string {
	return mebibytes(min(max(float64(s.gib)*share, least), most))
}

// reservations returns the patches that keep resources for a node's own programs; none for a node that joined
// without: at its restart, a kubelet ends pods that have no room any more.
func reservations(ctx context.Context, t *task.Host) ([]task.File, error) {
	marker := ReservationPatch
	if t.Is(manifest.RoleControlPlane) {
		marker = requestPatch(apiServerPod)
	}
	joined, err := member.IsMember(ctx, t)
	if err != nil {
		return nil, err
	}
	if joined {
		if had, err := t.Test(ctx, "test", "-e", path.Join(PatchesDir, marker)); err != nil || !had {
			return nil, err
		}
	}
	size, known, err := sizeOf(ctx, t)
	if err != nil || !known {
		return nil, err
	}
	var files []task.File
	if patch := size.kubeletPatch(t); len(patch) > 0 {
		if files, err = appendPatch(files, ReservationPatch, patch); err != nil {
			return nil, err
		}
		task.Because(ctx, "of %d processors and %d GiB the kubelet keeps from pods: %s", size.processors, size.gib,
			strings.Join(strings.Fields(string(files[0].Data)), " "))
	}
	for name, memory := range size.requests(t) {
		container := kube.Document{
			"name":      name,
			"resources": kube.Document{"requests": kube.Document{"memory": memory}},
		}
		if files, err = appendPatch(files, requestPatch(name),
			kube.Document{"spec": kube.Document{"containers": []any{container}}}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b task.File) int { return cmp.Compare(a.Path, b.Path) })
	return files, nil
}

// kubeletPatch returns the reservations of a host's kubelet as a merge patch, without those that the cluster file sets.
func (s machineSize) kubeletPatch(t *task.Host) kube.Document {
	part := task.KubeadmPart{Kubelet: kube.Document{"kubeReserved": s.kubeReserved()}}
	if t.Is(manifest.RoleEtcd) && t.Site.Cluster.Etcd.Type == manifest.EtcdExternal {
		part.Kubelet["systemReserved"] = kube.Document{"cpu": "100m", "memory": s.part(0.1, 0.1, 1)} // for etcd's unit
	}
	parts := Parts(t.Site, false) // no security file is the kubelet's
	without := Config{cluster: t.Site.Cluster, parts: parts}.KubeletConfiguration()
	return differences(without, Config{cluster: t.Site.Cluster, parts: append(parts, part)}.KubeletConfiguration())
}

// Static pods of kubeadm.
const (
	apiServerPod = "kube-apiserver"
	etcdPod      = "etcd"
)

func requestPatch(pod string) string { return pod + ownSuffix + "+strategic.yaml" }

// requests returns the memory that static pods on a host request. kubeadm's manifests request none for the API server
// and 100 MiB for etcd, so that the scheduler fills a control plane that is also a worker.
func (s machineSize) requests(t *task.Host) map[string]string {
	if !t.Is(manifest.RoleControlPlane) {
		return nil
	}
	m := map[string]string{apiServerPod: s.part(1.0/16, 0.25, 2)}
	if t.Site.Cluster.Etcd.Type == manifest.EtcdInternal {
		m[etcdPod] = s.part(1.0/32, 0.125, 1)
	}
	return m
}

func appendPatch(files []task.File, name string, patch kube.Document) ([]task.File, error) {
	data, err := yaml.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("render the patch %s: %w", name, err)
	}
	return append(files, task.File{Path: path.Join(PatchesDir, name), Mode: 0o600, Data: data}), nil
}
