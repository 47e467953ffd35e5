package sandbox

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	programLimit  = 30 * time.Second
	programOutput = 64 << 10 // bytes
	programSize   = 1 << 30  // bytes; Kubernetes' largest has a tenth of it

	programDirs = "kkbundle-program-"
)

// A Program is a program of others, for this machine's architecture, that Run runs once:
//
//	out, err := sandbox.Program{Name: "kube-apiserver", Content: blob, Args: []string{"--help"}, Output: 1 << 20}.Run(ctx)
//
// It has no environment, reads nothing but its working directory (a program that is linked dynamically also reads the
// machine's libraries), writes nothing, and has no network: what it prints is all that it can do. Its output is a
// stranger's text.
type Program struct {
	// Name is its argument 0.
	Name string
	// Content is the executable, of at most 1 GiB.
	Content io.Reader
	// Files are in its working directory, by name. Name them in Args without a directory.
	Files map[string][]byte
	Args  []string
	// Limit is the longest time that it runs; 30 seconds if it is 0.
	Limit time.Duration
	// Output is the number of bytes that it may print on standard output; 64 KiB if it is 0.
	Output int64
}

// Run returns what the program printed on standard output. The error is ErrTime if the time limit passed, and a
// *FailedError if the program failed, printed too much, or this system lacks a barrier that it needs (Needed).
func (p Program) Run(ctx context.Context) (out []byte, err error) {
	// The outer directory keeps the files from other users, the inner one is readable by the user that the program
	// runs as.
	parent := os.TempDir()
	if err := sweep(parent); err != nil {
		return nil, err
	}
	outer, err := makeHeld(parent)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(outer.Name()), outer.Close()) }()
	dir := filepath.Join(outer.Name(), "program")
	if err := p.unpack(dir, programSize); err != nil {
		return nil, err
	}
	limit := cmp.Or(p.Limit, programLimit)
	limited, cancel := context.WithTimeoutCause(ctx, limit, ErrTime)
	defer cancel()
	c := child{call: call{
		Readable: dir, Program: append([]string{p.Name}, p.Args...),
		Seconds: uint64(math.Ceil(limit.Seconds())),
	}, dir: dir}
	most := cmp.Or(p.Output, programOutput)
	c.receive = func(_ io.Writer, stdout io.Reader) error {
		out, err = io.ReadAll(io.LimitReader(stdout, most+1))
		if int64(len(out)) > most {
			return fmt.Errorf("it printed more than %d bytes", most)
		}
		return err
	}
	if err := c.run(limited); err != nil {
		return nil, err
	}
	return out, nil
}

// unpack writes the program, of at most so many bytes, and its files into a new directory.
func (p Program) unpack(dir string, most int64) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, data := range p.Files {
		if name == p.Name {
			return fmt.Errorf("%s: a file has the program's name", name)
		}
		if err := write(root, name, strings.NewReader(string(data)), 0o644); err != nil {
			return err
		}
	}
	content := io.LimitedReader{R: p.Content, N: most + 1}
	if err := write(root, p.Name, &content, 0o755); err != nil {
		return err
	}
	if content.N == 0 {
		return fmt.Errorf("%s: unpacked, it has more than %s", p.Name, plain.Size(most))
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // the user that the program runs as reads it
}

func write(root *os.Root, name string, from io.Reader, mode os.FileMode) error {
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// makeHeld makes a directory that sweep leaves alone as long as it is open.
func makeHeld(parent string) (*os.File, error) {
	for {
		dir, err := os.MkdirTemp(parent, programDirs)
		if err != nil {
			return nil, err
		}
		held, err := hold(dir)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return held, err
		}
		// Another run sweeps it, since this one did not hold it yet.
	}
}

// sweep removes this user's directories that killed runs left.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), programDirs) {
			continue
		}
		held, err := hold(filepath.Join(parent, e.Name()))
		if err != nil {
			continue // in use, another user's, or already removed
		}
		if err := errors.Join(os.RemoveAll(held.Name()), held.Close()); err != nil {
			return fmt.Errorf("remove what a killed run left: %w", err)
		}
	}
	return nil
}

// hold opens and locks a directory of this user. The error is fs.ErrNotExist if it is gone.
func hold(path string) (*os.File, error) {
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var opened, there unix.Stat_t
	err = errors.Join(unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.Fstat(int(dir.Fd()), &opened))
	if err == nil {
		err = unix.Lstat(path, &there)
	}
	switch {
	case err == nil && (there.Dev != opened.Dev || there.Ino != opened.Ino):
		err = fs.ErrNotExist
	case err == nil && int(opened.Uid) != os.Geteuid():
		err = fs.ErrPermission
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// become runs the program in this process. It returns only if that failed, or if this system lacks the barriers that
// keep a program of others from this machine's files and networks.
func (c call) become() error {
	name := c.Program[0]
	missing := confinement{readable: c.Readable, program: name, seconds: c.Seconds, namespaces: c.Namespaces}.enter()
	for _, barrier := range Needed() {
		if slices.Contains(missing, barrier) {
			return fmt.Errorf("%s is not run on a system without %s", name, strings.Join(missing, ", "))
		}
	}
	return fmt.Errorf("%s: %w", name, execute("./"+name, c.Program))
}

// isDynamic reports whether a file is an executable that the dynamic linker loads, as upstream's kubelet is.
func isDynamic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
