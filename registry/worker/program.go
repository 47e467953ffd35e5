//go:build linux

package worker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const name = "kkbundle-registry"

// launch starts a program with one end of a pair of sockets, and returns the other. The program is a file without a
// name: in memory or, where a policy forbids to execute such a file, in the temporary directory.
func launch(program []byte) (*exec.Cmd, link, error) {
	var errs []error
	for _, place := range []func([]byte) (*os.File, error){inMemory, inTemporary} {
		f, err := place(program)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		cmd, l, err := execute(f)
		if err := errors.Join(err, f.Close()); err != nil {
			errs = append(errs, err)
			continue
		}
		return cmd, l, nil
	}
	return nil, link{}, fmt.Errorf("start %s: %w: name a directory whose programs may be executed with $TMPDIR", name,
		errors.Join(errs...))
}

func execute(program *os.File) (*exec.Cmd, link, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, link{}, err
	}
	far := os.NewFile(uintptr(pair[1]), "socket")
	l, err := newLink(os.NewFile(uintptr(pair[0]), "socket"))
	if err != nil {
		return nil, link{}, errors.Join(err, far.Close())
	}
	// It ends when its socket closes, and not by a context.
	cmd := &exec.Cmd{
		Path: "/proc/self/fd/3", Args: []string{name, Argument}, Stdin: far, Stderr: os.Stderr,
		ExtraFiles: []*os.File{program},
	}
	if err := errors.Join(cmd.Start(), far.Close()); err != nil {
		return nil, link{}, errors.Join(err, l.conn.Close())
	}
	return cmd, l, nil
}

func inMemory(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, every such file can be executed
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// inTemporary writes a file in a directory of its own, which is removed once the file is open.
func inTemporary(program []byte) (f *os.File, err error) {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const executable = 0o700
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, program, executable); err != nil {
		return nil, err
	}
	return os.Open(path)
}
