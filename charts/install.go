package charts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// MarkLabel is the label of a release record that says which chart and values made it, and that this package did. Helm keeps it
// beside its own.
const MarkLabel = "kkbundle.io/content"

// keepRevisions is how many revisions of a release stay in the cluster; as many as the helm command keeps.
const keepRevisions = 10

// InstallOptions says where a chart goes and with what.
type InstallOptions struct {
	// Kubeconfig is the content of a kubeconfig file; nothing is read from the environment or the home directory.
	Kubeconfig []byte
	// Dial, if set, makes every connection to the API server.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Namespace is made if it is missing. NamespaceLabels are set on it in either case; others are left alone.
	Namespace       string
	NamespaceLabels map[string]string
	// Release is the name of the release.
	Release string
	// Values go over the chart's own. They are not changed.
	Values map[string]any
	// Wait is how long the release may take to be ready; 0 means not to wait for that.
	Wait time.Duration
	// Everywhere, if set, says on which nodes the pods of DaemonSets have to be ready before the release is; nodes whose kubelet
	// does not report are left out. Where it is nil, one pod of each may be missing, as Helm sees it.
	Everywhere func(node string) bool
	// Rollback takes back what failed: the release goes to the revision that was in force before, or away.
	Rollback bool
	// Logger gets what Helm says about its work, at debug level; nil discards it.
	Logger *slog.Logger
}

// Install makes the release be this chart with these values: it installs it, upgrades it, or, where the release was
// already made from the same content and is deployed, leaves it alone and returns false. A release that an
// interrupted run left pending is taken over. It returns when the release is ready, or with the reason why it is not, a
// *FailedError.
func Install(ctx context.Context, c *Chart, o InstallOptions) (changed bool, err error) {
	o, end := ofOneCall(o)
	defer end()
	r, err := lookUp(ctx, c, o)
	if err != nil {
		return false, err
	}
	rel := r.last
	if !r.isDeployed() {
		if err := ensureNamespace(ctx, r.cfg, o); err != nil {
			return false, err
		}
		if rel, err = r.apply(ctx, c, o); err != nil {
			return false, r.failed(ctx, c, o, rel, err)
		}
		changed = true
	}
	if o.Everywhere == nil {
		return changed, nil
	}
	if err := r.everywhere(ctx, o, rel); err != nil {
		return false, r.failed(ctx, c, o, rel, err)
	}
	return changed, nil
}

// Installed tells whether Install would find nothing to do. It changes nothing.
func Installed(ctx context.Context, c *Chart, o InstallOptions) (bool, error) {
	o, end := ofOneCall(o)
	defer end()
	r, err := lookUp(ctx, c, o)
	if err != nil || !r.isDeployed() || o.Everywhere == nil {
		return err == nil && r.isDeployed(), err
	}
	client, err := r.cfg.KubernetesClientSet()
	if err != nil {
		return false, err
	}
	return isEverywhere(ctx, client, o, r.last) == nil, nil
}

// A state is a release as it is, and the mark of what it shall be.
type state struct {
	cfg  *action.Configuration
	last *release.Release // the newest revision; nil if there is none
	mark string
}

func lookUp(ctx context.Context, c *Chart, o InstallOptions) (state, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	mark, err := contentMark(c.helm, o.Values)
	if err != nil {
		return state{}, fmt.Errorf("release %s/%s: %w", o.Namespace, o.Release, err)
	}
	cfg, err := configuration(ctx, o)
	if err != nil {
		return state{}, fmt.Errorf("release %s/%s: %w", o.Namespace, o.Release, err)
	}
	last, err := cfg.Releases.Last(o.Release)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return state{}, fmt.Errorf("look up release %s/%s: %w", o.Namespace, o.Release, err)
	}
	return state{cfg: cfg, last: last, mark: mark}, nil
}

// isDeployed tells whether the newest revision is in force and was made from the same content.
func (s state) isDeployed() bool {
	return s.last != nil && s.last.Info.Status == release.StatusDeployed && s.last.Labels[MarkLabel] == s.mark
}

