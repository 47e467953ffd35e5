package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/plain"
)

// A taskPrinter prints what an installer run does: on a terminal a matrix of hosts and phases, elsewhere a line for each task
// that did something and a meter while bytes are sent, and with --json every event as a line.
type taskPrinter struct {
	*globals
	phase  string
	meter  *meter
	would  []task.Event // what a dry run found
	phases []string
	hosts  []string // in the order of the inventory
	dryRun bool
	matrix *matrix
	asked  bool // whether there is a matrix
	did    int  // how many tasks changed something, or would
}

// newTaskPrinter makes one for a run of these phases; without them there is no matrix.
func (g *globals) newTaskPrinter(phases ...string) *taskPrinter {
	return &taskPrinter{globals: g, phases: phases}
}

// event is called with one event at a time.
func (p *taskPrinter) event(e task.Event) {
	if e.Task != "" && (e.State == task.Changed || e.State == task.Would) {
		p.did++
	}
	if p.json {
		p.task(e)
		return
	}
	if !p.asked && !p.dryRun { // and not before: who is asked for a password reads the line that asks
		p.asked = true
		p.matrix = p.newMatrix(p.phases, p.hosts)
	}
	if p.matrix != nil {
		p.matrix.event(e)
		if line := p.line(e); line != "" && (e.State == task.Warned || e.State == task.Failed || e.State == task.Waiting) {
			p.note("%s", line)
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
		p.note("== %s", e.Phase)
	}
	if line := p.line(e); line != "" {
		p.note("%s", line)
	}
}

// judged shows the precheck's report to people; programs have an event for each finding.
func (p *taskPrinter) judged(r precheck.Report) {
	if !p.json && !p.quiet || r.Err() != nil && !p.json {
		p.stop()
		_ = r.WriteTable(p.Err)
	}
}

// line is what people see of an event; most have nothing to say.
func (p *taskPrinter) line(e task.Event) string {
	switch {
	case e.Phase == "precheck" && e.Task == "precheck" && e.Host != "": // a finding, which judged has shown
		return ""
	case e.Task == "" || e.State == task.Started && !p.verbose || e.State == task.Done && !p.verbose:
		return ""
	case e.State == task.Skipped && e.Message == "" && !p.verbose:
		return ""
	}
	if e.State == task.Changed && !p.verbose {
		e.Message = "" // why it had to be done
	}
	line := fmt.Sprintf("%-8s %-14s %s", e.State, plain.Line(e.Host), plain.Line(e.Task))
	if e.Message != "" && e.State != task.Failed && e.State != task.Stopped { // the error that ends the run says why
		line += ": " + plain.Lines(e.Message)
	}
	if e.Duration > 0 && e.State != task.Would && e.State != task.Skipped { // how long looking took tells nobody anything
		line += fmt.Sprintf(" (%s)", e.Duration.Round(100*time.Millisecond))
	}
	return line
}

// wouldChange sums up what a dry run found, a line for each host.
func (p *taskPrinter) wouldChange() {
	hosts := append([]string{"this machine"}, p.hosts...)
	tasks := map[string][]string{}
	for _, e := range p.would {
		name := e.Host
		if name == "" {
			name = "this machine"
		}
		if !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
		tasks[name] = append(tasks[name], e.Task)
	}
	for _, name := range hosts {
		if len(tasks[name]) == 0 {
			continue
		}
		p.note("%s would change %s: %s", plain.Line(name), plain.Count(len(tasks[name]), "thing"), plain.Line(strings.Join(tasks[name], ", ")))
	}
}

func (p *taskPrinter) transfer(e task.Event) {
	if p.meter == nil {
		p.meter = p.newMeter("send")
	}
	p.meter.set(e.Bytes, e.Total)
}

// task is an event of a run for programs.
func (p *taskPrinter) task(e task.Event) {
	if !p.watched() {
		return
	}
	one := event{Event: "task", Phase: e.Phase, Task: e.Task, Host: e.Host, State: string(e.State), Duration: e.Duration, Message: e.Message}
	if e.State == task.Progress {
		one.Done, one.Total = &e.Bytes, &e.Total
	}
	p.events.emit(one)
}

// close takes the meter away and leaves the last picture of the matrix.
func (p *taskPrinter) close() {
	p.stop()
	if p.matrix != nil {
		p.matrix.stop()
		p.matrix = nil
	}
}

// stop takes the meter away.
func (p *taskPrinter) stop() {
	if p.meter != nil {
		p.meter.stop()
		p.meter = nil
	}
}

// noteOutcome says what a run came to.
func (g *globals) noteOutcome(r engine.Report, dryRun bool) {
	verb := "changed"
	if dryRun {
		verb = "would change"
	}
	g.note("%d %s, %d as they should be, in %s", r.Changed, verb, r.Done, r.Duration.Round(100*time.Millisecond))
}

// confirm asks for a yes on the terminal; elsewhere --yes has to be given.
func (g *globals) confirm(question string) error {
	in, ok := g.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return &usageError{errors.New("without a terminal to ask on, say --yes")}
	}
	_, _ = fmt.Fprintf(g.Err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}
