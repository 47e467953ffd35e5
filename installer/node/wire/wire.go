// Package wire has the frames of the protocols between kkbundle-node on a host and kkbundle.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A frame is a length of 4 bytes, big endian, and that many bytes. Messages are frames with JSON, content is frames
// with bytes; the preceding messages determine the kind of the next frame. These are the most bytes of a frame.
const (
	MaxFrame  = 1 << 20   // of content
	MaxAnswer = 4 << 20   // of the helper's answer
	MaxPlan   = 16 << 20  // of a plan
	Chunk     = 256 << 10 // bytes read and sent at once
)

// ErrGone means the stream ended before or within a frame.
var ErrGone = errors.New("the other side has ended")

// WriteFrame writes a frame in one call.
func WriteFrame(w io.Writer, data []byte) error {
	buf := make([]byte, 4, 4+len(data))
	binary.BigEndian.PutUint32(buf, uint32(len(data)))
	_, err := w.Write(append(buf, data...))
	return err
}

// WriteMessage writes v as JSON in one frame.
func WriteMessage(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteFrame(w, data)
}

// ReadLength reads the beginning of a frame of at most most bytes.
func ReadLength(r io.Reader, most uint32) (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, ErrGone
	} else if err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > most {
		return 0, fmt.Errorf("a frame of %d bytes (starting with %q): this is not kkbundle-node", n, head)
	}
	return int(n), nil
}

// ReadMessage reads a frame with JSON. Memory grows with the bytes received, not with the announced length.
func ReadMessage(r io.Reader, v any, most uint32) error {
	n, err := ReadLength(r, most)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(data) < n {
		return ErrGone
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("message of kkbundle-node: %w", err)
	}
	return nil
}
