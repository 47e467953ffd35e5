package bundletest

import (
	"encoding/binary"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// Stored returns the same bundle with stored frames in place of those that are selected by number. The format leaves
// a frame's compression to its writer, and other writers than ours store manifests, too.
func Stored(t testing.TB, data []byte, selected func(frame int) bool) []byte {
	t.Helper()
	size := int64(len(data))
	table, err := format.SeekTableLen(data[size-format.SeekFooter:], size)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := format.ParseSeekTable(data[size-table:], size-table)
	if err != nil {
		t.Fatal(err)
	}
	dec, err := format.NewDecoder(1)
	if err != nil {
		t.Fatal(err)
	}
	var out, entries []byte
	for i, f := range frames {
		frame := data[f.Off:][:f.Len]
		if selected(i) {
			content, err := format.DecodeFrame(dec, frame, nil, int64(f.Size))
			if err != nil {
				t.Fatal(err)
			}
			frame = format.AppendStored(nil, content)
		}
		f.Len, f.Checksum = uint32(len(frame)), binary.LittleEndian.Uint32(frame[len(frame)-4:])
		out, entries = append(out, frame...), format.AppendEntry(entries, f)
	}
	return format.AppendSeekTable(out, entries)
}
