package bundle

import (
	"fmt"
	"io/fs"
	"time"
)

// A Stamp tells whether the file behind a Reader was written to: it changes when the file does, as far as the file
// system's clock can tell. Stamps are compared with ==.
type Stamp struct {
	size     int64
	modified time.Time
	changed  time.Time // of the inode, where the system has it
}

// Stamp asks the file system about the open file. A reader of anything but files has always the zero Stamp.
func (r *Reader) Stamp() (Stamp, error) {
	f, ok := r.r.(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return Stamp{}, nil
	}
	info, err := f.Stat()
	if err != nil {
		return Stamp{}, fmt.Errorf("look at the bundle's file: %w", err)
	}
	return Stamp{size: info.Size(), modified: info.ModTime(), changed: changeTime(info)}, nil
}
