package kubeadm

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// rootAuthority is the ConfigMap of each namespace from which pods learn the authorities of API servers.
	rootAuthority     = "kube-root-ca.crt"
	rootAuthorityKey  = "ca.crt"
	clusterInfo       = "cluster-info"
	clusterInfoKey    = "kubeconfig"
	aggregated        = "extension-apiserver-authentication"
	publishWait       = 3 * time.Minute
	rolloutWait       = 15 * time.Minute
	templateHashLabel = "pod-template-hash"
	listedPods        = 5
)

// leadTask is a task of the lead that the following tasks of all hosts need.
func leadTask(name string, done func(ctx context.Context, t *task.Host) (bool, error),
	do func(ctx context.Context, t *task.Host) error,
) task.Task {
	return task.Task{
		Name: name, Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, AllOrNone: true,
		Done: done, Do: do,
	}
}

// ClusterAuthorityTasks make everything in the API trust both generations, or one if to is not "".
func ClusterAuthorityTasks(r *Rotation, to Generation) []task.Task {
	if !r.Has(KubernetesAuthority) && to == "" {
		return nil
	}
	n := nodeStage{r, stageTrust, to}
	if to != "" {
		n.stage = stageFinish
	}
	var tasks []task.Task
	if r.Has(KubernetesAuthority) {
		tasks = append(tasks, leadTask("authority-cluster-info", n.infoDone, n.patchInfo),
			leadTask("authority-published", n.published, n.publish))
	}
	if to != "" {
		tasks = append(tasks, leadTask("authority-aggregated", n.aggregatedDone, n.patchAggregated))
	}
	return tasks
}

// info returns the kubeconfig of the ConfigMap from which joining nodes learn the authority, as it is and as it is to
// be.
func (n nodeStage) info(ctx context.Context, t *task.Host) (have, want string, err error) {
	config, err := t.Kube().ConfigMap(ctx, kube.PublicNamespace, clusterInfo, "--ignore-not-found")
	have = config.Data[clusterInfoKey]
	if err != nil || have == "" {
		return "", "", err
	}
	data, err := n.kubeconfig([]byte(have))
	return have, string(data), err
}

func (n nodeStage) infoDone(ctx context.Context, t *task.Host) (bool, error) {
	if !n.Begun() {
		task.Because(ctx, "joining nodes learn both authorities")
		return false, nil
	}
	have, want, err := n.info(ctx, t)
	return have == want, err
}

func (n nodeStage) patchInfo(ctx context.Context, t *task.Host) error {
	_, want, err := n.info(ctx, t)
	if err != nil {
		return err
	}
	return t.Kube().PatchConfigMap(ctx, kube.PublicNamespace, clusterInfo, clusterInfoKey, want)
}

// unpublished returns the namespaces whose pods do not learn the authorities of the stage yet. The controller manager
// publishes them.
func (n nodeStage) unpublished(ctx context.Context, t *task.Host) ([]string, error) {
	var list corev1.ConfigMapList
	if err := t.Kube().Get(ctx, &list, "configmaps", "--all-namespaces", "--field-selector=metadata.name="+
		rootAuthority); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("the cluster has no ConfigMap %s", rootAuthority)
	}
	var without []string
	for _, m := range list.Items {
		data := []byte(m.Data[rootAuthorityKey])
		old, fresh := n.contains(data, KubernetesAuthority, OldGeneration),
			n.contains(data, KubernetesAuthority, NewGeneration)
		want := map[Generation]bool{OldGeneration: n.to != NewGeneration, NewGeneration: n.to != OldGeneration}
		if old != want[OldGeneration] || fresh != want[NewGeneration] {
			without = append(without, m.Namespace)
		}
	}
	return without, nil
}

