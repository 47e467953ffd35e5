package disk

import (
	"io/fs"
	"syscall"
	"time"
)

// ChangeTime returns the inode's last change time, which programs cannot set; the zero time if it has none.
func ChangeTime(info fs.FileInfo) time.Time {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(int64(s.Ctim.Sec), int64(s.Ctim.Nsec))
	}
	return time.Time{}
}
