package charts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// A FailedError explains why a release failed, and names the rollback.
type FailedError struct {
	// Release is namespace and name of the release. Chart is name and version of the chart that failed.
	Release, Chart string
	Err            error
	// Undone is the resulting state of the release.
	Undone string
	// Pods describes the release's pods that are not ready, with the latest from their containers, events and logs. The
	// text comes from the programs in the pods.
	Pods []string
}

// Error returns the reason, the pods, and the resulting state of the release.
func (e *FailedError) Error() string {
	text := fmt.Sprintf("install chart %s as %s: %v", e.Chart, e.Release, e.Err)
	for _, p := range e.Pods {
		text += "\n" + p
	}
	if e.Undone != "" {
		text += "\n" + e.Undone
	}
	return text
}

// Unwrap returns the reason.
func (e *FailedError) Unwrap() error { return e.Err }

// waited names the time in the reason of a release that was not ready in time: Helm's own text has none.
func waited(reason error, limit time.Duration) error {
	if errors.Is(reason, context.DeadlineExceeded) {
		return &lateError{limit, reason}
	}
	return reason
}

// A lateError is the end of a wait.
type lateError struct {
	after time.Duration
	err   error
}

func (e *lateError) Error() string { return "not ready after " + e.after.String() }
func (e *lateError) Unwrap() error { return e.err }

// Bounds on the report about a failed release.
const (
	diagnosis   = 30 * time.Second
	mostPods    = 3
	mostEvents  = 5
	mostLines   = 10
	mostOfLine  = 300 // characters
	mostOfALog  = 16 << 10
	maxWorkload = 50
)

// failed examines the objects of the failed revision, rolls back if wanted, and reports all of it. An interrupted run
// leaves everything in place: the next run resumes there.
func (s state) failed(ctx context.Context, c *Chart, o InstallOptions, rel *release.Release, reason error) error {
	e := &FailedError{Release: o.Namespace + "/" + o.Release, Chart: c.Name() + " " + c.Version(), Err: reason}
	if ctx.Err() != nil {
		e.Undone = "the run was interrupted; the next run resumes here"
		return e
	}
	e.Err = waited(reason, timeout(o))
	e.Pods = s.describe(ctx, o, rel)
	if !o.Rollback {
		e.Undone = "its objects were kept for examination"
		return e
	}
	done, err := s.undo(o)
	e.Undone = done
	if err != nil {
		e.Undone = "and the rollback failed: " + err.Error()
	}
	return e
}

// undo returns to the previous revision, or to no release.
func (s state) undo(o InstallOptions) (string, error) {
	last, err := s.cfg.Releases.Last(o.Release)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return "nothing was installed", nil
	}
	if err != nil {
		return "", err
	}
	before, err := s.cfg.Releases.Deployed(o.Release)
	switch {
	case errors.Is(err, driver.ErrNoDeployedReleases):
		uninstall := action.NewUninstall(s.cfg)
		uninstall.Timeout = timeout(o)
		if _, err := uninstall.Run(o.Release); err != nil {
			return "", err
		}
		return "there was no release before: its objects were removed again, except volumes and custom resource definitions", nil
	case err != nil:
		return "", err
	case before.Version == last.Version:
		return fmt.Sprintf("revision %d (%s) stays in force", before.Version, chartOf(before)), nil
	}
	rollback := action.NewRollback(s.cfg)
	rollback.Version = before.Version
	rollback.Wait, rollback.Timeout = o.Wait > 0, timeout(o)
	rollback.MaxHistory, rollback.CleanupOnFail = keepRevisions, true
	if err := rollback.Run(o.Release); err != nil {
		return "", err
	}
	return fmt.Sprintf("rolled back to revision %d (%s), which is ready again", before.Version, chartOf(before)), nil
}

func chartOf(r *release.Release) string {
	if r.Chart == nil || r.Chart.Metadata == nil {
		return "an unknown chart"
	}
	return r.Chart.Metadata.Name + " " + r.Chart.Metadata.Version
}

// describe describes the pods of a release that are not ready. Errors are ignored: the failure itself must still be
// reported.
func (s state) describe(ctx context.Context, o InstallOptions, rel *release.Release) []string {
	if rel == nil {
		return nil
	}
	manifests := []string{rel.Manifest}
	for _, hook := range rel.Hooks {
		manifests = append(manifests, hook.Manifest)
	}
	client, err := s.cfg.KubernetesClientSet()
	if err != nil {
		return nil
	}
	return notReady(ctx, client, workloads(strings.Join(manifests, "\n---\n"), o.Namespace))
}

