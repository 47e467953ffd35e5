package disk

import (
	"io"
	"os"
)

// writeBackStep is how many bytes of a file the kernel is given to write at a time.
const writeBackStep = 16 << 20

// A SteadyFile is written from its start to its end, and to the disk meanwhile, so that Sync at the end waits for
// little.
type SteadyFile struct {
	*os.File
	at, begun int64
}

// Write implements io.Writer.
func (f *SteadyFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	f.pass(int64(n))
	return n, err
}

// Skip goes on behind n bytes that are in the file.
func (f *SteadyFile) Skip(n int64) error {
	_, err := f.Seek(n, io.SeekCurrent)
	f.pass(n)
	return err
}

func (f *SteadyFile) pass(n int64) {
	if f.at += n; f.at-f.begun >= writeBackStep {
		writeBack(f.File, f.begun, f.at-f.begun)
		f.begun = f.at
	}
}
