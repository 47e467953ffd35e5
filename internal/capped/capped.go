// Package capped bounds what others send: writers that keep a limited number of bytes of a command's output, an
// estimate of the values in a document before it is parsed, JSON that is refused if it would grow when it is decoded,
// and a listener's connections. No writer embeds a bytes.Buffer: io.Copy would fill it through its ReadFrom, past the
// limit.
package capped

import (
	"bytes"
	"fmt"
	"sync"
)

// A Buffer refuses to hold more than Most bytes.
type Buffer struct {
	Most int

	data []byte
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	if len(b.data)+len(p) > b.Most {
		return 0, fmt.Errorf("the command printed more than %d bytes", b.Most)
	}
	b.data = append(b.data, p...)
	return len(p), nil
}

// Bytes returns the bytes written.
func (b *Buffer) Bytes() []byte { return b.data }

// String returns the bytes written as text.
func (b *Buffer) String() string { return string(b.data) }

// A Head keeps the first Most bytes and drops the others.
type Head struct {
	Most int

	data []byte
}

// Write implements io.Writer.
func (h *Head) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), h.Most-len(h.data))]...)
	return len(p), nil
}

// Bytes returns the bytes that are kept.
func (h *Head) Bytes() []byte { return h.data }

// A Tail keeps the last Most bytes. It is safe for concurrent use: the two streams of a command can share one.
type Tail struct {
	Most int

	mu      sync.Mutex
	data    []byte
	dropped bool
}

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - t.Most; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
		t.dropped = true
	}
	return len(p), nil
}

// String returns the bytes that are kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

// Lines returns the bytes that are kept, from the beginning of a line on.
func (t *Tail) Lines() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dropped {
		return string(t.data)
	}
	_, data, _ := bytes.Cut(t.data, []byte("\n"))
	return "…\n" + string(data)
}
