package node

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The protocol between helper and kkbundle consists of frames: a length of 4 bytes, big endian, and that many bytes.
// Messages are frames with JSON, content is frames with bytes; the preceding messages determine the kind of the next
// frame.
const (
	maxFrame  = 1 << 20   // of content
	maxAnswer = 4 << 20   // of the helper's answer
	maxPlan   = 16 << 20  // of a plan
	chunk     = 256 << 10 // bytes read and sent at once
)

// errGone means the stream ended before or within a frame.
var errGone = errors.New("the other side has ended")

// writeFrame writes a frame in one call.
func writeFrame(w io.Writer, data []byte) error {
	buf := make([]byte, 4, 4+len(data))
	binary.BigEndian.PutUint32(buf, uint32(len(data)))
	_, err := w.Write(append(buf, data...))
	return err
}

func writeMessage(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(w, data)
}

// readLength reads the beginning of a frame of at most most bytes.
func readLength(r io.Reader, most uint32) (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, errGone
	} else if err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > most {
		return 0, fmt.Errorf("a frame of %d bytes (starting with %q): this is not kkbundle-node", n, head)
	}
	return int(n), nil
}

// readMessage reads a frame with JSON. Memory grows with the bytes received, not with the announced length.
func readMessage(r io.Reader, v any, most uint32) error {
	n, err := readLength(r, most)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(data) < n {
		return errGone
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("message of kkbundle-node: %w", err)
	}
	return nil
}