// NotReady describes the pods of the workloads in YAML that are not ready, like FailedError. It uses Kubeconfig, Dial,
// Namespace and Logger of the options, and ignores errors.
func NotReady(ctx context.Context, o InstallOptions, manifests string) []string {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o, end := ofOneCall(o)
	defer end()
	cfg, err := configuration(ctx, o)
	if err != nil {
		return nil
	}
	client, err := cfg.KubernetesClientSet()
	if err != nil {
		return nil
	}
	return notReady(ctx, client, workloads(manifests, o.Namespace))
}

func notReady(ctx context.Context, client kubernetes.Interface, from []workload) []string {
	ctx, cancel := context.WithTimeout(ctx, diagnosis)
	defer cancel()
	var list []string
	seen := map[string]bool{}
	for _, w := range from {
		pods, err := client.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{
			LabelSelector: w.selector,
			Limit:         maxWorkload,
		})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if id := p.Namespace + "/" + p.Name; !seen[id] && !settled(p) && len(list) < mostPods {
				seen[id] = true
				list = append(list, describePod(p, eventsOf(ctx, client, p), logOf(ctx, client, p)))
			}
		}
	}
	return list
}

// A workload is an object that creates pods.
type workload struct{ kind, namespace, name, selector string }

// workloads returns the workloads in rendered YAML with the selectors of their pods.
func workloads(manifest, namespace string) []workload {
	var list []workload
	docs := releaseutil.SplitManifests(manifest)
	names := make([]string, 0, len(docs))
	for name := range docs {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return len(a) - len(b) + strings.Compare(a, b) })
	for _, name := range names {
		var object struct {
			Kind     string            `json:"kind"`
			Metadata metav1.ObjectMeta `json:"metadata"`
			Spec     struct {
				Selector struct {
					MatchLabels map[string]string `json:"matchLabels"`
				} `json:"selector"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(docs[name]), &object); err != nil {
			continue // Helm has reported it
		}
		match := object.Spec.Selector.MatchLabels
		switch object.Kind {
		case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet":
		case "Job":
			match = map[string]string{"job-name": object.Metadata.Name}
		default:
			continue
		}
		w := workload{
			object.Kind, object.Metadata.Namespace, object.Metadata.Name,
			labels.SelectorFromSet(match).String(),
		}
		w.namespace = cmp.Or(w.namespace, namespace)
		if len(match) > 0 && len(list) < maxWorkload {
			list = append(list, w)
		}
	}
	return list
}

// settled reports whether a pod needs no attention: it is ready, has completed, or is terminating.
func settled(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func eventsOf(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) []corev1.Event {
	found, err := client.CoreV1().Events(p.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name, Limit: maxWorkload})
	if err != nil {
		return nil
	}
	return found.Items
}

// logOf returns the end of the log of the pod's first unready container. If the container is between two restarts, it
// is the log before the restart.
func logOf(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.Ready || c.State.Terminated != nil && c.State.Terminated.ExitCode == 0 {
			continue
		}
		lines, most := int64(mostLines), int64(mostOfALog)
		log, err := client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
			Container: c.Name, Previous: c.State.Waiting != nil && c.RestartCount > 0, TailLines: &lines,
			LimitBytes: &most,
		}).Stream(ctx)
		if err != nil {
			return ""
		}
		data, err := io.ReadAll(io.LimitReader(log, mostOfALog))
		_ = log.Close() // only read
		if err != nil {
			return ""
		}
		return string(data)
	}
	return ""
}

// describePod returns a paragraph about a pod that is not ready.
func describePod(p *corev1.Pod, events []corev1.Event, log string) string {
	lines := []string{fmt.Sprintf("pod %s/%s is not ready: %s", p.Namespace, p.Name, whyNot(p))}
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	events = slices.DeleteFunc(events, func(e corev1.Event) bool { return e.Type == corev1.EventTypeNormal })
	for _, e := range events[max(0, len(events)-mostEvents):] {
		lines = append(lines, "  event: "+oneLine(e.Reason+": "+e.Message))
	}
	said := strings.FieldsFunc(log, func(r rune) bool { return r == '\n' })
	for _, line := range said[max(0, len(said)-mostLines):] {
		lines = append(lines, "  log: "+oneLine(line))
	}
	return strings.Join(lines, "\n")
}

// whyNot returns the cluster's own reason that a pod is not ready.
func whyNot(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "PodInitializing":
			return oneLine(c.Name + ": " + c.State.Waiting.Reason + ": " + c.State.Waiting.Message)
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("%s ended with exit code %d: %s", c.Name, c.State.Terminated.ExitCode,
				oneLine(c.State.Terminated.Reason))
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			return oneLine(c.Message)
		}
	}
	return string(p.Status.Phase)
}

// oneLine makes a pod's text fit a line of a report.
func oneLine(s string) string {
	return plain.Clip(plain.Line(strings.TrimRight(strings.TrimSpace(s), ": ")), mostOfLine)
}
