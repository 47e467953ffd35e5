package report

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// An Outcome is the result of a run.
type Outcome string

// The outcomes.
const (
	Succeeded   Outcome = "succeeded"
	Stopped     Outcome = "failed"
	Interrupted Outcome = "interrupted"
	Paused      Outcome = "paused" // as its options say
)

// A Task is a task's result on a host.
type Task struct {
	Phase string `json:"phase"`
	Task  string `json:"task"`
	Host  string `json:"host,omitempty"` // empty for the machine that installs
	// State is the last reported state; "started" for an interrupted task.
	State    string         `json:"state"`
	Start    time.Time      `json:"start"`
	Duration plain.Duration `json:"duration"`
	Message  string         `json:"message,omitempty"`
}

// A Span is a period of activity.
type Span struct{ Start, End time.Time }

// A Pull is an image pull on a host.
type Pull struct {
	Host     string         `json:"host"`
	Image    string         `json:"image"`
	End      time.Time      `json:"end"`
	Duration plain.Duration `json:"duration"`
}

// Times divide a run's duration. Concurrent activities count once.
type Times struct {
	Total plain.Duration `json:"total"`
	// Kubeadm is the activity of kubeadm, without image pulls, which are in Pulls.
	Kubeadm plain.Duration `json:"kubeadm"`
	Pulls   plain.Duration `json:"pulls"`
	// Own is the rest: kkbundle's own activity, and its waiting for the cluster.
	Own plain.Duration `json:"own"`
}

// A Run describes one run of the installer.
type Run struct {
	Version int       `json:"version"` // 1
	Cluster string    `json:"cluster"`
	Bundle  *Bundle   `json:"bundle,omitempty"`
	Start   time.Time `json:"start"`
	Outcome Outcome   `json:"outcome"`
	DryRun  bool      `json:"dryRun,omitempty"`
	// Error is the reason of a failure or a pause.
	Error    string    `json:"error,omitempty"`
	Changed  int       `json:"changed"`
	Done     int       `json:"done"`
	Times    Times     `json:"times"`
	Hosts    []string  `json:"hosts"`
	Tasks    []Task    `json:"tasks"`
	Warnings []string  `json:"warnings,omitempty"`
	Precheck *Precheck `json:"precheck,omitempty"`
	Findings Findings  `json:"findings,omitempty"`
	Pulls    []Pull    `json:"pulls,omitempty"`
}

// WriteJSON writes one document.
func (r Run) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// Divide divides the time between start and end.
func Divide(start, end time.Time, kubeadm, pulls []Span) Times {
	both, pulling := covered(start, end, slices.Concat(kubeadm, pulls)), covered(start, end, pulls)
	total := end.Sub(start)
	return Times{
		Total: plain.Duration(total), Kubeadm: plain.Duration(both - pulling), Pulls: plain.Duration(pulling),
		Own: plain.Duration(total - both),
	}
}

// covered returns how much of the time between start and end lies in one of the spans.
func covered(start, end time.Time, spans []Span) time.Duration {
	sorted := slices.SortedFunc(slices.Values(spans), func(a, b Span) int { return a.Start.Compare(b.Start) })
	var sum time.Duration
	at := start // everything before is counted
	for _, s := range sorted {
		if s.Start.Before(at) {
			s.Start = at
		}
		if s.End.After(end) {
			s.End = end
		}
		if s.End.After(s.Start) {
			sum += s.End.Sub(s.Start)
			at = s.End
		}
	}
	return sum
}

// phases returns the phases that ran, in order.
func (r Run) phases() []string {
	var list []string
	for _, t := range r.Tasks {
		if !slices.Contains(list, t.Phase) {
			list = append(list, t.Phase)
		}
	}
	return list
}

// end returns the end of the last task.
func (r Run) end() time.Time {
	end := r.Start.Add(time.Duration(r.Times.Total))
	for _, t := range r.Tasks {
		if e := t.Start.Add(time.Duration(t.Duration)); e.After(end) {
			end = e
		}
	}
	return end
}

// slowest returns the longest tasks.
func (r Run) slowest(n int) []Task {
	list := slices.SortedStableFunc(slices.Values(r.Tasks),
		func(a, b Task) int { return cmp.Compare(b.Duration, a.Duration) })
	return list[:min(n, len(list))]
}
