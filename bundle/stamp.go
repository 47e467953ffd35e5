package bundle

import (
	"fmt"
	"io/fs"
	"time"
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

// stamp returns the newest times of the open parts. The last part is open from the beginning and was written last, so
// opening another part changes nothing.
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
