package charts

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// MarkLabel is the label of a release record with the hash of chart and values, and the revision that it was made
// for. Its presence shows that this package installed the release. Helm copies it into the revisions that the helm
// command makes.
const MarkLabel = "kkbundle.io/content"

// keepRevisions is the number of revisions kept of a release, the default of the helm command.
const keepRevisions = 10

// InstallOptions configure the installation of a chart.
type InstallOptions struct {
	// Kubeconfig is the content of a kubeconfig file. Nothing is read from the environment or the home directory.
	Kubeconfig []byte
	// Cluster, if set, is the connection to use instead of Kubeconfig and Dial.
	Cluster *Cluster
	// Rewrite, if set, changes the rendered objects and hooks. Custom resource definitions stay as they are.
	Rewrite *Rewrite
	// Dial, if set, makes every connection to the API server.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Namespace is created if missing. NamespaceLabels are set in either case; other labels stay.
	Namespace       string
	NamespaceLabels map[string]string
	// Release is the name of the release.
	Release string
	// Values override the chart's own. They are not modified.
	Values map[string]any
	// Wait is the time limit for the release to become ready; 0 means no waiting.
	Wait time.Duration
	// Everywhere, if set, selects the nodes on which DaemonSet pods must be ready before the release counts as ready.
	// Nodes whose kubelet does not report are ignored. If nil, one pod of each DaemonSet may be missing, as with Helm.
	Everywhere func(node string) bool
	// Rollback undoes a failed installation: the release returns to its previous revision, or is removed.
	Rollback bool
	// Logger receives Helm's messages at debug level; nil discards them.
	Logger *slog.Logger
}

// Install makes the release match this chart and these values. It installs or upgrades the release. If the same content
// is already deployed, it changes nothing and returns false. A release left pending by an interrupted run is taken
// over. Install returns when the release is ready, or with the reason that it is not, a *FailedError.
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

// Installed reports whether Install would change nothing. It makes no changes itself.
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

// A state is the current release and the mark of the wanted content.
type state struct {
	cfg  *action.Configuration
	last *release.Release // the newest revision; nil if there is none
	mark string
}

func lookUp(ctx context.Context, c *Chart, o InstallOptions) (state, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if len(c.unchecked) > 0 {
		o.Logger.WarnContext(ctx, "values are not checked against schemas that refer to other files or servers",
			"release", o.Release, "charts", c.unchecked)
	}
	mark, err := contentMark(c.helm, o.Values, o.Rewrite)
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

// isDeployed reports whether the newest revision is deployed and has the same content.
func (s state) isDeployed() bool {
	return s.last != nil && s.last.Info.Status == release.StatusDeployed && markOf(s.last) == s.mark
}

// markOf returns the hash of chart and values of a revision that this package made, or that returned to one. It returns
// "" for a revision of the helm command. A label of older versions names no revision.
func markOf(r *release.Release) string {
	mark, revision, numbered := strings.Cut(r.Labels[MarkLabel], ".")
	if !numbered || revision == strconv.Itoa(r.Version) || r.Info.Description == "Rollback to "+revision {
		return mark
	}
	return ""
}

// label returns the value of MarkLabel of the next revision.
func (s state) label() string {
	next := 1
	if s.last != nil {
		next = s.last.Version + 1
	}
	return s.mark + "." + strconv.Itoa(next)
}

// apply installs or upgrades, depending on the newest revision.
func (s state) apply(ctx context.Context, c *Chart, o InstallOptions) (*release.Release, error) {
	values := copyValues(o.Values)
	flat, err := s.prepare(ctx, c, o)
	if err != nil {
		return nil, fmt.Errorf("render chart %s %s: %w", c.Name(), c.Version(), err)
	}
	labels := map[string]string{MarkLabel: s.label()}
	if s.last == nil || s.last.Info.Status == release.StatusUninstalled {
		install := action.NewInstall(s.cfg)
		install.ReleaseName, install.Namespace, install.Labels = o.Release, o.Namespace, labels
		install.Replace = s.last != nil
		install.Wait, install.Timeout = o.Wait > 0, timeout(o)
		if o.Rewrite != nil {
			install.PostRenderer = o.Rewrite
		}
		return install.RunWithContext(ctx, flat, values)
	}
	if err := releasePending(s.cfg, s.last); err != nil {
		return nil, err
	}
	upgrade := action.NewUpgrade(s.cfg)
	upgrade.Namespace, upgrade.Labels, upgrade.ResetValues = o.Namespace, labels, true
	upgrade.Wait, upgrade.Timeout = o.Wait > 0, timeout(o)
	upgrade.MaxHistory = keepRevisions
	if o.Rewrite != nil {
		upgrade.PostRenderer = o.Rewrite
	}
	return upgrade.RunWithContext(ctx, o.Release, flat, values)
}

// prepare renders the chart as Helm would, and returns a chart of the results for Helm. Its record gets the chart
// itself.
func (s state) prepare(ctx context.Context, c *Chart, o InstallOptions) (*chart.Chart, error) {
	if client, err := s.cfg.RESTClientGetter.ToDiscoveryClient(); err == nil {
		client.Invalidate() // definitions may be new
	}
	caps, err := s.capabilities()
	if err != nil {
		return nil, err
	}
	files, enabled, err := s.renderChart(ctx, c, o, caps)
	if err != nil {
		return nil, err
	}
	s.cfg.Releases = storage.Init(chartDriver{s.cfg.Releases.Driver, enabled})
	return rendered(enabled, files), nil
}

// timeout bounds each of Helm's waits. Hooks are awaited even if pods are not.
func timeout(o InstallOptions) time.Duration {
	const hooks = 5 * time.Minute // the helm command's default
	if o.Wait > 0 {
		return o.Wait
	}
	return hooks
}

// releasePending marks a pending revision of an interrupted run, or of an interrupted removal, as failed: Helm
// refuses to touch such a release, but continues from a failed one.
func releasePending(cfg *action.Configuration, last *release.Release) error {
	if !last.Info.Status.IsPending() && last.Info.Status != release.StatusUninstalling {
		return nil
	}
	last.SetStatus(release.StatusFailed, "interrupted")
	if err := cfg.Releases.Update(last); err != nil {
		return fmt.Errorf("take over revision %d, left pending by an interrupted run: %w", last.Version, err)
	}
	return nil
}

// ensureNamespace creates the namespace or adds missing labels.
func ensureNamespace(ctx context.Context, cfg *action.Configuration, o InstallOptions) error {
	client, err := cfg.KubernetesClientSet()
	if err != nil {
		return fmt.Errorf("namespace %s: %w", o.Namespace, err)
	}
	err = retry.OnError(retry.DefaultRetry, apierrors.IsConflict,
		func() error { return labelNamespace(ctx, client, o) })
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

// contentMark returns a hash of a chart's files, values and rewriting. It is short enough for a label.
func contentMark(c *chart.Chart, values map[string]any, rewrite *Rewrite) (string, error) {
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
	if rewrite != nil {
		sum.Write([]byte("\x00" + rewrite.Mark))
	}
	return hex.EncodeToString(sum.Sum(nil))[:40], nil
}

// copyValues copies the maps of values, because Helm writes into its arguments.
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
