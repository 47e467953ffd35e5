package bundle

import (
	"fmt"
	"io/fs"
	"time"
)

// A Stamp reports whether the file behind a Reader was written to: it changes when the file does, as far as the file
// system's clock can tell. Stamps are compared with ==.
type Stamp struct {
	size     int64
	modified time.Time
	changed  time.Time // of the inode, where the system has it
}

// Stamp asks the file system about the open file. A reader of anything but files has always the zero Stamp.
func (r *Reader) Stamp() (Stamp, error) {
	switch f := r.r.(type) {
	case *partSet:
		return f.stamp()
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
	return Stamp{size: info.Size(), modified: info.ModTime(), changed: changeTime(info)}, nil
}

// stamp has the newest times of the parts that are open. The last part is open from the beginning and was written last, so
// opening another one changes nothing.
func (s *partSet) stamp() (Stamp, error) {
	all := Stamp{size: s.size}
	for _, p := range s.parts {
		one, err := p.stamp()
		if err != nil {
			return Stamp{}, err
		}
		if one != (Stamp{}) {
			all.size += one.size - p.size
		}
		if one.modified.After(all.modified) {
			all.modified = one.modified
		}
		if one.changed.After(all.changed) {
			all.changed = one.changed
		}
	}
	return all, nil
}

// stamp is zero while the part is not open.
func (p *part) stamp() (Stamp, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.f == nil {
		return Stamp{}, nil
	}
	return stampOf(p.f)
}
