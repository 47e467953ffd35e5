// Package terminal prints: results, notes, tables and JSON, progress, the state of hosts during a run, log records.
// It also asks for secrets and confirmation.
package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"golang.org/x/term"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// Streams are a command's standard streams. Results go to Out; progress, warnings and errors to Err.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// A Console writes to the streams as the global flags say.
type Console struct {
	Streams
	Quiet, Verbose, JSON bool

	screen *screen // the same as Err
	events *events // printed on Err with --json
}

// NewConsole returns a Console on the streams.
func NewConsole(s Streams) *Console {
	c := &screen{out: s.Err}
	s.Err = c
	return &Console{Streams: s, screen: c, events: &events{out: c}}
}

// A screen is a stream with a live line or picture at its end if it is a terminal. Written text appears above it.
type screen struct {
	out    io.Writer
	live   atomic.Pointer[mpb.Progress]
	matrix atomic.Pointer[matrix]

	meters struct {
		sync.Mutex
		stopped bool
		end     func() // of the last meter
	}
}

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	if m := s.matrix.Load(); m != nil {
		return m.Write(p)
	}
	if live := s.live.Load(); live != nil {
		if n, err := live.Write(p); !errors.Is(err, mpb.ErrDone) {
			return n, err
		}
	}
	return s.out.Write(p)
}

// Width returns the number of columns of the terminal that a stream is, 0 if it is none.
func Width(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// File returns the file behind Err, and reports whether it is a terminal.
func (c *Console) File() (*os.File, bool) {
	f, ok := c.screen.out.(*os.File)
	return f, ok && IsTerminal(f)
}

// Watched reports whether events are printed.
func (c *Console) Watched() bool { return c.JSON && !c.Quiet }

// Logger returns a logger that writes to Err: notes and warnings, and with --verbose everything.
func (c *Console) Logger() *slog.Logger {
	level := fetch.LevelNote
	switch {
	case c.Quiet:
		level = slog.LevelError
	case c.Verbose:
		level = slog.LevelDebug
	case c.JSON:
		level = slog.LevelWarn
	}
	if c.JSON {
		return slog.New(slog.NewJSONHandler(logWriter{c.events}, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(&sentenceHandler{out: c.Err, level: level})
}

// Result prints a result for scripts, such as a digest, unless --quiet is set.
func (c *Console) Result(format string, args ...any) error {
	if c.Quiet {
		return nil
	}
	_, err := fmt.Fprintf(c.Out, format+"\n", args...)
	return err
}

// Note prints a line for people, unless --quiet or --json is set.
func (c *Console) Note(format string, args ...any) {
	if !c.Quiet && !c.JSON {
		_, _ = fmt.Fprintf(c.Err, format+"\n", args...)
	}
}

// NoteAll prints warnings for people.
func (c *Console) NoteAll(lines []string) {
	for _, line := range lines {
		c.Note("warning: %s", plain.Line(line))
	}
}

// NoteProblems prints remarks about files.
func (c *Console) NoteProblems(list []document.Problem) {
	for _, p := range list {
		c.Note("warning: %s", plain.Line(p.String()))
	}
}

// Alert is Warn for a warning that must not be missed: --quiet does not hide it.
func (c *Console) Alert(text string) {
	if c.JSON {
		slog.New(slog.NewJSONHandler(logWriter{c.events}, nil)).Warn("warning", "reason", text)
		return
	}
	_, _ = fmt.Fprintf(c.Err, "warning: %s\n", plain.Line(text))
}

// Warn prints a warning: a line for people, an event for programs.
func (c *Console) Warn(text string) {
	if c.Watched() {
		c.Logger().Warn("warning", "reason", text)
	}
	c.Note("warning: %s", plain.Line(text))
}

// PrintJSON prints one indented document.
func (c *Console) PrintJSON(v any) error {
	e := json.NewEncoder(c.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// A sentenceHandler writes log records as lines for people: the message, then the attributes in brackets.
type sentenceHandler struct {
	out   io.Writer
	level slog.Level
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (h *sentenceHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// Handle implements slog.Handler.
func (h *sentenceHandler) Handle(_ context.Context, r slog.Record) error {
	var about []string
	add := func(a slog.Attr) bool {
		about = append(about, a.Key+" "+attrText(a.Value.Resolve()))
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	text := r.Message
	switch {
	case r.Level >= slog.LevelWarn:
		text = strings.ToLower(r.Level.String()) + ": " + text
		text = strings.Replace(text, "warn: ", "warning: ", 1)
	case r.Level == fetch.LevelNote:
		text = "note: " + text
	}
	if len(about) > 0 {
		text += " (" + strings.Join(about, ", ") + ")"
	}
	_, err := fmt.Fprintln(h.out, plain.Line(strings.ReplaceAll(text, "\n", "; ")))
	return err
}

func attrText(v slog.Value) string {
	if v.Kind() == slog.KindDuration {
		return v.Duration().Round(time.Millisecond).String()
	}
	return v.String()
}

// WithAttrs implements slog.Handler.
func (h *sentenceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.attrs = append(more.attrs[:len(more.attrs):len(more.attrs)], attrs...)
	return &more
}

// WithGroup implements slog.Handler. Lines for people have no groups.
func (h *sentenceHandler) WithGroup(string) slog.Handler { return h }
