package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// writeBack has the kernel begin to write a range of a file to its disk. It is a hint: problems show in Sync.
func writeBack(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
