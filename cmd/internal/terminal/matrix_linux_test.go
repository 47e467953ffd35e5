package terminal

import (
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
)

// TestMatrixOnTerminal has events and lines from several sides while the picture is drawn, and wants the last picture
// to stay.
func TestMatrixOnTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	screen, terminal := openTerminal(t, 120)
	g := NewConsole(Streams{Err: terminal})
	p := g.NewTaskPrinter("init", "install")
	all := make(chan string, 1)
	go func() {
		var seen strings.Builder
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String(), "the end") {
			n, err := screen.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				break
			}
		}
		all <- seen.String()
	}()
	p.Event(task.Event{Phase: "init", State: task.Started})
	if p.matrix == nil {
		t.Fatal("no matrix on a terminal")
	}
	var wait sync.WaitGroup
	for _, host := range []string{"host1", "host2"} {
		wait.Go(func() {
			p.matrix.event(task.Event{Phase: "init", Task: "kernel", Host: host, State: task.Started})
			g.Note("a line of %s", host)
			p.matrix.event(task.Event{Phase: "init", Task: "kernel", Host: host, State: task.Changed, Duration: 1})
		})
	}
	wait.Wait()
	p.Event(task.Event{
		Phase: "init", Task: "kernel", Host: "host1", State: task.Warned,
		Message: "something to look at",
	})
	p.Close()
	g.Note("after it")
	_, _ = io.WriteString(terminal, "the end")
	text := <-all
	for _, want := range []string{
		"a line of host1", "a line of host2", "something to look at", "warning", "changed",
		"2 changed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	up := regexp.MustCompile(`\x1b\[\d+A`).FindAllStringIndex(text, -1)
	last := text[up[len(up)-1][1]:]
	if !strings.Contains(last, "host2") || !strings.HasSuffix(last, "after it\r\nthe end") {
		t.Errorf("the last picture does not stay: %q", last)
	}
}

// TestDryRunOnTerminal holds that a dry run is told in lines on a terminal, too: a picture has no room for reasons.
func TestDryRunOnTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	screen, terminal := openTerminal(t, 120)
	go func() { _, _ = io.Copy(io.Discard, screen) }()
	p := NewConsole(Streams{Err: terminal}).NewTaskPrinter("init")
	p.DryRun = true
	p.Event(task.Event{Phase: "init", State: task.Started})
	if p.matrix != nil {
		t.Error("there is a matrix")
	}
}
