package regzip

import (
	"compress/flate"
	"io"
	"slices"
	"strconv"

	oldflate "github.com/kkbundle/klauspost-1.17/flate"
	kflate "github.com/klauspost/compress/flate"
)

// An ID names an encoder and its level. It is written into files.
type ID string

// Generation is the number of the list of encoders. It grows with each addition: a stream that no encoder of an
// earlier generation makes is worth another Identify.
const Generation uint32 = 1

// Known reports whether this version has the encoder.
func (id ID) Known() bool {
	_, ok := find(id)
	return ok
}

// The encoders, as the first part of an ID.
const (
	goEncoder           = "go1.26"
	klauspostEncoder    = "klauspost1.20"
	pgzipEncoder        = "pgzip1.20"
	oldKlauspostEncoder = "klauspost1.17"
	oldPgzipEncoder     = "pgzip1.17"
	zlibEncoder         = "zlib"
	gnuEncoder          = "gnu"
	pigzEncoder         = "pigz"
)

// An encoder makes one deflate stream.
type encoder struct {
	id  ID
	new func(w io.Writer) (io.WriteCloser, error)
}

// encoders returns all encoders, those that header suggests first.
func encoders(header []byte) []encoder {
	klauspost := []string{pgzipEncoder, oldPgzipEncoder, klauspostEncoder, oldKlauspostEncoder}
	families := slices.Concat([]string{goEncoder}, klauspost, []string{zlibEncoder, gnuEncoder, pigzEncoder})
	const osUnix = 3
	switch {
	case header[9] == osUnix:
		families = slices.Concat([]string{zlibEncoder, gnuEncoder, pigzEncoder, goEncoder}, klauspost)
	case header[4] != 0 || header[5] != 0: // a zero time.Time
		families = slices.Concat(klauspost, []string{goEncoder, zlibEncoder, gnuEncoder, pigzEncoder})
	}
	levels := []int{6, 1, 9, 5, 4, 3, 2, 7, 8}
	switch header[8] { // the level, as far as the header has it
	case 2:
		levels = []int{9, 8, 7, 6, 5, 4, 3, 2, 1}
	case 4:
		levels = []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	}
	var all []encoder
	for _, f := range families {
		for _, l := range levels {
			all = append(all, encoderOf(f, l))
		}
	}
	return all
}

// encoderOf returns the encoder of a family and level.
func encoderOf(family string, level int) encoder {
	e := encoder{id: ID(family + "/" + strconv.Itoa(level))}
	switch family {
	case goEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, level) }
	case klauspostEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) { return kflate.NewWriter(w, level) }
	case pgzipEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) {
			packer, err := kflate.NewWriterDict(w, level, nil)
			return newBlockedWriter(w, packer), err
		}
	case oldKlauspostEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) { return oldflate.NewWriter(w, level) }
	case oldPgzipEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) {
			packer, err := oldflate.NewWriterDict(w, level, nil)
			return newBlockedWriter(w, packer), err
		}
	case zlibEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) { return newDeflater(w, variantZlib, level), nil }
	case gnuEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) { return newDeflater(w, variantGNU, level), nil }
	case pigzEncoder:
		e.new = func(w io.Writer) (io.WriteCloser, error) { return newPigzWriter(w, level), nil }
	}
	return e
}

// find returns the encoder with an ID.
func find(id ID) (encoder, bool) {
	for _, e := range encoders(make([]byte, headerSize)) {
		if e.id == id {
			return e, true
		}
	}
	return encoder{}, false
}

// The layout of pgzip's output.
const (
	blockSize = 1 << 20
	tailSize  = 16 << 10
)

// A blockPacker is the encoder of a generation of klauspost/compress.
type blockPacker interface {
	io.WriteCloser
	Flush() error
	ResetDict(w io.Writer, dict []byte)
}

// A blockedWriter compresses like pgzip: blocks of 1 MiB, each with the last 16 KiB before it as dictionary.
type blockedWriter struct {
	w     blockPacker
	out   io.Writer
	block []byte
	tail  []byte
}

func newBlockedWriter(out io.Writer, w blockPacker) *blockedWriter {
	return &blockedWriter{w: w, out: out, block: make([]byte, 0, blockSize)}
}

// Write compresses whole blocks.
func (b *blockedWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		take := min(len(p), blockSize-len(b.block))
		b.block, p = append(b.block, p[:take]...), p[take:]
		if len(b.block) < blockSize {
			break
		}
		if err := b.flush(); err != nil {
			return 0, err
		}
		b.tail = append(b.tail[:0], b.block[blockSize-tailSize:]...)
		b.block = b.block[:0]
	}
	return n, nil
}

func (b *blockedWriter) flush() error {
	b.w.ResetDict(b.out, b.tail)
	if _, err := b.w.Write(b.block); err != nil {
		return err
	}
	return b.w.Flush()
}

// Close compresses the last block, which may be empty.
func (b *blockedWriter) Close() error {
	if err := b.flush(); err != nil {
		return err
	}
	return b.w.Close()
}
