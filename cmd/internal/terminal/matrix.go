package terminal

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A matrix shows a run of the installer on a terminal: a row for each host with its phases and its current task. Text
// written to the console appears above it. The last picture stays.
type matrix struct {
	out  io.Writer
	size func() (width, height int)
	now  func() time.Time

	mu    sync.Mutex
	view  matrixView
	drawn int // number of lines on the screen
	end   func()
}

// redraw is the time between two pictures.
const redraw = 250 * time.Millisecond

// newMatrix starts a matrix, or returns nil without a terminal that can redraw.
func (c *Console) newMatrix(phases, hosts []string) *matrix {
	f, isTerminal := c.File()
	if !isTerminal || c.Quiet || c.JSON || c.Verbose || len(phases) == 0 || os.Getenv("TERM") == "dumb" {
		return nil
	}
	m := &matrix{
		out: f, now: time.Now,
		view: matrixView{phases: phases, hosts: hosts, colour: os.Getenv("NO_COLOR") == ""},
		size: func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 || height <= 0 {
				return 80, 24 // the size of a VT100
			}
			return width, height
		},
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(redraw)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = m.write(nil) // a failed picture must not stop the run
			case <-stop:
				return
			}
		}
	}()
	c.screen.matrix.Store(m)
	m.end = sync.OnceFunc(func() {
		close(stop)
		<-stopped
		_ = m.write(nil)
		c.screen.matrix.Store(nil)
	})
	return m
}

// event updates the picture.
func (m *matrix) event(e task.Event) {
	m.mu.Lock()
	m.view.event(e, m.now())
	m.mu.Unlock()
}

// Write implements io.Writer: p appears above the picture.
func (m *matrix) Write(p []byte) (int, error) { return len(p), m.write(p) }

func (m *matrix) write(p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	if m.drawn > 0 {
		// Ctrl-C moved the cursor; overwrite the old picture: clearing it first flickers
		fmt.Fprintf(&b, "\r\x1b[%dA", m.drawn)
	}
	if len(p) > 0 {
		b.WriteString("\x1b[J")
		b.Write(p)
		if p[len(p)-1] != '\n' {
			b.WriteByte('\n')
		}
	}
	width, height := m.size()
	lines := m.view.lines(width, height, m.now())
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	m.drawn = len(lines)
	_, err := m.out.Write(b.Bytes())
	return err
}

// stop draws the last picture and ends the redrawing.
func (m *matrix) stop() { m.end() }

// A matrixView is the content of a matrix.
type matrixView struct {
	phases []string
	hosts  []string // in the order of the inventory
	colour bool
	begin  time.Time
	rows   []*matrixRow
	at     int // index of the current phase
	counts map[task.State]int
}

// A matrixRow is the state of a host or of this machine.
type matrixRow struct {
	name    string
	cells   []task.State // by phase; "" before its first task
	task    string       // current task
	started time.Time
	bytes   int64
	total   int64
}

func (v *matrixView) event(e task.Event, now time.Time) {
	if v.begin.IsZero() {
		v.begin, v.counts = now, map[task.State]int{}
	}
	phase := slices.Index(v.phases, e.Phase)
	if phase < 0 {
		return
	}
	v.at = max(v.at, phase)
	if e.Task == "" {
		return
	}
	row := v.row(e.Host)
	switch e.State {
	case task.Progress:
		row.bytes, row.total = e.Bytes, e.Total
		return
	case task.Waiting: // the row shows the task already; the reason is printed above
		return
	case task.Started:
		row.task, row.started, row.bytes, row.total = e.Task, now, 0, 0
		row.cells[phase] = cmp.Or(row.cells[phase], task.Started)
		return
	}
	if e.Task == row.task && (e.Duration > 0 || e.State != task.Warned && e.State != task.Failed) {
		row.task = ""
		v.counts[e.State]++
	}
	if worse(e.State) >= worse(row.cells[phase]) {
		row.cells[phase] = e.State
	}
}

// worse returns the rank of a state. A cell shows the state of the highest rank among its tasks.
func worse(s task.State) int {
	return slices.Index([]task.State{
		"", task.Started, task.Skipped, task.Done, task.Would, task.Changed, task.Warned,
		task.Stopped, task.Failed,
	}, s)
}

func (v *matrixView) row(host string) *matrixRow {
	name := cmp.Or(host, "this machine")
	for _, r := range v.rows {
		if r.name == name {
			return r
		}
	}
	r := &matrixRow{name: name, cells: make([]task.State, len(v.phases))}
	v.rows = append(v.rows, r)
	// This machine comes first, then hosts in the order of the inventory, not of their first event.
	place := func(r *matrixRow) int { return slices.Index(v.hosts, r.name) }
	slices.SortStableFunc(v.rows, func(a, b *matrixRow) int { return cmp.Compare(place(a), place(b)) })
	return r
}

// Columns of the picture.
const (
	mostName  = 24
	leastTask = 20
	gap       = 2
)

