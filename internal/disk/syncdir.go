package disk

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// SyncDir makes a rename in dir durable, as far as its file system can: CIFS, some FUSE file systems and directories
// that may not be listed refuse it, and the file is there.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Sync()
	for _, refused := range []error{
		unix.EINVAL, unix.ENOSYS, unix.ENOTSUP, unix.EOPNOTSUPP, unix.EBADF, unix.EACCES,
		unix.EPERM,
	} {
		if errors.Is(err, refused) {
			err = nil
		}
	}
	return errors.Join(err, f.Close())
}