func (n nodeStage) published(ctx context.Context, t *task.Host) (bool, error) {
	if !n.Begun() {
		task.Because(ctx, "the controller manager publishes both authorities to pods")
		return false, nil
	}
	without, err := n.unpublished(ctx, t)
	if err != nil || len(without) > 0 {
		task.Because(ctx, "the ConfigMap %s is of another stage in namespace %s", rootAuthority,
			strings.Join(without, ", "))
		return false, err
	}
	if n.stage == stageFinish {
		return true, nil
	}
	there, err := t.Test(ctx, "test", "-e", marks.RotationBefore)
	return there, err
}

func (n nodeStage) publish(ctx context.Context, t *task.Host) error {
	if err := task.Eventually(ctx, publishWait, func(ctx context.Context) error {
		without, err := n.unpublished(ctx, t)
		if err == nil && len(without) > 0 {
			err = fmt.Errorf("the controller manager has not published the authorities to namespace %s",
				strings.Join(without, ", "))
		}
		return err
	}); err != nil || n.stage == stageFinish {
		return err
	}
	pods, err := t.Kube().Pods(ctx, "--all-namespaces")
	if err != nil {
		return err
	}
	var before strings.Builder
	for i := range pods {
		if readsAuthority(&pods[i]) {
			before.WriteString(string(pods[i].UID) + "\n")
		}
	}
	return t.Write(ctx, task.File{Path: marks.RotationBefore, Mode: 0o600, Data: []byte(before.String())})
}

// aggregatedKeys returns the keys of the ConfigMap from which aggregated API servers learn whom to trust. API servers
// add their authorities and never remove one.
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/controlplane/controller/clusterauthenticationtrust/cluster_authentication_trust_controller.go
func aggregatedKeys() map[string]Authority {
	return map[string]Authority{
		"client-ca-file":               KubernetesAuthority,
		"requestheader-client-ca-file": FrontProxyAuthority,
	}
}

// outdated returns the values of that ConfigMap that have the other generation, without it.
func (n nodeStage) outdated(ctx context.Context, t *task.Host) (map[string]string, error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, aggregated, "--ignore-not-found")
	if err != nil {
		return nil, err
	}
	changed := map[string]string{}
	for key, a := range aggregatedKeys() {
		data := []byte(config.Data[key])
		if !n.Has(a) || !n.contains(data, a, n.to.other()) {
			continue
		}
		var kept []byte
		for block := range blocks(data) {
			if one := pem.EncodeToMemory(block); !n.contains(one, a, n.to.other()) {
				kept = append(kept, one...)
			}
		}
		changed[key] = string(kept)
	}
	return changed, nil
}

func (n nodeStage) aggregatedDone(ctx context.Context, t *task.Host) (bool, error) {
	changed, err := n.outdated(ctx, t)
	return len(changed) == 0, err
}

func (n nodeStage) patchAggregated(ctx context.Context, t *task.Host) error {
	changed, err := n.outdated(ctx, t)
	for key, value := range changed {
		if err == nil {
			err = t.Kube().PatchConfigMap(ctx, kube.SystemNamespace, aggregated, key, value)
		}
	}
	return err
}

// A WorkloadChoice says what happens to the operator's pods that trust the old authority only.
type WorkloadChoice struct {
	// Restart restarts their Deployments, StatefulSets and DaemonSets.
	Restart bool
	// Leave goes on although some of them will lose the API server.
	Leave bool
}

// RestartPodsTask replaces the pods in namespaces that trust the old authority only: a pod's client reads the
// authorities at its start.
func RestartPodsTask(r *Rotation, name string, namespaces func(string) bool, choice WorkloadChoice) task.Task {
	p := outdatedPods{r, namespaces, choice}
	return leadTask(name, p.done, p.do)
}

// outdatedPods are the pods of some namespaces that started before the new authority was published.
type outdatedPods struct {
	*Rotation
	in     func(namespace string) bool
	choice WorkloadChoice
}

