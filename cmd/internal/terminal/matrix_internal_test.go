package terminal

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func testView(hosts int) (*matrixView, time.Time) {
	v := &matrixView{phases: []string{"pre_hook", "precheck", "init", "install", "verify", "post_hook"}}
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	tell := func(phase, step, host string, state task.State, took time.Duration) {
		v.event(task.Event{Phase: phase, Task: step, Host: host, State: state, Duration: plain.Duration(took)}, now)
	}
	for i := range hosts {
		h := fmt.Sprintf("host%d", i+1)
		tell("init", "kernel", h, task.Started, 0)
		tell("init", "kernel", h, task.Changed, time.Second)
		tell("install", "containerd", h, task.Started, 0)
		switch i % 3 {
		case 0:
			v.event(task.Event{
				Phase: "install", Task: "containerd", Host: h, State: task.Progress, Bytes: 50 << 20,
				Total: 100 << 20,
			}, now)
		case 1:
			tell("install", "containerd", h, task.Done, time.Second)
		case 2:
			tell("install", "containerd", h, task.Failed, time.Second)
		}
	}
	return v, now.Add(12 * time.Second)
}

func TestMatrixPicture(t *testing.T) {
	t.Parallel()
	v, now := testView(3)
	got := strings.Join(v.lines(120, 30, now), "\n")
	want := `       pre_hook  precheck  init     install  verify   post_hook
host1  -         -         changed  ...      -        -          containerd 12s, 50.0 MiB of 100.0 MiB
host2  -         -         changed  ok       -        -        
host3  -         -         changed  FAILED   -        -        
12s  install: 3 changed, 1 as they should be, 1 failed`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestMatrixOrder holds that hosts are where the inventory has them, whoever is the first to say something.
func TestMatrixOrder(t *testing.T) {
	t.Parallel()
	v := &matrixView{phases: []string{"init"}, hosts: []string{"host1", "host2", "host10"}}
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for _, host := range []string{"host10", "host2", "", "host1"} {
		v.event(task.Event{Phase: "init", Task: "kernel", Host: host, State: task.Started}, now)
	}
	var got []string
	for _, r := range v.rows {
		got = append(got, r.name)
	}
	if want := []string{"this machine", "host1", "host2", "host10"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestDryRunSaysWhy holds that people see why something would be done, and then what it comes to, in the order of the
// inventory.
func TestDryRunSaysWhy(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	g := NewConsole(Streams{Err: &out})
	p := g.NewTaskPrinter("init")
	p.Hosts, p.DryRun = []string{"host1", "host2"}, true
	for _, host := range []string{"host2", "host1", ""} {
		p.Event(task.Event{
			Phase: "init", Task: "kernel", Host: host, State: task.Would,
			Duration: plain.Duration(time.Second), Message: "it was not applied yet",
		})
	}
	p.Event(task.Event{
		Phase: "verify", Task: "verify-nodes", Host: "host1", State: task.Skipped,
		Duration: plain.Duration(time.Second),
	})
	p.Close()
	p.WouldChange()
	const line = "would    %-14s kernel: it was not applied yet\n"
	want := "== init\n" + fmt.Sprintf(line+line+line, "host2", "host1", "") + "== verify\n" +
		"this machine would change 1 thing: kernel\nhost1 would change 1 thing: kernel\nhost2 would change 1 thing: kernel\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestMatrixFits draws many hosts into windows of many sizes.
func TestMatrixFits(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{1, 7, 500} {
		v, now := testView(hosts)
		v.event(task.Event{
			Phase: "install", Task: "kubelet",
			Host: "a-host-with-a-name-that-is-longer-than-any-window-is-wide", State: task.Started,
		}, now)
		for width := 1; width < 200; width += 7 {
			for height := 1; height < 60; height += 9 {
				lines := v.lines(width, height, now)
				if most := max(height, 4); len(lines) > most {
					t.Errorf("%d hosts: %d lines in a window of %d", hosts, len(lines), height)
				}
				for _, l := range lines {
					if n := utf8.RuneCountInString(l); n > width {
						t.Errorf("%d hosts: a line of %d in a window of %d: %q", hosts, n, width, l)
					}
				}
			}
		}
	}
	v, now := testView(500)
	text := strings.Join(v.lines(80, 24, now), "\n")
	if strings.Count(text, "FAIL") != 20 || !strings.Contains(text, "and 480 hosts more: 146 failed") {
		t.Errorf("those that failed come first, and the rest is counted:\n%s", text)
	}
}

// TestMatrixColours holds that what a host is called does not steer the terminal, and that colours are there only
// when wanted.
func TestMatrixColours(t *testing.T) {
	t.Parallel()
	v, now := testView(3)
	v.event(task.Event{Phase: "install", Task: "x\x1b[2J", Host: "h\x1b[2J", State: task.Started}, now)
	if text := strings.Join(v.lines(120, 30, now), "\n"); strings.Contains(text, "\x1b") {
		t.Errorf("without colours: %q", text)
	}
	v.colour = true
	text := strings.Join(v.lines(120, 30, now), "\n")
	if !strings.Contains(text, "\x1b[31mFAILED") || strings.Contains(text, "\x1b[2J") {
		t.Errorf("with colours: %q", text)
	}
}

// TestMatrixKeepsWhatIsWritten has lines appear above the picture.
func TestMatrixKeepsWhatIsWritten(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	view, now := testView(1)
	m := &matrix{
		out: &out, view: *view, now: func() time.Time { return now },
		size: func() (int, int) { return 80, 24 }, end: func() {},
	}
	for range 2 {
		if _, err := m.Write([]byte("a line\n")); err != nil {
			t.Fatal(err)
		}
	}
	parts := strings.Split(out.String(), "\x1b[3A\x1b[J") // the picture has three lines
	if len(parts) != 2 || !strings.HasPrefix(parts[1], "a line\n") || strings.Count(parts[1], "\n") != 4 {
		t.Errorf("got %q", out.String())
	}
}

// A command that is silent leaves its host's row as it is: at the task, since when it began.
func TestMatrixKeepsWhoIsWaitedFor(t *testing.T) {
	t.Parallel()
	v, now := testView(1)
	before := v.lines(120, 30, now)
	v.event(task.Event{
		Phase: "install", Task: "containerd", Host: "host1", State: task.Waiting,
		Message: "silent for 2m: $ x",
	}, now)
	if got := v.lines(120, 30, now); strings.Join(got, "\n") != strings.Join(before, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
	}
	line := (&TaskPrinter{Console: &Console{}}).line(task.Event{
		Phase: "install", Task: "containerd", Host: "host1",
		State: task.Waiting, Message: "silent for 2m: $ x",
	})
	if want := "waiting  host1          containerd: silent for 2m: $ x"; line != want {
		t.Errorf("got %q, want %q", line, want)
	}
}
