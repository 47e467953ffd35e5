package terminal

import (
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// eventInterval is the shortest time between two progress events of a phase.
const eventInterval = time.Second

// An Event is a line of JSON that --json prints on standard error. Standard output has only the result, as one
// document.
type Event struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // progress, item, task, log or error
	Phase string    `json:"phase,omitempty"`
	// Task, on Host or on this machine, ended or changed to State. An event of a whole phase has only Phase and State.
	Task     string         `json:"task,omitempty"`
	Host     string         `json:"host,omitempty"`
	State    string         `json:"state,omitempty"`
	Duration plain.Duration `json:"duration,omitempty"` // of an ended task
	// Done and Total are bytes; set for progress.
	Done  *int64 `json:"done,omitempty"`
	Total *int64 `json:"total,omitempty"`
	// An item is finished; it failed if Message is set.
	ItemName
	Level    string         `json:"level,omitempty"` // of log: WARN; also DEBUG and INFO with --verbose
	Message  string         `json:"message,omitempty"`
	Attrs    map[string]any `json:"attrs,omitempty"`    // of log
	ExitCode int            `json:"exitCode,omitempty"` // of error, the last event of a failed run
	Hint     string         `json:"hint,omitempty"`
	Failed   []FailedItem   `json:"failed,omitempty"` // of error: items that could not be fetched
}

// An ItemName identifies an item of a bundle.
type ItemName struct {
	Kind     string `json:"kind,omitempty"`
	Ref      string `json:"ref,omitempty"`
	Platform string `json:"platform,omitempty"`
}

// A FailedItem is an item that could not be fetched.
type FailedItem struct {
	ItemName
	Message string `json:"message"`
}

// events writes events, one at a time.
type events struct {
	mu  sync.Mutex
	out io.Writer
}

func (e *events) emit(one Event) {
	one.Time = time.Now().UTC()
	line, err := json.Marshal(one)
	if err != nil {
		return // a log attribute that JSON cannot encode
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = e.out.Write(append(line, '\n'))
}

// Emit prints an event, even with --quiet.
func (c *Console) Emit(e Event) { c.events.emit(e) }

// Item reports that an item is finished, or failed with err.
func (c *Console) Item(phase string, name ItemName, err error) {
	switch {
	case c.Watched():
		one := Event{Event: "item", Phase: phase, ItemName: name}
		if err != nil {
			one.Message = err.Error()
		}
		c.events.emit(one)
	case err == nil && c.Verbose:
		c.Note("%s %s", name.Kind, plain.Line(name.Ref))
	}
}

// A logWriter turns log records in JSON into events.
type logWriter struct{ events *events }

// Write implements io.Writer: line is one record.
func (w logWriter) Write(line []byte) (int, error) {
	attrs := map[string]any{}
	if err := json.Unmarshal(line, &attrs); err != nil {
		return 0, err
	}
	one := Event{Event: "log", Attrs: attrs}
	for key, to := range map[string]*string{slog.LevelKey: &one.Level, slog.MessageKey: &one.Message} {
		*to, _ = attrs[key].(string)
		delete(attrs, key)
	}
	delete(attrs, slog.TimeKey)
	w.events.emit(one)
	return len(line), nil
}
