package format

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ReadTarHeader reads the header of the entry at the start of b: its name, its content's size, and its own length. It
// accepts only headers that TarHeader writes.
func ReadTarHeader(b []byte) (name string, size int64, length int, err error) {
	wrong := errors.New("not the start of a bundle's tar entry")
	if len(b) < TarBlock {
		return "", 0, 0, wrong
	}
	last := b[:TarBlock]
	if b[156] == 'x' {
		if len(b) < 3*TarBlock {
			return "", 0, 0, wrong
		}
		record, _, _ := strings.Cut(string(b[TarBlock:2*TarBlock]), "\n")
		_, text, ok := strings.Cut(record, " size=")
		if size, err = strconv.ParseInt(text, 10, 64); err != nil || !ok {
			return "", 0, 0, wrong
		}
		last = b[2*TarBlock : 3*TarBlock]
	} else if size, err = strconv.ParseInt(string(b[124:135]), 8, 64); err != nil {
		return "", 0, 0, wrong
	}
	if size < 0 || size > MaxSize {
		return "", 0, 0, fmt.Errorf("a tar entry has %d bytes", size)
	}
	field, _, _ := bytes.Cut(last[:100], []byte{0})
	name = string(field)
	want, err := TarHeader(name, size)
	if err != nil || !bytes.HasPrefix(b, want) {
		return "", 0, 0, wrong
	}
	return name, size, len(want), nil
}
