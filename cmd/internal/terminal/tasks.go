package terminal

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/render"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A TaskPrinter prints the events of an installer run: a matrix of hosts and phases on a terminal, otherwise a line
// for each task that changed something and a meter for transfers. With --json, every event is a line.
type TaskPrinter struct {
	*Console
	phase   string
	meter   *Meter
	would   []task.Event // changes that a dry run would make
	phases  []string
	Hosts   []string // in the order of the inventory
	DryRun  bool
	Changed int // number of tasks that changed something, or would
	matrix  *matrix
	asked   bool // the matrix was started, or cannot be
}

// NewTaskPrinter returns a TaskPrinter for a run of these phases. Without phases, it shows no matrix.
func (c *Console) NewTaskPrinter(phases ...string) *TaskPrinter {
	return &TaskPrinter{Console: c, phases: phases}
}

// Event prints one event. Calls must not overlap.
func (p *TaskPrinter) Event(e task.Event) {
	if e.Task != "" && (e.State == task.Changed || e.State == task.Would) {
		p.Changed++
	}
	if p.JSON {
		p.task(e)
		return
	}
	if !p.asked && !p.DryRun { // not earlier: the matrix would hide a prompt for a password
		p.asked = true
		p.matrix = p.newMatrix(p.phases, p.Hosts)
	}
	if p.matrix != nil {
		p.matrix.event(e)
		if line := p.line(e); line != "" && (e.State == task.Warned || e.State == task.Failed ||
			e.State == task.Waiting) {
			p.Note("%s", line)
		}
		return
	}
	if e.State == task.Progress {
		p.transfer(e)
		return
	}
	if e.State == task.Would {
		p.would = append(p.would, e)
	}
	p.stop()
	if e.Phase != p.phase && e.Phase != "" {
		p.phase = e.Phase
		p.Note("== %s", e.Phase)
	}
	if line := p.line(e); line != "" {
		p.Note("%s", line)
	}
}

// Judged prints the precheck's report for people. Programs get an event for each finding.
func (p *TaskPrinter) Judged(r precheck.Report) {
	if !p.JSON && !p.Quiet || r.Err() != nil && !p.JSON {
		p.stop()
		_ = render.Write(p.Err, r, "table")
	}
}

// line returns the text of an event for people, "" for most events.
func (p *TaskPrinter) line(e task.Event) string {
	switch {
	case e.Phase == "precheck" && e.Task == "precheck" && e.Host != "": // a finding that Judged printed
		return ""
	case e.Task == "" || e.State == task.Started && !p.Verbose || e.State == task.Done && !p.Verbose:
		return ""
	case e.State == task.Skipped && e.Message == "" && !p.Verbose:
		return ""
	}
	if e.State == task.Changed && !p.Verbose {
		e.Message = "" // the reason for the change
	}
	line := fmt.Sprintf("%-8s %-14s %s", e.State, plain.Line(e.Host), plain.Line(e.Task))
	// the error at the end of the run has the reason
	if e.Message != "" && e.State != task.Failed && e.State != task.Stopped {
		line += ": " + plain.Lines(e.Message)
	}
	if e.Duration > 0 && e.State != task.Would && e.State != task.Skipped {
		line += fmt.Sprintf(" (%s)", e.Duration.Round(100*time.Millisecond))
	}
	return line
}

// WouldChange prints a summary of a dry run, a line for each host.
func (p *TaskPrinter) WouldChange() {
	hosts := append([]string{"this machine"}, p.Hosts...)
	tasks := map[string][]string{}
	for _, e := range p.would {
		name := e.Host
		name = cmp.Or(name, "this machine")
		if !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
		tasks[name] = append(tasks[name], e.Task)
	}
	for _, name := range hosts {
		if len(tasks[name]) == 0 {
			continue
		}
		p.Note("%s would change %s: %s", plain.Line(name), plain.Count(len(tasks[name]), "thing"),
			plain.Line(strings.Join(tasks[name], ", ")))
	}
}

func (p *TaskPrinter) transfer(e task.Event) {
	if p.meter == nil {
		p.meter = p.NewMeter("send")
	}
	p.meter.Set(e.Bytes, e.Total)
}

// task emits an event for programs.
func (p *TaskPrinter) task(e task.Event) {
	if !p.Watched() {
		return
	}
	one := Event{
		Event: "task", Phase: e.Phase, Task: e.Task, Host: e.Host, State: string(e.State),
		Duration: e.Duration, Message: e.Message,
	}
	if e.State == task.Progress {
		one.Done, one.Total = &e.Bytes, &e.Total
	}
	p.events.emit(one)
}

// Close removes the meter and leaves the last picture of the matrix.
func (p *TaskPrinter) Close() {
	p.stop()
	if p.matrix != nil {
		p.matrix.stop()
		p.matrix = nil
	}
}

// stop removes the meter.
func (p *TaskPrinter) stop() {
	if p.meter != nil {
		p.meter.Stop()
		p.meter = nil
	}
}

// NoteOutcome prints the summary of a run.
func (c *Console) NoteOutcome(r engine.Report, dryRun bool) {
	verb := "changed"
	if dryRun {
		verb = "would change"
	}
	c.Note("%d %s, %d as they should be, in %s", r.Changed, verb, r.Done, r.Duration.Round(100*time.Millisecond))
}

// Confirm asks a question on the terminal. Any answer but yes is an error.
func (c *Console) Confirm(question string) error {
	if !IsTerminal(c.In) {
		return usage.Errorf("without a terminal to ask on, say --yes")
	}
	_, _ = fmt.Fprintf(c.Err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(c.In).ReadString('\n')
	if err != nil {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}
