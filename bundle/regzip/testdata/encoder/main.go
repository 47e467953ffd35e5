// Command encoder compresses its input as programs with a generation of klauspost/compress do. The test that builds
// it names the generation in go.mod.
package main

import (
	"io"
	"log"
	"os"
	"strconv"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/pgzip"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(format, number string) error {
	level, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	var w io.WriteCloser
	if format == "pgzip" {
		w, err = pgzip.NewWriterLevel(os.Stdout, level)
	} else {
		w, err = gzip.NewWriterLevel(os.Stdout, level)
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, os.Stdin); err != nil {
		return err
	}
	return w.Close()
}
