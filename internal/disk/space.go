package disk

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// A Need is the room that something takes in a directory.
type Need struct {
	Dir, What string
	Bytes     int64  // at most
	Remedy    string // where there is no room; an imperative clause
}

// A fileSystem is one file system with all needs on it.
type fileSystem struct {
	device uint64
	free   int64
	bytes  int64
	needs  []Need
}

// CheckSpace returns the needed and the free bytes of each file system as text, and an error if one of them lacks
// room. Needs on one file system add up.
func CheckSpace(needs ...Need) (room string, err error) {
	var disks []*fileSystem
	for _, n := range needs {
		device, free, err := freeSpace(n.Dir)
		if err != nil {
			return "", fmt.Errorf("space for %s: %w", n.What, err)
		}
		d := &fileSystem{device: device, free: free}
		for _, have := range disks {
			if have.device == device {
				d = have
			}
		}
		if len(d.needs) == 0 {
			disks = append(disks, d)
		}
		d.needs = append(d.needs, n)
		d.bytes += n.Bytes
	}
	var texts []string
	var errs []error
	for _, d := range disks {
		texts = append(texts, fmt.Sprintf("%s at most for %s, %s free", plain.Size(d.bytes), d.list(false),
			plain.Size(d.free)))
		if d.bytes > d.free {
			errs = append(errs, d.refusal())
		}
	}
	return strings.Join(texts, "; "), errors.Join(errs...)
}

// list returns the needs with their directories, and with their bytes if bytes is set.
func (d *fileSystem) list(bytes bool) string {
	parts := make([]string, 0, len(d.needs))
	for _, n := range d.needs {
		text := fmt.Sprintf("%s in %s", n.What, n.Dir)
		if bytes {
			text += fmt.Sprintf(" (%s)", plain.Size(n.Bytes))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " and ")
}

func (d *fileSystem) refusal() error {
	remedies := make([]string, 0, len(d.needs))
	for _, n := range d.needs {
		if n.Bytes > 0 {
			remedies = append(remedies, n.Remedy)
		}
	}
	return fmt.Errorf("no space for %s: %s needed there at most, %s free: make room; %s",
		d.list(len(d.needs) > 1), plain.Size(d.bytes), plain.Size(d.free), strings.Join(remedies, ", "))
}