// lines draws the picture for a window.
func (v *matrixView) lines(width, height int, now time.Time) []string {
	if len(v.rows) == 0 || width < 1 {
		return nil
	}
	name := 0
	for _, r := range v.rows {
		name = max(name, utf8.RuneCountInString(r.name))
	}
	name = min(name, mostName, max(width/3, 1))
	first, column := v.columns(width - name - leastTask)
	place := layout{name, first, width, column}
	head := pad("", name)
	for _, p := range v.phases[first:] {
		head += pad("", gap) + pad(p, column(p))
	}
	list := []string{cut(head, width)}
	rows, folded := v.fold(max(height-4, 1)) // reserved: head, folded hosts, summary, cursor
	for _, r := range rows {
		list = append(list, v.line(r, place, now))
	}
	if folded != "" {
		list = append(list, cut(folded, width))
	}
	return append(list, cut(v.summary(now), width))
}

// columns returns the first phase that is shown and the width of each column.
func (v *matrixView) columns(room int) (first int, column func(phase string) int) {
	const word, short = 7, 4 // "changed", "FAIL"
	for _, least := range []int{word, short} {
		column = func(phase string) int {
			if least == short {
				return short
			}
			return max(least, utf8.RuneCountInString(phase))
		}
		sum := 0
		for _, p := range v.phases {
			sum += gap + column(p)
		}
		if sum <= room {
			return 0, column
		}
	}
	return v.at, column
}

// A layout has the columns of a line.
type layout struct {
	name, first, width int
	column             func(phase string) int
}

func (v *matrixView) line(r *matrixRow, l layout, now time.Time) string {
	bare := pad(plain.Line(r.name), l.name)
	used := utf8.RuneCountInString(bare)
	text := bare
	for i, p := range v.phases[l.first:] {
		n := l.column(p)
		if used+gap+n > l.width {
			return text
		}
		used += gap + n
		text += pad("", gap) + v.paint(r.cells[l.first+i], pad(wordOf(r.cells[l.first+i], n), n))
	}
	task := ""
	if r.task != "" {
		task = fmt.Sprintf("%s %s", plain.Line(r.task), now.Sub(r.started).Truncate(time.Second))
		if r.total > 0 {
			task += fmt.Sprintf(", %s of %s", plain.Size(r.bytes), plain.Size(r.total))
		}
	}
	if room := l.width - used - gap; task != "" && room > 0 {
		text += pad("", gap) + cut(task, room)
	}
	return text
}

// wordOf returns the text of a cell of n characters.
func wordOf(s task.State, n int) string {
	words := map[task.State][2]string{
		"": {"-", "-"}, task.Started: {"...", "..."}, task.Skipped: {"skipped", "skip"}, task.Done: {"ok", "ok"},
		task.Would: {"would", "wld"}, task.Changed: {"changed", "chg"}, task.Warned: {"warning", "warn"},
		task.Failed:  {"FAILED", "FAIL"},
		task.Stopped: {"stopped", "stop"},
	}[s]
	if utf8.RuneCountInString(words[0]) <= n {
		return words[0]
	}
	return words[1]
}

// paint colours a cell. The text alone has the meaning.
func (v *matrixView) paint(s task.State, text string) string {
	code := map[task.State]string{
		task.Started: "36", task.Done: "32", task.Changed: "32", task.Would: "33", task.Warned: "33",
		task.Stopped: "33", task.Failed: "31",
	}[s]
	if !v.colour || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// fold returns the rows that fit: failed ones first, then working ones. The rest is counted.
func (v *matrixView) fold(room int) (rows []*matrixRow, folded string) {
	if len(v.rows) <= room {
		return v.rows, ""
	}
	failed := func(r *matrixRow) bool { return slices.Contains(r.cells, task.Failed) }
	rank := func(r *matrixRow) int {
		switch {
		case failed(r):
			return 0
		case r.task != "":
			return 1
		}
		return 2
	}
	sorted := slices.SortedStableFunc(slices.Values(v.rows),
		func(a, b *matrixRow) int { return cmp.Compare(rank(a), rank(b)) })
	tasks, bad, idle := map[string]int{}, 0, 0
	for _, r := range sorted[room:] {
		switch {
		case failed(r):
			bad++
		case r.task != "":
			tasks[r.task]++
		default:
			idle++
		}
	}
	parts := []string{fmt.Sprintf("and %s more:", plain.Count(len(sorted)-room, "host"))}
	if bad > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", bad))
	}
	names := make([]string, 0, len(tasks))
	for name := range tasks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d at %s", tasks[name], plain.Line(name)))
	}
	if idle > 0 {
		parts = append(parts, fmt.Sprintf("%d wait", idle))
	}
	return sorted[:room], strings.Join(parts, " ")
}

func (v *matrixView) summary(now time.Time) string {
	text := fmt.Sprintf("%s  %s: %d changed, %d as they should be", now.Sub(v.begin).Truncate(time.Second),
		v.phases[v.at],
		v.counts[task.Changed]+v.counts[task.Would], v.counts[task.Done])
	if n := v.counts[task.Failed]; n > 0 {
		text += fmt.Sprintf(", %d failed", n)
	}
	return text
}

// pad cuts or extends s to n characters.
func pad(s string, n int) string {
	s = cut(s, n)
	return s + strings.Repeat(" ", n-utf8.RuneCountInString(s))
}

// cut returns at most n characters of s.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n, 0)])
}
