package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A Journal writes install.log: every command with its host, task, duration, result and output.
type Journal struct {
	Mask *task.Masker
	Now  func() time.Time
	// commandRan, if set, is called after each command.
	commandRan func(args []string, start, end time.Time)

	mu     sync.Mutex
	Writer io.Writer
}

// write adds an entry: a line, and below it the output. It removes control characters, because output from a host
// must not control the reader's terminal.
func (j *Journal) write(ctx context.Context, who, text, output string) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s %s\n", j.Now().UTC().Format(time.RFC3339), who, task.NameOf(ctx),
		strings.ReplaceAll(text, "\n", "\n    "))
	for line := range strings.Lines(output) {
		b.WriteString("    " + strings.TrimRight(line, "\r\n") + "\n")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = io.WriteString(j.Writer, plain.Lines(j.Mask.Mask(b.String()))) // a failed log does not stop the run
}

// brief shortens a command to one line for a message.
func (j *Journal) brief(what string) string {
	const most = 120
	line := strings.Join(strings.Fields(plain.Lines(j.Mask.Mask(what))), " ")
	return plain.Clip(line, most)
}

// keptOutput limits the output in the journal to its end, which has the reason of a failure.
const keptOutput = 64 << 10

// A Journaled host records and watches the commands that run on it.
type Journaled struct {
	host.Host
	Watch   Watch
	Journal *Journal
}

// Run runs the command and records it, without its input.
func (h *Journaled) Run(ctx context.Context, cmd host.Cmd) error {
	kept := &capped.Tail{Most: keptOutput}
	if !task.IsQuiet(ctx) {
		cmd.Stdout = alsoTo(cmd.Stdout, kept)
	}
	cmd.Stderr = alsoTo(cmd.Stderr, kept)
	what, described := task.DescriptionOf(ctx)
	if !described {
		what = "$ " + task.CommandLine(host.WithoutText(cmd.Args))
	}
	start := h.Journal.Now()
	err := h.Watch.Run(ctx, h.Host, cmd, func() string { return h.Journal.brief(what) })
	result := "exit 0"
	var exit *host.ExitError
	switch {
	case errors.As(err, &exit):
		result = "exit " + strconv.Itoa(exit.Code)
	case err != nil:
		result = "lost: " + err.Error()
	}
	end := h.Journal.Now()
	if h.Journal.commandRan != nil {
		h.Journal.commandRan(cmd.Args, start, end)
	}
	took := end.Sub(start).Round(time.Millisecond)
	h.Journal.write(ctx, h.Watch.Host, fmt.Sprintf("%s -> %s in %s", what, result, took), kept.Lines())
	return err
}

func alsoTo(w io.Writer, kept *capped.Tail) io.Writer {
	if w == nil {
		return kept
	}
	return io.MultiWriter(w, kept)
}
