package bundle

import "encoding/binary"

// The published zstd seekable format, with checksums. The code is ours: frames begin where blobs of the bundle do, which
// libraries for this format decide by size alone.
const (
	skippableMagic = 0x184D2A5E
	seekableMagic  = 0x8F92EAB1
	seekChecksums  = 1 << 7
	seekEntry      = 12
	seekHeader     = 8
	seekFooter     = 9
	minFrames      = 5 // head, index.json, header of the directory, directory, end
)

// A frameInfo is the seek table's record of a frame, and the frame's offset in the file.
type frameInfo struct {
	off      int64
	len      uint32 // bytes in the file
	size     uint32 // bytes of content
	checksum uint32 // the frame's last 4 bytes
}

func appendEntry(b []byte, f frameInfo) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.len)
	b = binary.LittleEndian.AppendUint32(b, f.size)
	return binary.LittleEndian.AppendUint32(b, f.checksum)
}

func parseEntry(b []byte) frameInfo {
	return frameInfo{
		len:      binary.LittleEndian.Uint32(b),
		size:     binary.LittleEndian.Uint32(b[4:]),
		checksum: binary.LittleEndian.Uint32(b[8:]),
	}
}

// appendSeekTable appends the whole skippable frame for the entries of appendEntry.
func appendSeekTable(b, entries []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)+seekFooter))
	b = append(b, entries...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(entries)/seekEntry))
	b = append(b, seekChecksums)
	return binary.LittleEndian.AppendUint32(b, seekableMagic)
}

// seekTableLen reads the footer, the last 9 bytes of a bundle of the given size, and returns the table's total length.
func seekTableLen(footer []byte, size int64) (int64, error) {
	if len(footer) != seekFooter || binary.LittleEndian.Uint32(footer[5:]) != seekableMagic {
		return 0, damage(size, "there is no seek table at the end: the file is truncated, or not a bundle")
	}
	if footer[4] != seekChecksums {
		return 0, damage(size, "the seek table has descriptor %#02x instead of %#02x", footer[4], seekChecksums)
	}
	n := int64(binary.LittleEndian.Uint32(footer))
	table := seekHeader + n*seekEntry + seekFooter
	if n < minFrames || n > maxFrames || table > size {
		return 0, damage(size, "the seek table claims %d frames", n)
	}
	return table, nil
}

// parseSeekTable reads a whole seek table that begins at byte start of the file. Every frame's bounds are checked, so
// memory may be allocated for any frame.
func parseSeekTable(b []byte, start int64) ([]frameInfo, error) {
	if binary.LittleEndian.Uint32(b) != skippableMagic || int(binary.LittleEndian.Uint32(b[4:])) != len(b)-seekHeader {
		return nil, damage(start, "the seek table has a wrong header")
	}
	entries := b[seekHeader : len(b)-seekFooter]
	frames := make([]frameInfo, len(entries)/seekEntry)
	var off int64
	for i := range frames {
		f := parseEntry(entries[i*seekEntry:])
		limit := int64(maxFrameSize)
		if i == 1 || i == len(frames)-2 {
			limit = maxIndexSize
		}
		if f.len < minFrame || f.size == 0 || int64(f.size) > limit || int64(f.len) > maxFrameLen(int64(f.size)) {
			return nil, damage(off, "the seek table says %d bytes for %d of content about frame %d", f.len, f.size, i)
		}
		f.off = off
		off += int64(f.len)
		frames[i] = f
	}
	if off != start {
		return nil, damage(start, "the frames have %d bytes, the seek table says %d", start, off)
	}
	return frames, nil
}

// checkFrames compares the frames with those that the layout requires.
func checkFrames(l *layout, frames []frameInfo) error {
	n := 0
	for s := range l.segments() {
		if n = s.first + s.count; n > len(frames) {
			return damage(0, "there are %d frames; the directory requires more", len(frames))
		}
		rest := s.size
		for i := s.first; i < n; i++ {
			want := rest
			if s.kind == segmentBlob {
				want = min(rest, int64(l.frameSize))
			}
			if int64(frames[i].size) != want {
				return damage(frames[i].off, "frame %d holds %d bytes instead of %d", i, frames[i].size, want)
			}
			rest -= want
		}
	}
	if n != len(frames) {
		return damage(0, "there are %d frames; the directory requires %d", len(frames), n)
	}
	return nil
}
