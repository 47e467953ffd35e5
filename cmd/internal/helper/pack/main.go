// Command pack compresses programs for package helper, for `make helper`:
//
//	pack DIRECTORY PROGRAM...
//
// writes DIRECTORY/PROGRAM.zst of each program. The same program gives the same bytes. A file that holds the program
// already stays untouched, so that Go does not link kkbundle and run tests again.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: pack DIRECTORY PROGRAM [PROGRAM ...]")
	}
	for _, name := range args[1:] {
		if err := pack(filepath.Join(args[0], filepath.Base(name)+".zst"), name); err != nil {
			return err
		}
	}
	return nil
}

func pack(packed, name string) error {
	program, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	switch same, err := holds(packed, program); {
	case err != nil:
		return err
	case same:
		return nil
	}
	// With more goroutines, the bytes would depend on their number.
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	const public = 0o644
	if err := os.WriteFile(packed+".new", z.EncodeAll(program, nil), public); err != nil {
		return err
	}
	return os.Rename(packed+".new", packed)
}

// holds reports whether a file is the program, compressed. A damaged file is not.
func holds(packed string, program []byte) (bool, error) {
	data, err := os.ReadFile(packed)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	const buffers = 8 << 20
	z, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(len(program)+buffers)))
	if err != nil {
		return false, err
	}
	defer z.Close()
	have, err := z.DecodeAll(data, nil)
	return err == nil && bytes.Equal(have, program), nil
}
