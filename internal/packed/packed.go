// Package packed is the form in which kkbundle carries the programs for hosts and pods: files with a zstd stream
// (RFC 8878) each, of which all but one need another program as their dictionary. Programs of Go hold much of the same
// code: with the largest of them as their dictionary, the others have less than half of the bytes.
package packed

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// MaxProgram limits an unpacked program, in bytes.
const MaxProgram = 64 << 20

const (
	window       = 32 << 20 // reaches over a program and its dictionary
	dictionaryID = 1        // the encoder wants one; nothing else reads it
)

// Dictionary is the program that every other one of its architecture is packed with: the largest, which is needed
// as a stream of its own, too.
const Dictionary = "kkbundle-registry"

// Stream returns the stream of a program for a Linux architecture in Go's spelling, from a directory of them.
func Stream(dir fs.FS, name, arch string) ([]byte, error) {
	return fs.ReadFile(dir, name+"-"+arch+".zst")
}

// Program returns a program from a directory of streams. The error is fs.ErrNotExist if it, or the dictionary, is not
// there.
func Program(dir fs.FS, name, arch string) ([]byte, error) {
	data, err := Stream(dir, name, arch)
	if err != nil {
		return nil, err
	}
	var dictionary []byte
	if name != Dictionary {
		if dictionary, err = Program(dir, Dictionary, arch); err != nil {
			return nil, err
		}
	}
	program, err := Unpack(data, dictionary)
	if err != nil {
		return nil, fmt.Errorf("%s for linux/%s: %w", name, arch, err)
	}
	return program, nil
}

// Pack returns a program as a stream. A dictionary of no bytes is none. The same bytes give the same stream.
func Pack(program, dictionary []byte) ([]byte, error) {
	options := []zstd.EOption{
		// With more goroutines, the bytes would depend on their number.
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window),
	}
	if len(dictionary) > 0 {
		options = append(options, zstd.WithEncoderDictRaw(dictionaryID, dictionary))
	}
	z, err := zstd.NewWriter(nil, options...)
	if err != nil {
		return nil, err
	}
	return z.EncodeAll(program, nil), z.Close()
}

// Unpack returns the program of a stream that was packed with the same dictionary. A damaged stream is an error, as
// is one of more than MaxProgram.
func Unpack(packed, dictionary []byte) ([]byte, error) {
	options := []zstd.DOption{zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(MaxProgram)}
	if len(dictionary) > 0 {
		options = append(options, zstd.WithDecoderDictRaw(dictionaryID, dictionary))
	}
	z, err := zstd.NewReader(bytes.NewReader(packed), options...)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	all, err := io.ReadAll(io.LimitReader(z, MaxProgram+1))
	if err == nil && len(all) > MaxProgram {
		err = fmt.Errorf("more than %d bytes", MaxProgram)
	}
	return all, err
}
