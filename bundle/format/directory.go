package bundle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Bounds on the sizes in a bundle, checked before memory is allocated.
const (
	maxFrames     = 1 << 22 // 16 TiB in pieces of 4 MiB
	maxEncoderID  = 512
	maxRequires   = 64
	minBlobRecord = len(`{"digest":"sha256:","size":0,"frame":2,"at":0},`) + 64
)

// A directory is kkbundle.json.
type directory struct {
	encoder   string
	frameSize int
	blobs     []dirBlob // sorted by digest
}

// marshal returns the canonical JSON.
func (d *directory) marshal() ([]byte, error) {
	b := []byte(`{"version":1,"requires":[],"encoder":`)
	b = appendText(b, d.encoder)
	b = strconv.AppendInt(append(b, `,"frame_size":`...), int64(d.frameSize), 10)
	b = append(b, `,"blobs":[`...)
	b = slices.Grow(b, len(d.blobs)*(minBlobRecord+16))
	for i, blob := range d.blobs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, `{"digest":"sha256:`...), blob.sum.hex()...), '"')
		b = strconv.AppendInt(append(b, `,"size":`...), blob.size, 10)
		b = strconv.AppendUint(append(b, `,"frame":`...), uint64(blob.frame), 10)
		b = strconv.AppendUint(append(b, `,"at":`...), uint64(blob.at), 10)
		b = append(b, '}')
	}
	b = append(b, "]}"...)
	if len(b) > maxIndexSize {
		return nil, fmt.Errorf("the directory would have %d bytes; at most %d are allowed: split the content into several bundles", len(b), maxIndexSize)
	}
	return b, nil
}

// scanDirectory reads kkbundle.json. It refuses every byte that marshal would not write. It reports an unknown version
// or feature before any other problem.
func scanDirectory(data []byte) (*directory, error) {
	s := newScanner(data)
	s.lit(`{"version":`)
	if v := s.integer(1 << 31); s.err == nil && v != 1 {
		return nil, &UnsupportedError{Feature: fmt.Sprintf("format version %d", v)}
	}
	s.lit(`,"requires":[`)
	for n := 0; s.err == nil && !s.has("]"); n++ {
		// Version 1 knows no features, so the first one named is unsupported.
		if feature := s.text(); s.err == nil {
			return nil, &UnsupportedError{Feature: strconv.Quote(feature)}
		}
	}
	d := &directory{}
	s.lit(`,"encoder":`)
	d.encoder = s.text()
	s.lit(`,"frame_size":`)
	d.frameSize = int(s.integer(maxFrameSize))
	s.lit(`,"blobs":[`)
	if s.err != nil {
		return nil, s.err
	}
	if len(d.encoder) > maxEncoderID || d.frameSize < minFrameSize || d.frameSize%minFrameSize != 0 {
		return nil, fmt.Errorf("encoder %.40q with frame size %d is out of bounds", d.encoder, d.frameSize)
	}
	d.blobs = make([]dirBlob, 0, (len(data)-s.pos)/minBlobRecord+1)
	for s.err == nil && !s.has("]") {
		if len(d.blobs) > 0 {
			s.lit(",")
		}
		blob := scanBlob(s)
		if n := len(d.blobs); s.err == nil && n > 0 && compareSums(d.blobs[n-1].sum, blob.sum) >= 0 {
			return nil, errors.New("blobs are not sorted by digest")
		}
		d.blobs = append(d.blobs, blob)
	}
	s.lit("}")
	return d, s.end()
}

func scanBlob(s *scanner) (b dirBlob) {
	s.lit(`{"digest":`)
	b.sum = s.sum()
	s.lit(`,"size":`)
	b.size = s.integer(maxSize)
	s.lit(`,"frame":`)
	b.frame = uint32(s.integer(maxFrames))
	s.lit(`,"at":`)
	b.at = uint32(s.integer(maxGlue))
	s.lit("}")
	return b
}
