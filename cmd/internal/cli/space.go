package cli

import (
	"errors"
	"fmt"
)

// A spaceNeed is a directory that something of at most that many bytes will be written to.
type spaceNeed struct {
	dir, what string
	bytes     int64
}

// checkSpace refuses what does not fit, before anything is written. Needs on one file system add up.
func checkSpace(needs ...spaceNeed) error {
	perDevice := map[uint64]int64{}
	var errs []error
	for _, n := range needs {
		device, free, err := freeSpace(n.dir)
		if err != nil {
			return fmt.Errorf("space for %s: %w", n.what, err)
		}
		perDevice[device] += n.bytes
		if perDevice[device] > free {
			errs = append(errs, fmt.Errorf("no space for %s in %s: %s needed there, %s free; make room or choose another place",
				n.what, n.dir, size(perDevice[device]), size(free)))
		}
	}
	return errors.Join(errs...)
}
