package bundle

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// A Stamp detects writes to the file behind a Reader: it changes with the file, within the resolution of the file
// system's clock. Stamps are compared with ==.
type Stamp struct {
	size     int64
	modified time.Time
	changed  time.Time // change time of the inode, if the system has it
}

// Stamp asks the file system about the open file. A Reader over anything else returns the zero Stamp.
func (r *Reader) Stamp() (Stamp, error) {
	src := r.r
	if r.encrypted != nil {
		src = r.encrypted.Source
	}
	switch f := src.(type) {
	case *parts.Set:
		return stampParts(f)
	case interface{ Stat() (fs.FileInfo, error) }:
		return stampOf(f)
	}
	return Stamp{}, nil
}

func stampOf(f interface{ Stat() (fs.FileInfo, error) }) (Stamp, error) {
	info, err := f.Stat()
	if err != nil {
		return Stamp{}, fmt.Errorf("look at the bundle's file: %w", err)
	}
	return Stamp{size: info.Size(), modified: info.ModTime(), changed: disk.ChangeTime(info)}, nil
}

// stampParts returns the newest times of the open parts. The last part is open from the beginning and was written last,
// so opening another part changes nothing.
func stampParts(s *parts.Set) (Stamp, error) {
	size, infos, err := s.Stat()
	if err != nil {
		return Stamp{}, fmt.Errorf("look at the bundle's file: %w", err)
	}
	all := Stamp{size: size}
	for _, info := range infos {
		if t := info.ModTime(); t.After(all.modified) {
			all.modified = t
		}
		if t := disk.ChangeTime(info); t.After(all.changed) {
			all.changed = t
		}
	}
	return all, nil
}
