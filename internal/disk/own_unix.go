//go:build unix

package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	ownMode     = 0o700
	othersWrite = 0o022
	othersAny   = 0o077
)

// A ForeignError means that others may write, or read, in a directory that must be this user's own.
type ForeignError struct{ Dir, Problem string }

// Error names the directory and the problem. The caller knows the remedy.
func (e *ForeignError) Error() string { return e.Dir + " " + e.Problem }

// OpenOwn opens a directory in which only this user and root write, or makes it with its parents. A link to it must
// be this user's or root's, too. It is for state that a later run trusts, as a cache.
func OpenOwn(path string) (*os.Root, error) { return open(path, othersWrite, true) }

// OpenPrivate is OpenOwn for secrets: the directory belongs to this user, and others may not even read it.
func OpenPrivate(path string) (*os.Root, error) { return open(path, othersAny, false) }

// open opens or makes a directory that withholds permissions from others. shared admits a directory of root's, and
// one of a file system without permissions.
func open(path string, withheld fs.FileMode, shared bool) (_ *os.Root, err error) {
	path = filepath.Clean(path) // a slash at the end would follow a link
	if err := os.MkdirAll(path, ownMode); err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Type() == fs.ModeSymlink && !Ours(info) && owner(info) != 0 {
		return nil, &ForeignError{path, fmt.Sprintf("is a link of user id %d, and you are user id %d", owner(info),
			os.Geteuid())}
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.Close())
		}
	}()
	if info, err = dir.Stat("."); err != nil {
		return nil, err
	}
	foreign := refuse(path, info, withheld, shared)
	if foreign == nil {
		return dir, nil
	}
	if shared {
		if like, err := likeNew(dir, info); err == nil && like {
			return dir, nil
		}
	}
	return nil, foreign
}

// refuse returns why a directory is not this user's own, nil if it is.
func refuse(path string, info fs.FileInfo, withheld fs.FileMode, ofRoot bool) error {
	switch {
	case !Ours(info) && (!ofRoot || owner(info) != 0):
		return &ForeignError{path, fmt.Sprintf("belongs to user id %d, and you are user id %d", owner(info),
			os.Geteuid())}
	case info.Mode().Perm()&withheld&othersWrite != 0:
		return &ForeignError{path, fmt.Sprintf("has mode %04o: others may write there", info.Mode().Perm())}
	case info.Mode().Perm()&withheld != 0:
		return &ForeignError{path, fmt.Sprintf("has mode %04o: others may read there", info.Mode().Perm())}
	}
	return nil
}

// OpenState opens a directory in parent that an earlier run of this user made with OpenState, or makes it. Everybody
// may be able to write in parent. A link, or a directory with another owner or mode than a new one would get there,
// is an error.
func OpenState(parent *os.Root, name string) (_ *os.Root, err error) {
	if err := parent.Mkdir(name, ownMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	info, err := parent.Lstat(name)
	if err != nil {
		return nil, err
	}
	foreign := &ForeignError{filepath.Join(parent.Name(), name), "was not made by this user's kkbundle"}
	if !info.IsDir() {
		return nil, foreign
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	like := false
	opened, err := dir.Stat(".")
	if err == nil && os.SameFile(info, opened) {
		like, err = likeNew(parent, opened)
	}
	if err != nil || !like {
		return nil, errors.Join(err, foreign, dir.Close())
	}
	return dir, nil
}

// likeNew reports whether a directory has the owner and the mode of one that this user makes in parent now. They are
// the user's and 0700, except on a file system that keeps none, as FAT, or other ones, as NFS for root.
func likeNew(parent *os.Root, info fs.FileInfo) (bool, error) {
	name := ".kkbundle-" + rand.Text()[:12]
	if err := parent.Mkdir(name, ownMode); err != nil {
		return false, err
	}
	fresh, err := parent.Lstat(name)
	if err := errors.Join(err, parent.Remove(name)); err != nil {
		return false, err
	}
	return owner(fresh) == owner(info) && fresh.Mode().Perm() == info.Mode().Perm(), nil
}

// Ours reports whether a file belongs to this user.
func Ours(info fs.FileInfo) bool { return owner(info) == os.Geteuid() }

// owner returns the user id of a file's owner, -1 if unknown.
func owner(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
