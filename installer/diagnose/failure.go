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
	"github.com/kkbundle/kkbundle/plain"
)

const (
	// FailuresDir has a directory for each time that kubeadm or a chart failed.
	FailuresDir = "failures"
	// collectTimeout bounds what is asked of a host that may be in a bad way.
	collectTimeout = 30 * time.Second
	// journalLines is what is kept of a unit's log, podLogBytes of all containers' logs on a host.
	journalLines = "400"
	podLogBytes  = 1 << 20
)

// An ExplainedError is a failure of a program that says little about its reason, with what was collected about it.
type ExplainedError struct {
	Err error
	// Cause is the likely reason in a sentence, Fix what to do about it; empty if nothing known was found.
	Cause, Fix string
	// Dir is where the logs are, on this machine.
	Dir string
}

// Error returns what the program said, the likely cause, and where the logs are.
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

// Unwrap returns what the program said.
func (e *ExplainedError) Unwrap() error { return e.Err }

// Hint says what to do about the likely cause.
func (e *ExplainedError) Hint() string {
	if e.Fix != "" {
		return e.Fix
	}
	return "read the logs in " + e.Dir
}

// A collected text is a log, or what a program printed.
type collected struct{ name, text string }

//go:embed scripts/pod-logs.sh
var podLogsScript string

// Explain adds to an error of kubeadm what the kubelet, the runtime and the control plane's containers have logged since a
// time, and the likely cause. A host that cannot be asked leaves the error as it is.
func Explain(ctx context.Context, t *task.Host, since time.Time, err error) error {
	var failed *host.ExitError
	if ctx.Err() != nil || !errors.As(err, &failed) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	from := "--since=@" + strconv.FormatInt(since.Unix(), 10)
	texts := []collected{{"kubeadm.txt", err.Error() + "\n"}}
	// Containers' logs first: what kept the API server from starting is there, and the kubelet only says that it is not up.
	pods := host.Script("pod-logs.sh", podLogsScript, strconv.FormatInt(since.Unix(), 10), strconv.Itoa(podLogBytes))
	if out, askErr := t.Output(task.WithoutOutput(ctx), pods...); askErr == nil {
		texts = append(texts, collected{"containers.log", string(out)})
	}
	for _, unit := range slices.Concat([]string{"kubelet"}, cri.RuntimeOf(t.Site.Cluster).Units) {
		name := strings.TrimSuffix(unit, ".service")
		out, askErr := t.Output(task.WithoutOutput(ctx), "journalctl", "--no-pager", "--quiet", "--output=cat", "--unit="+name, "--lines="+journalLines, from)
		if askErr == nil {
			texts = append(texts, collected{name + ".log", string(out)})
		}
	}
	return explained(t, err, texts)
}

// ExplainPods adds to an error of a chart what its pods' events and containers say.
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
			".events.txt": {"get", "events", "--field-selector=involvedObject.name=" + name, "--sort-by=.lastTimestamp"},
			".log":        {"logs", name, "--all-containers", "--prefix", "--tail=100"},
		} {
			if out, askErr := t.Kubectl(task.WithoutOutput(ctx), append(args, "--namespace="+namespace)...); askErr == nil {
				texts = append(texts, collected{name + suffix, string(out)})
			}
		}
	}
	return explained(t, err, texts)
}

// explained keeps the texts in the work directory and looks for a cause in them.
func explained(t *task.Host, err error, texts []collected) error {
	dir := path.Join(FailuresDir, t.Site.Now().UTC().Format("20060102T150405Z")+"-"+t.Name)
	e := &ExplainedError{Err: err, Dir: t.Site.Dir.Join(dir)}
	for i := range texts {
		texts[i].text = plain.Lines(t.Site.Mask.Mask(texts[i].text))
		if failed := t.Site.Dir.Write(path.Join(dir, texts[i].name), []byte(texts[i].text)); failed != nil {
			e.Dir = "" // the disk may be what is full; the error is more than its logs
		}
	}
	e.Cause, e.Fix = likelyCause(texts)
	return e
}

// likelyCause looks for what is known to make clusters fail; what says most comes first.
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
