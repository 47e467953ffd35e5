package diagnose

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	// FailuresDir has a directory for each failure of kubeadm or a chart.
	FailuresDir = "failures"
	// collectTimeout bounds the questions to a host that may be in a bad state.
	collectTimeout = 30 * time.Second
	// journalLines limits the log of a unit, podLogBytes the logs of all containers on a host.
	journalLines = "400"
	podLogBytes  = 1 << 20
)

// An ExplainedError is the failure of a program with a likely cause and the logs collected about it.
type ExplainedError struct {
	Err error
	// Cause is the likely reason in a sentence, Fix its remedy; both are empty if no known cause was found.
	Cause, Fix string
	// Dir is the directory of the logs on this machine.
	Dir string
}

// Error returns the program's error, the likely cause, and the directory of the logs.
func (e *ExplainedError) Error() string {
	text := e.Err.Error()
	if e.Cause != "" {
		text += "\nlikely cause: " + e.Cause
	}
	if e.Dir != "" {
		text += "\nlogs: " + e.Dir
	}
	return text
}

// Unwrap returns the program's error.
func (e *ExplainedError) Unwrap() error { return e.Err }

// Hint returns the remedy for the likely cause.
func (e *ExplainedError) Hint() string {
	if e.Fix != "" {
		return e.Fix
	}
	return "read the logs in " + e.Dir
}

// A collected text is a log, or the output of a program.
type collected struct{ name, text string }

//go:embed scripts/pod-logs.sh
var podLogsScript string

// Explain adds the likely cause to an error of kubeadm. It collects the logs of the kubelet, the runtime and the
// control plane's containers since a time. If the host does not answer, the error stays as it is.
func Explain(ctx context.Context, t *task.Host, since time.Time, err error) error {
	var failed *host.ExitError
	if ctx.Err() != nil || !errors.As(err, &failed) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	from := "--since=@" + strconv.FormatInt(since.Unix(), 10)
	texts := []collected{{"kubeadm.txt", err.Error() + "\n"}}
	// Containers' logs first: they show why the API server does not start, while the kubelet only reports that it is
	// down.
	pods := host.Script("pod-logs.sh", podLogsScript, strconv.FormatInt(since.Unix(), 10), strconv.Itoa(podLogBytes))
	if out, askErr := t.Output(task.WithoutOutput(ctx), pods...); askErr == nil {
		texts = append(texts, collected{"containers.log", string(out)})
	}
	for _, unit := range slices.Concat([]string{"kubelet"}, cri.RuntimeOf(t.Site.Cluster).Units) {
		name := strings.TrimSuffix(unit, ".service")
		out, askErr := t.Output(task.WithoutOutput(ctx), "journalctl", "--no-pager", "--quiet", "--output=cat",
			"--unit="+name, "--lines="+journalLines, from)
		if askErr == nil {
			texts = append(texts, collected{name + ".log", string(out)})
		}
	}
	return explained(t, err, texts)
}

// ExplainPods adds the likely cause to an error of a chart, from the events and logs of its pods.
func ExplainPods(ctx context.Context, t *task.Host, namespace string, err error) error {
	if err == nil || ctx.Err() != nil || task.IsUnresponsive(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	pods, askErr := t.Kube().Pods(ctx, "--namespace="+namespace)
	if askErr != nil {
		return err
	}
	texts := []collected{{"error.txt", err.Error() + "\n"}}
	const most = 5 // pods of a chart fail alike
	ill := 0
	for _, p := range pods {
		if kube.IsPodOver(&p) || kube.IsPodReady(&p) || ill == most {
			continue
		}
		ill++
		name := p.Name
		texts = append(texts, collected{name + ".reason.txt", kube.NotReadyReason(&p) + "\n"})
		for suffix, args := range map[string][]string{
			".events.txt": {
				"get", "events", "--field-selector=involvedObject.name=" + name,
				"--sort-by=.lastTimestamp",
			},
			".log": {"logs", name, "--all-containers", "--prefix", "--tail=100"},
		} {
			if out, askErr := t.Kubectl(task.WithoutOutput(ctx),
				append(args, "--namespace="+namespace)...); askErr == nil {
				texts = append(texts, collected{name + suffix, string(out)})
			}
		}
	}
	return explained(t, err, texts)
}

// explained keeps the texts in the work directory and searches them for a cause.
func explained(t *task.Host, err error, texts []collected) error {
	dir := path.Join(FailuresDir, t.Site.Now().UTC().Format("20060102T150405Z")+"-"+t.Name)
	e := &ExplainedError{Err: err, Dir: t.Site.Dir.Join(dir)}
	for i := range texts {
		texts[i].text = plain.Lines(t.Site.Mask.Mask(texts[i].text))
		if failed := t.Site.Dir.Write(path.Join(dir, texts[i].name), []byte(texts[i].text)); failed != nil {
			e.Dir = "" // the disk may be full; the error matters more than the logs
		}
	}
	e.Cause, e.Fix = likelyCause(texts)
	return e
}

// likelyCause returns the first known cause that the texts show.
func likelyCause(texts []collected) (cause, fix string) {
	for _, c := range causes() {
		for _, text := range texts {
			m := c.pattern.FindStringSubmatch(text.text)
			if m == nil {
				continue
			}
			cause = c.cause
			for i, group := range m[1:] {
				cause = strings.ReplaceAll(cause, fmt.Sprintf("$%d", i+1), strings.TrimSpace(group))
			}
			return cause, c.fix
		}
	}
	return "", ""
}
