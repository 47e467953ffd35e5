// Package smart speaks Git's protocol over HTTP: as a client that fetches (versions 2 and 0) and pushes, and as a
// server that is only read. It writes and reads what package git makes and checks.
package smart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// Kinds of packets.
const (
	packData = iota
	packFlush
	packDelimiter
	packEnd
)

const (
	maxLine   = 65516   // bytes of a packet's content
	maxEmpty  = 1 << 16 // packets in a row without data; servers send some while they work
	bandData  = 1
	bandNotes = 2
	bandError = 3
)

// A lineReader reads packets.
type lineReader struct {
	r   io.Reader
	buf [4 + maxLine]byte
}

// next returns the content of the next packet, which is valid until the next call.
func (l *lineReader) next() (data []byte, kind int, err error) {
	if _, err := io.ReadFull(l.r, l.buf[:4]); err != nil {
		return nil, 0, err
	}
	n, err := strconv.ParseUint(string(l.buf[:4]), 16, 16)
	switch {
	case err != nil:
		return nil, 0, odd("%.20q is not the length of a packet of Git's protocol", l.buf[:4])
	case n < 3:
		return nil, packFlush + int(n), nil
	case n == 3 || n > uint64(len(l.buf)):
		return nil, 0, odd("a packet of Git's protocol has an impossible length, %d", n)
	}
	data = l.buf[4:n]
	if _, err := io.ReadFull(l.r, data); err != nil {
		return nil, 0, unexpected(err)
	}
	return data, packData, nil
}

// text returns the next packet as a line without its end. At a packet without content ok is false.
func (l *lineReader) text() (line string, ok bool, err error) {
	data, kind, err := l.next()
	if err != nil || kind != packData {
		return "", false, err
	}
	line = string(bytes.TrimSuffix(data, []byte("\n")))
	if said, failed := strings.CutPrefix(line, "ERR "); failed {
		return "", false, &RemoteError{said}
	}
	return line, true, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the connection ended in the middle of the answer: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// A RemoteError is what a server says about its failure.
type RemoteError struct{ text string }

// Error returns the server's text in one line.
func (e *RemoteError) Error() string {
	const most = 500
	return "the Git server says: " + plain.Clip(strings.TrimSpace(plain.Line(e.text)), most)
}

// Hint returns the remedy where git's wording is known (shallow_update_not_allowed of git's builtin/receive-pack.c), or "".
func (e *RemoteError) Hint() string {
	if strings.Contains(e.text, "shallow update not allowed") {
		return "build the bundle without depth for this repository, or set receive.shallowUpdate on the server"
	}
	return ""
}

// CanPass reports that the same request gets the same answer.
func (*RemoteError) CanPass() bool { return false }

// An oddError is an answer that is none of Git's protocol.
type oddError struct{ text string }

func odd(format string, args ...any) error { return &oddError{fmt.Sprintf(format, args...)} }

func (e *oddError) Error() string { return e.text }

// CanPass reports that the same request gets the same answer.
func (*oddError) CanPass() bool { return false }

// A lineWriter writes packets. It remembers the first error.
type lineWriter struct {
	w   io.Writer
	err error
}

func (l *lineWriter) raw(b []byte) {
	if l.err == nil {
		_, l.err = l.w.Write(b)
	}
}

func (l *lineWriter) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.raw(fmt.Appendf(nil, "%04x%s\n", len(text)+5, text))
}

func (l *lineWriter) flush()     { l.raw([]byte("0000")) }
func (l *lineWriter) delimiter() { l.raw([]byte("0001")) }

// A bandWriter writes data on the first band.
type bandWriter struct{ *lineWriter }

// Write implements io.Writer.
func (b bandWriter) Write(data []byte) (int, error) {
	all := len(data)
	for len(data) > 0 {
		n := min(len(data), maxLine-1)
		b.raw(fmt.Appendf(nil, "%04x%c", n+5, bandData))
		b.raw(data[:n])
		data = data[n:]
	}
	return all, b.err
}

// fail reports an error to the client, on the third band.
func (b bandWriter) fail(text string) {
	b.raw(fmt.Appendf(nil, "%04x%c%s", len(text)+5, bandError, text))
}

// A bandReader reads data of the first band. The end is a packet without content.
type bandReader struct {
	lines *lineReader
	rest  []byte
	notes []byte // the end of the text on the band of notes
	err   error
}

const maxNotes = 2 << 10

// note keeps a part of the notes.
func (b *bandReader) note(text []byte) {
	b.notes = append(b.notes, text...)
	b.notes = slices.Delete(b.notes, 0, max(len(b.notes)-maxNotes, 0))
}

// said returns the notes in one line, without lines that a terminal overwrites, which show progress, and without the
// word that begins each line of a hook that calls git's error().
func (b *bandReader) said() string {
	var lines []string
	for line := range strings.Lines(string(b.notes)) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "error:"))
		if line != "" && !strings.Contains(line, "\r") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

// Read implements io.Reader.
func (b *bandReader) Read(p []byte) (int, error) {
	for empty := 0; len(b.rest) == 0 && b.err == nil; empty++ {
		data, kind, err := b.lines.next()
		switch {
		case err != nil:
			b.err = unexpected(err)
		case kind != packData:
			b.err = io.EOF
		case empty > maxEmpty:
			b.err = odd("the Git server sends packets without end, and no data")
		case len(data) == 0:
		case data[0] == bandData:
			b.rest = data[1:]
		case data[0] == bandError:
			b.err = &RemoteError{string(data[1:])}
		case data[0] == bandNotes:
			b.note(data[1:])
		default:
			b.err = odd("the Git server sends on the unknown band %d", data[0])
		}
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}
