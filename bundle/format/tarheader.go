package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// readHeader reads the header of the entry at the start of b: its name, its content's size, and its own length. It
// accepts only headers that tarHeader writes.
func readHeader(b []byte) (name string, size int64, length int, err error) {
	wrong := errors.New("not the start of a bundle's tar entry")
	if len(b) < tarBlock {
		return "", 0, 0, wrong
	}
	last := b[:tarBlock]
	if b[156] == 'x' {
		if len(b) < 3*tarBlock {
			return "", 0, 0, wrong
		}
		record, _, _ := strings.Cut(string(b[tarBlock:2*tarBlock]), "\n")
		_, text, ok := strings.Cut(record, " size=")
		if size, err = strconv.ParseInt(text, 10, 64); err != nil || !ok {
			return "", 0, 0, wrong
		}
		last = b[2*tarBlock : 3*tarBlock]
	} else if size, err = strconv.ParseInt(string(b[124:135]), 8, 64); err != nil {
		return "", 0, 0, wrong
	}
	if size < 0 || size > maxSize {
		return "", 0, 0, fmt.Errorf("a tar entry has %d bytes", size)
	}
	field, _, _ := bytes.Cut(last[:100], []byte{0})
	name = string(field)
	want, err := tarHeader(name, size)
	if err != nil || !bytes.HasPrefix(b, want) {
		return "", 0, 0, wrong
	}
	return name, size, len(want), nil
}