// apply installs or upgrades, whichever the newest revision asks for.
func (s state) apply(ctx context.Context, c *Chart, o InstallOptions) (*release.Release, error) {
	values := copyValues(o.Values)
	labels := map[string]string{MarkLabel: s.mark}
	if s.last == nil || s.last.Info.Status == release.StatusUninstalled {
		install := action.NewInstall(s.cfg)
		install.ReleaseName, install.Namespace, install.Labels = o.Release, o.Namespace, labels
		install.Replace = s.last != nil
		install.Wait, install.Timeout = o.Wait > 0, timeout(o)
		return install.RunWithContext(ctx, c.helm, values)
	}
	if err := releasePending(s.cfg, s.last); err != nil {
		return nil, err
	}
	upgrade := action.NewUpgrade(s.cfg)
	upgrade.Namespace, upgrade.Labels, upgrade.ResetValues = o.Namespace, labels, true
	upgrade.Wait, upgrade.Timeout = o.Wait > 0, timeout(o)
	upgrade.MaxHistory = keepRevisions
	return upgrade.RunWithContext(ctx, o.Release, c.helm, values)
}

// timeout bounds each of Helm's waits; a chart's hooks are waited for even if its pods are not.
func timeout(o InstallOptions) time.Duration {
	const hooks = 5 * time.Minute // as the helm command
	if o.Wait > 0 {
		return o.Wait
	}
	return hooks
}

// releasePending marks a revision failed that a killed run left pending: Helm refuses to touch a pending release, and
// continues from a failed one.
func releasePending(cfg *action.Configuration, last *release.Release) error {
	if !last.Info.Status.IsPending() {
		return nil
	}
	last.SetStatus(release.StatusFailed, "interrupted")
	if err := cfg.Releases.Update(last); err != nil {
		return fmt.Errorf("take over revision %d, which an interrupted run left pending: %w", last.Version, err)
	}
	return nil
}

// ensureNamespace makes the namespace or adds the labels that it lacks.
func ensureNamespace(ctx context.Context, cfg *action.Configuration, o InstallOptions) error {
	client, err := cfg.KubernetesClientSet()
	if err != nil {
		return fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	err = retry.OnError(retry.DefaultRetry, apierrors.IsConflict, func() error { return labelNamespace(ctx, client, o) })
	if err != nil {
		return fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	return nil
}

func labelNamespace(ctx context.Context, client kubernetes.Interface, o InstallOptions) error {
	namespaces := client.CoreV1().Namespaces()
	have, err := namespaces.Get(ctx, o.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		want := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace, Labels: o.NamespaceLabels}}
		_, err = namespaces.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lacking := false
	for k, v := range o.NamespaceLabels {
		if have.Labels[k] == v {
			continue
		}
		if have.Labels == nil {
			have.Labels = map[string]string{}
		}
		have.Labels[k], lacking = v, true
	}
	if !lacking {
		return nil
	}
	_, err = namespaces.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// contentMark identifies a chart's files and the values it gets. It is short enough for a label.
func contentMark(c *chart.Chart, values map[string]any) (string, error) {
	given, err := json.Marshal(values) // sorts keys
	if err != nil {
		return "", fmt.Errorf("values: %w", err)
	}
	sum := sha256.New()
	for _, f := range c.Raw {
		for _, part := range [][]byte{[]byte(f.Name), f.Data} {
			sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
			sum.Write(part)
		}
	}
	sum.Write(bytes.TrimSpace(given))
	return hex.EncodeToString(sum.Sum(nil))[:40], nil
}

// copyValues copies the maps of values, because Helm writes into those it is given.
func copyValues(values map[string]any) map[string]any {
	out := make(map[string]any, len(values))
	for k, v := range values {
		if m, ok := v.(map[string]any); ok {
			v = copyValues(m)
		}
		out[k] = v
	}
	return out
}
