package format

import "encoding/binary"

// The published zstd seekable format, with checksums. The code is ours: frames begin where blobs of the bundle do,
// which libraries for this format decide by size alone.
const (
	skippableMagic = 0x184D2A5E
	seekableMagic  = 0x8F92EAB1
	seekChecksums  = 1 << 7
	SeekEntry      = 12 // bytes
	SeekHeader     = 8  // bytes
	SeekFooter     = 9  // bytes
	minFrames      = 5  // head, index.json, header of the directory, directory, end
)

// A FrameInfo is the seek table's record of a frame, and the frame's offset in the file.
type FrameInfo struct {
	Off      int64
	Len      uint32 // bytes in the file
	Size     uint32 // bytes of content
	Checksum uint32 // the frame's last 4 bytes
}

// AppendEntry appends the seek table's entry of a frame.
func AppendEntry(b []byte, f FrameInfo) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.Len)
	b = binary.LittleEndian.AppendUint32(b, f.Size)
	return binary.LittleEndian.AppendUint32(b, f.Checksum)
}

// ParseEntry reads an entry of AppendEntry. The offset is not in it.
func ParseEntry(b []byte) FrameInfo {
	return FrameInfo{
		Len:      binary.LittleEndian.Uint32(b),
		Size:     binary.LittleEndian.Uint32(b[4:]),
		Checksum: binary.LittleEndian.Uint32(b[8:]),
	}
}

// AppendSeekTable appends the whole skippable frame for the entries of AppendEntry.
func AppendSeekTable(b, entries []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)+SeekFooter))
	b = append(b, entries...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)/SeekEntry))
	b = append(b, seekChecksums)
	return binary.LittleEndian.AppendUint32(b, seekableMagic)
}

// SeekTableLen reads the footer, the last 9 bytes of a bundle of the given size, and returns the table's total length.
func SeekTableLen(footer []byte, size int64) (int64, error) {
	if len(footer) != SeekFooter || binary.LittleEndian.Uint32(footer[5:]) != seekableMagic {
		return 0, Damage(size, "there is no seek table at the end: the file is truncated, or not a bundle")
	}
	if footer[4] != seekChecksums {
		return 0, Damage(size, "the seek table has descriptor %#02x instead of %#02x", footer[4], seekChecksums)
	}
	n := int64(binary.LittleEndian.Uint32(footer))
	table := SeekHeader + n*SeekEntry + SeekFooter
	if n < minFrames || n > MaxFrames || table > size {
		return 0, Damage(size, "the seek table claims %d frames", n)
	}
	return table, nil
}

// ParseSeekTable reads a whole seek table that begins at byte start of the file. Every frame's bounds are checked, so
// memory may be allocated for any frame.
func ParseSeekTable(b []byte, start int64) ([]FrameInfo, error) {
	if binary.LittleEndian.Uint32(b) != skippableMagic || int(binary.LittleEndian.Uint32(b[4:])) != len(b)-SeekHeader {
		return nil, Damage(start, "the seek table has a wrong header")
	}
	entries := b[SeekHeader : len(b)-SeekFooter]
	frames := make([]FrameInfo, len(entries)/SeekEntry)
	var off int64
	for i := range frames {
		f := ParseEntry(entries[i*SeekEntry:])
		limit := int64(MaxFrameSize)
		if i == 1 || i == len(frames)-2 {
			limit = MaxIndexSize
		}
		if f.Len < minFrame || f.Size == 0 || int64(f.Size) > limit || int64(f.Len) > MaxFrameLen(int64(f.Size)) {
			return nil, Damage(off, "the seek table says %d bytes for %d of content about frame %d", f.Len, f.Size, i)
		}
		f.Off = off
		off += int64(f.Len)
		frames[i] = f
	}
	if off != start {
		return nil, Damage(start, "the frames have %d bytes, the seek table says %d", start, off)
	}
	return frames, nil
}

// CheckFrames compares the frames with those that the layout requires.
func CheckFrames(l *Layout, frames []FrameInfo) error {
	n := 0
	for s := range l.Segments() {
		if n = s.First + s.Count; n > len(frames) {
			return Damage(0, "there are %d frames; the directory requires more", len(frames))
		}
		rest := s.Size
		for i := s.First; i < n; i++ {
			want := rest
			if s.Kind == SegmentBlob {
				want = min(rest, int64(l.FrameSize))
			}
			if int64(frames[i].Size) != want {
				return Damage(frames[i].Off, "frame %d holds %d bytes instead of %d", i, frames[i].Size, want)
			}
			rest -= want
		}
	}
	if n != len(frames) {
		return Damage(0, "there are %d frames; the directory requires %d", len(frames), n)
	}
	return nil
}