func (p outdatedPods) done(ctx context.Context, t *task.Host) (bool, error) {
	pods, err := p.list(ctx, t)
	if err != nil || len(pods) == 0 {
		return err == nil, err
	}
	task.Because(ctx, "%s", podText(pods))
	return p.choice.Leave && !p.choice.Restart, nil
}

func (p outdatedPods) do(ctx context.Context, t *task.Host) error {
	pods, err := p.list(ctx, t)
	if err != nil {
		return err
	}
	if !p.choice.Restart {
		return &RotationError{
			"the new authorities are trusted, but not by " + podText(pods),
			"restart these workloads, then run the same command again; or add --restart-workloads; or --leave-workloads if they never ask the API server",
		}
	}
	owners, rest := ownersOf(pods)
	for _, o := range owners {
		if _, err := t.Kubectl(ctx, "rollout", "restart", o.kind+"/"+o.name, "--namespace="+o.namespace); err != nil {
			return err
		}
	}
	if err := task.Eventually(ctx, rolloutWait, func(ctx context.Context) error {
		now, err := p.list(ctx, t)
		if err != nil {
			return err
		}
		if _, rest = ownersOf(now); len(now) > len(rest) {
			err = fmt.Errorf("not replaced yet: %s", podText(now))
		}
		return err
	}); err != nil {
		return err
	}
	if len(rest) > 0 && !p.choice.Leave {
		return &RotationError{
			"no Deployment, StatefulSet or DaemonSet replaces " + podText(rest),
			"delete or replace these pods, then run the same command again; or add --leave-workloads if they never ask the API server",
		}
	}
	return nil
}

// list returns the running pods that trust the old authority only.
func (p outdatedPods) list(ctx context.Context, t *task.Host) ([]corev1.Pod, error) {
	before, err := t.Read(ctx, marks.RotationBefore)
	unpublished := errors.Is(err, fs.ErrNotExist)
	if err != nil && !unpublished {
		return nil, err
	}
	known := strings.Fields(string(before))
	slices.Sort(known)
	pods, err := t.Kube().Pods(ctx, "--all-namespaces")
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		if !p.in(pod.Namespace) || !readsAuthority(&pod) {
			return true
		}
		_, outdated := slices.BinarySearch(known, string(pod.UID))
		return !outdated && !unpublished
	}), err
}

// readsAuthority reports whether a pod runs and has the authorities of API servers, which come with the token of its
// service account.
func readsAuthority(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ConfigMap != nil && s.ConfigMap.Name == rootAuthority
		})
	})
}

// podText names some pods.
func podText(pods []corev1.Pod) string {
	var names []string
	for _, pod := range pods[:min(len(pods), listedPods)] {
		names = append(names, path.Join(pod.Namespace, pod.Name))
	}
	text := "pod " + strings.Join(names, ", ")
	if more := len(pods) - listedPods; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// A podOwner is a workload that replaces its pods.
type podOwner struct{ kind, namespace, name string }

// ownersOf returns the workloads that replace the pods, and the pods that nothing replaces one by one.
func ownersOf(pods []corev1.Pod) (owners []podOwner, rest []corev1.Pod) {
	for i := range pods {
		o, ok := ownerOf(&pods[i])
		switch {
		case !ok:
			rest = append(rest, pods[i])
		case !slices.Contains(owners, o):
			owners = append(owners, o)
		}
	}
	return owners, rest
}

func ownerOf(pod *corev1.Pod) (podOwner, bool) {
	by := metav1.GetControllerOf(pod)
	if by == nil {
		return podOwner{}, false
	}
	switch by.Kind {
	case "DaemonSet", "StatefulSet":
		return podOwner{strings.ToLower(by.Kind), pod.Namespace, by.Name}, true
	case "ReplicaSet":
		name, ok := strings.CutSuffix(by.Name, "-"+pod.Labels[templateHashLabel])
		return podOwner{"deployment", pod.Namespace, name}, ok && pod.Labels[templateHashLabel] != ""
	}
	return podOwner{}, false
}
