package cli

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/plain"
)

// eventInterval is the least time between two progress events of one phase.
const eventInterval = time.Second

// An event is a line of JSON on standard error, for programs that watch a run with --json. Standard output has the result
// alone, as one document.
type event struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // progress, item, task, log or error
	Phase string    `json:"phase,omitempty"`
	// A task of the installer, on a host or here, and what became of it; only Phase and State of a phase as a whole.
	Task     string        `json:"task,omitempty"`
	Host     string        `json:"host,omitempty"`
	State    string        `json:"state,omitempty"`
	Duration time.Duration `json:"duration,omitempty"` // nanoseconds, of what has ended
	// Done and Total are bytes, of progress.
	Done  *int64 `json:"done,omitempty"`
	Total *int64 `json:"total,omitempty"`
	// An item is finished, or failed if there is a message.
	itemName
	Level    string         `json:"level,omitempty"` // of log: WARN, or DEBUG and INFO with --verbose
	Message  string         `json:"message,omitempty"`
	Attrs    map[string]any `json:"attrs,omitempty"`    // of log
	ExitCode int            `json:"exitCode,omitempty"` // of error, which is the last event of a run that failed
	Hint     string         `json:"hint,omitempty"`
	Failed   []failedItem   `json:"failed,omitempty"` // of error: everything that could not be fetched
}

type itemName struct {
	Kind     string `json:"kind,omitempty"`
	Ref      string `json:"ref,omitempty"`
	Platform string `json:"platform,omitempty"`
}

type failedItem struct {
	itemName
	Message string `json:"message"`
}

// events writes events, one at a time.
type events struct {
	mu  sync.Mutex
	out io.Writer
}

func (e *events) emit(one event) {
	one.Time = time.Now().UTC()
	line, err := json.Marshal(one)
	if err != nil {
		return // attributes that JSON does not know; the text of what matters is in the error
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = e.out.Write(append(line, '\n'))
}

// watched reports whether events are printed.
func (g *globals) watched() bool { return g.json && !g.quiet }

// item prints that an item is done, or failed.
func (g *globals) item(phase string, name itemName, err error) {
	switch {
	case g.watched():
		one := event{Event: "item", Phase: phase, itemName: name}
		if err != nil {
			one.Message = err.Error()
		}
		g.events.emit(one)
	case err == nil && g.verbose:
		g.note("%s %s", name.Kind, plain.Line(name.Ref))
	}
}

// failed reports the error that ends the run.
func (g *globals) failed(err error) {
	one := event{Event: "error", Message: strings.TrimSpace(err.Error()), ExitCode: exitCode(err), Hint: hint(err)}
	var items *fetch.Errors
	if errors.As(err, &items) {
		for _, f := range items.Failed {
			one.Failed = append(one.Failed, failedItem{itemName{f.Kind, f.Ref, f.Platform}, f.Err.Error()})
		}
	}
	g.events.emit(one)
}

// A logWriter takes what a slog handler writes as JSON.
type logWriter struct{ events *events }

// Write turns a line of slog's JSON into an event.
func (w logWriter) Write(line []byte) (int, error) {
	attrs := map[string]any{}
	if err := json.Unmarshal(line, &attrs); err != nil {
		return 0, err
	}
	one := event{Event: "log", Attrs: attrs}
	for key, to := range map[string]*string{slog.LevelKey: &one.Level, slog.MessageKey: &one.Message} {
		*to, _ = attrs[key].(string)
		delete(attrs, key)
	}
	delete(attrs, slog.TimeKey)
	w.events.emit(one)
	return len(line), nil
}
