package engine

import (
	"bytes"
	"context"
	"errors"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Names of a run's reports in the work directory. Each run replaces them.
const (
	ReportFile     = "report.html"
	ReportJSONFile = "report.json"
)

// A recorder collects the events of a run for its report.
type recorder struct {
	progress func(task.Event)
	judged   func(precheck.Report)

	mu       sync.Mutex
	tasks    []report.Task
	open     map[taskOnHost]int // where tasks are in the list
	warnings []string
	precheck *report.Precheck
	kubeadm  []report.Span
}

type taskOnHost struct{ phase, task, host string }

// NewRecorder returns a recorder that passes events on as the options say.
func NewRecorder(o Options) *recorder {
	return &recorder{progress: o.Progress, judged: o.Judged, open: map[taskOnHost]int{}}
}

// event records an event and passes it on.
func (c *recorder) event(e task.Event) {
	c.record(e)
	c.progress(e)
}

func (c *recorder) record(e task.Event) {
	if e.Task == "" || e.State == task.Progress || e.State == task.Waiting {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.State == task.Warned && e.Phase != task.VerifyPhase { // those of the verification are findings
		c.warnings = append(c.warnings, strings.TrimPrefix(e.Host+": ", ": ")+e.Message)
	}
	key := taskOnHost{e.Phase, e.Task, e.Host}
	i, ok := c.open[key]
	switch {
	case e.State == task.Started:
		c.open[key] = len(c.tasks)
		c.tasks = append(c.tasks, report.Task{
			Phase: e.Phase, Task: e.Task, Host: e.Host, State: string(e.State),
			Start: e.Time,
		})
	case !ok: // a finding, which is an event of its task
	case e.Duration == 0 && (e.State == task.Warned || e.State == task.Failed):
	default:
		t := &c.tasks[i]
		t.State, t.Duration, t.Message = string(e.State), e.Duration, e.Message
	}
}

// RecordPrecheck records the precheck's report and passes it on.
func (c *recorder) RecordPrecheck(r precheck.Report) {
	one := &report.Precheck{Verdict: r.Verdict(), Blocked: r.Blocked, Warned: r.Warned}
	for _, result := range r.Results {
		if !result.OK && result.Level == precheck.Warn {
			one.Warnings = append(one.Warnings, strings.TrimPrefix(result.Host+": ", ": ")+result.Title+": "+
				result.Found)
		}
	}
	c.mu.Lock()
	c.precheck = one
	c.mu.Unlock()
	if c.judged != nil {
		c.judged(r)
	}
}

// commandRan records the time of kubeadm's commands.
func (c *recorder) commandRan(args []string, start, end time.Time) {
	if path.Base(args[0]) != "kubeadm" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kubeadm = append(c.kubeadm, report.Span{Start: start, End: end})
}

// A refusal is an error that ends a run before any change.
type refusal interface {
	error
	Refuses()
}

// refused reports whether a run ended before it changed anything, and whether the work directory has the report of a
// run that is worth more.
func (r *Run) refused(cause error) bool {
	_, refuses := errors.AsType[refusal](cause)
	_, blocked := errors.AsType[*precheck.BlockedError](cause)
	_, other := errors.AsType[*member.OtherClusterError](cause)
	r.mu.Lock()
	changed := r.Report.Changed
	r.mu.Unlock()
	if changed > 0 || !refuses && !blocked && !other {
		return false
	}
	_, err := r.Dir.Read(ReportJSONFile)
	return err == nil
}

// KeepReport writes the report of a run, successful or not, into the work directory. A refused run leaves the report of
// the run before it.
func (r *Run) KeepReport(ctx context.Context, cause error) error {
	if r.DryRun || r.Began.IsZero() || r.refused(cause) {
		return nil
	}
	end := r.Now()
	out := report.Run{
		Version: 1, Cluster: r.Cluster.Metadata.Name, Bundle: r.bundleName(), Start: r.Began, Outcome: outcomeOf(cause),
		Findings: r.Findings(), Pulls: r.pulled(ctx),
	}
	if cause != nil {
		out.Error = r.Mask.Mask(task.Whole(cause))
	}
	for _, t := range r.Hosts {
		out.Hosts = append(out.Hosts, t.Name)
	}
	r.mu.Lock()
	out.Changed, out.Done = r.Report.Changed, r.Report.Done
	r.mu.Unlock()
	c := r.Recorder
	c.mu.Lock()
	out.Tasks, out.Warnings, out.Precheck = slices.Clone(c.tasks), slices.Clone(c.warnings), c.precheck
	kubeadm := slices.Clone(c.kubeadm)
	c.mu.Unlock()
	var pulls []report.Span
	for _, p := range out.Pulls {
		pulls = append(pulls, report.Span{Start: p.End.Add(-time.Duration(p.Duration)), End: p.End})
	}
	out.Times = report.Divide(r.Began, end, kubeadm, pulls)
	var page, data bytes.Buffer
	if err := errors.Join(out.WriteHTML(&page), out.WriteJSON(&data)); err != nil {
		return err
	}
	return errors.Join(r.Dir.Write(ReportFile, page.Bytes()), r.Dir.Write(ReportJSONFile, data.Bytes()))
}

// A pause is an error that ends a run as its options say.
type pause interface {
	error
	Pauses()
}

func outcomeOf(err error) report.Outcome {
	_, pauses := errors.AsType[pause](err)
	switch {
	case err == nil:
		return report.Succeeded
	case errors.Is(err, context.Canceled):
		return report.Interrupted
	case pauses:
		return report.Paused
	}
	return report.Stopped
}

func (r *Run) bundleName() *report.Bundle {
	if r.Bundle == nil {
		return nil
	}
	index := r.Bundle.Index()
	return &report.Bundle{Name: index.Name, Version: index.Version, Digest: r.Bundle.Digest().String()}
}

// pulled returns the images that the nodes' container runtimes pulled since the run began. Errors are ignored: the
// report is best effort.
func (r *Run) pulled(ctx context.Context) []report.Pull {
	ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
	defer cancel()
	nodes := r.Connected(manifest.RoleCluster)
	lists := make([][]report.Pull, len(nodes))
	_ = r.OnAll(nodes, func(i int, t *task.Host) error {
		if t.Err != nil {
			return nil
		}
		out, err := t.Output(task.WithoutOutput(ctx), "journalctl", "--unit=containerd.service",
			"--output=short-iso-precise", "--no-pager", "--quiet",
			"--since=@"+strconv.FormatInt(r.Began.Unix(), 10), "--grep=Pulled image")
		if err == nil {
			lists[i] = ParsePulls(t.Name, string(out))
		}
		return nil
	})
	return slices.Concat(lists...)
}

// ParsePulls reads containerd's log: `2026-11-22T04:00:00.000000+0000 host1 containerd[1]: time="…" level=info
// msg="Pulled image \"registry.k8s.io/pause:3.10\" with image id … in 1.2s"`.
func ParsePulls(host, text string) []report.Pull {
	pulled := regexp.MustCompile(`^(\S+) .*Pulled image \\?"([^"\\]+)\\?" .* in ([0-9.]+(?:ns|µs|us|ms|s|m[0-9.]+s))`)
	var list []report.Pull
	for line := range strings.Lines(text) {
		m := pulled.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		end, err := time.Parse("2006-01-02T15:04:05.999999Z0700", m[1])
		if err != nil {
			end, err = time.Parse(time.RFC3339Nano, m[1])
		}
		took, failed := time.ParseDuration(m[3])
		if err == nil && failed == nil {
			list = append(list, report.Pull{Host: host, Image: m[2], End: end, Duration: plain.Duration(took)})
		}
	}
	return list
}
