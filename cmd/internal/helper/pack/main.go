// Command pack compresses programs for package helper, for `make helper`:
//
//	pack DIRECTORY DICTIONARY PROGRAM...
//
// writes DIRECTORY/PROGRAM.zst of each program and of the first, which is the others' dictionary. The same programs
// give the same bytes. A file that holds its program already stays untouched, so that Go does not link kkbundle and
// run tests again.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/internal/packed"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: pack DIRECTORY DICTIONARY [PROGRAM ...]")
	}
	dir := args[0]
	dictionary, err := pack(dir, args[1], nil)
	if err != nil {
		return err
	}
	for _, name := range args[2:] {
		if _, err := pack(dir, name, dictionary); err != nil {
			return err
		}
	}
	return nil
}

// pack writes the stream of a program, which it returns as it was read.
func pack(dir, name string, dictionary []byte) ([]byte, error) {
	program, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, filepath.Base(name)+".zst")
	switch same, err := holds(file, program, dictionary); {
	case err != nil:
		return nil, err
	case same:
		return program, nil
	}
	stream, err := packed.Pack(program, dictionary)
	if err != nil {
		return nil, err
	}
	const public = 0o644
	if err := os.WriteFile(file+".new", stream, public); err != nil {
		return nil, err
	}
	return program, os.Rename(file+".new", file)
}

// holds reports whether a file is the program's stream. A damaged file is not.
func holds(file string, program, dictionary []byte) (bool, error) {
	stream, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, err := packed.Unpack(stream, dictionary)
	return err == nil && bytes.Equal(have, program), nil
}
