package format

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Bounds on the sizes in a bundle, checked before memory is allocated.
const (
	MaxIndexSize  = 64 << 20 // bytes of index.json and of kkbundle.json
	MaxSize       = 1 << 53  // bytes of one blob: every JSON reader represents it exactly
	MaxFrames     = 1 << 22  // 16 TiB in pieces of 4 MiB
	MaxEncoderID  = 512      // bytes of the encoder's name
	MinBlobRecord = len(`{"digest":"sha256:","size":0,"frame":2,"at":0},`) + 64
)

// A Directory is the content of kkbundle.json.
type Directory struct {
	Encoder   string // its name
	FrameSize int
	Blobs     []Blob // sorted by digest
}

// Marshal returns the canonical JSON.
func (d *Directory) Marshal() ([]byte, error) {
	b := []byte(`{"version":1,"requires":[],"encoder":`)
	b = AppendText(b, d.Encoder)
	b = strconv.AppendInt(append(b, `,"frame_size":`...), int64(d.FrameSize), 10)
	b = append(b, `,"blobs":[`...)
	b = slices.Grow(b, len(d.Blobs)*(MinBlobRecord+16))
	for i, blob := range d.Blobs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, `{"digest":"sha256:`...), blob.Sum.Hex()...), '"')
		b = strconv.AppendInt(append(b, `,"size":`...), blob.Size, 10)
		b = strconv.AppendUint(append(b, `,"frame":`...), uint64(blob.Frame), 10)
		b = strconv.AppendUint(append(b, `,"at":`...), uint64(blob.At), 10)
		b = append(b, '}')
	}
	b = append(b, "]}"...)
	if len(b) > MaxIndexSize {
		return nil, fmt.Errorf("the directory would have %d bytes; at most %d are allowed: split the content into several bundles", len(b), MaxIndexSize)
	}
	return b, nil
}

// ParseDirectory reads kkbundle.json. It refuses every byte that Marshal would not write. It reports an unknown version
// or feature before any other problem.
func ParseDirectory(data []byte) (*Directory, error) {
	s := NewScanner(data)
	s.Lit(`{"version":`)
	if v := s.Integer(1 << 31); s.Err == nil && v != 1 {
		return nil, &UnsupportedError{Feature: fmt.Sprintf("format version %d", v)}
	}
	s.Lit(`,"requires":[`)
	for n := 0; s.Err == nil && !s.Has("]"); n++ {
		// Version 1 knows no features, so the first one named is unsupported.
		if feature := s.Text(); s.Err == nil {
			return nil, &UnsupportedError{Feature: strconv.Quote(feature)}
		}
	}
	d := &Directory{}
	s.Lit(`,"encoder":`)
	d.Encoder = s.Text()
	s.Lit(`,"frame_size":`)
	d.FrameSize = int(s.Integer(MaxFrameSize))
	s.Lit(`,"blobs":[`)
	if s.Err != nil {
		return nil, s.Err
	}
	if len(d.Encoder) > MaxEncoderID || d.FrameSize < MinFrameSize || d.FrameSize%MinFrameSize != 0 {
		return nil, fmt.Errorf("encoder %.40q with frame size %d is out of bounds", d.Encoder, d.FrameSize)
	}
	d.Blobs = make([]Blob, 0, (len(data)-s.pos)/MinBlobRecord+1)
	for s.Err == nil && !s.Has("]") {
		if len(d.Blobs) > 0 {
			s.Lit(",")
		}
		blob := scanBlob(s)
		if n := len(d.Blobs); s.Err == nil && n > 0 && CompareSums(d.Blobs[n-1].Sum, blob.Sum) >= 0 {
			return nil, errors.New("blobs are not sorted by digest")
		}
		d.Blobs = append(d.Blobs, blob)
	}
	s.Lit("}")
	return d, s.End()
}

func scanBlob(s *Scanner) (b Blob) {
	s.Lit(`{"digest":`)
	b.Sum = s.Sum()
	s.Lit(`,"size":`)
	b.Size = s.Integer(MaxSize)
	s.Lit(`,"frame":`)
	b.Frame = uint32(s.Integer(MaxFrames))
	s.Lit(`,"at":`)
	b.At = uint32(s.Integer(MaxGlue))
	s.Lit("}")
	return b
}
