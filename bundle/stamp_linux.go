package bundle

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime returns the inode's last change time, which programs cannot set.
func changeTime(info fs.FileInfo) time.Time {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(int64(s.Ctim.Sec), int64(s.Ctim.Nsec))
	}
	return time.Time{}
}
