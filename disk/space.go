package cli

import (
	"errors"
	"fmt"
	"strings"
)

// A spaceNeed is a directory that something of at most that many bytes will be written to.
type spaceNeed struct {
	dir, what string
	bytes     int64
	remedy    string // beside making room
}

// A disk is a file system with all that is to be written to it.
type disk struct {
	device uint64
	free   int64
	bytes  int64
	needs  []spaceNeed
}

// checkSpace says what is needed and free, and refuses what does not fit, before anything is written. Needs on one file
// system add up.
func checkSpace(needs ...spaceNeed) (room string, err error) {
	var disks []*disk
	for _, n := range needs {
		device, free, err := freeSpace(n.dir)
		if err != nil {
			return "", fmt.Errorf("space for %s: %w", n.what, err)
		}
		d := &disk{device: device, free: free}
		for _, have := range disks {
			if have.device == device {
				d = have
			}
		}
		if len(d.needs) == 0 {
			disks = append(disks, d)
		}
		d.needs = append(d.needs, n)
		d.bytes += n.bytes
	}
	var texts []string
	var errs []error
	for _, d := range disks {
		texts = append(texts, fmt.Sprintf("%s at most for %s, %s free", size(d.bytes), d.list(false), size(d.free)))
		if d.bytes > d.free {
			errs = append(errs, d.refusal())
		}
	}
	return strings.Join(texts, "; "), errors.Join(errs...)
}

// list names what is to be written, with its place, and each one's bytes if wanted.
func (d *disk) list(bytes bool) string {
	parts := make([]string, 0, len(d.needs))
	for _, n := range d.needs {
		text := fmt.Sprintf("%s in %s", n.what, n.dir)
		if bytes {
			text += fmt.Sprintf(" (%s)", size(n.bytes))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " and ")
}

func (d *disk) refusal() error {
	remedies := make([]string, 0, len(d.needs))
	for _, n := range d.needs {
		if n.bytes > 0 {
			remedies = append(remedies, n.remedy)
		}
	}
	return fmt.Errorf("no space for %s: %s needed there at most, %s free: make room; %s",
		d.list(len(d.needs) > 1), size(d.bytes), size(d.free), strings.Join(remedies, ", "))
}
