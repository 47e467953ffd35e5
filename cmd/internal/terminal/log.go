package terminal

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/plain"
)

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
	if r.Level >= slog.LevelWarn {
		text = strings.ToLower(r.Level.String()) + ": " + text
		text = strings.Replace(text, "warn: ", "warning: ", 1)
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
