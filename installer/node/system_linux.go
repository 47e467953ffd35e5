package node

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A system reads files and runs programs of the machine below a root, which is / except in tests.
type system struct {
	root string
	run  func(ctx context.Context, args ...string) ([]byte, error)
	// problems are the failures to read something; mu guards them.
	problems []string
	mu       sync.Mutex
}

// problem records a failure to read something. A missing file is not a problem.
func (s *system) problem(what string, err error) {
	const most = 100
	if err == nil || IsAbsent(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) < most {
		s.problems = append(s.problems, what+": "+err.Error())
	}
}

func (s *system) path(name string) string { return filepath.Join(s.root, name) }

// maxText bounds the files to read: all are far smaller.
const maxText = 4 << 20

// read reads a small file.
func (s *system) read(name string) (string, error) {
	f, err := os.Open(s.path(name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxText))
	return strings.ToValidUTF8(string(data), "\uFFFD"), err
}

// text reads a small file; "" if there is none.
func (s *system) text(name string) string {
	text, err := s.read(name)
	s.problem(name, err)
	return text
}

// quiet reads a small file that may be unreadable for some users or in some states; then it returns "".
func (s *system) quiet(name string) string {
	text, err := s.read(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// line reads a file of one line.
func (s *system) line(name string) string { return strings.TrimSpace(s.text(name)) }

// scan calls f for each line of a file of any size with lines of bounded length.
func (s *system) scan(name string, f func(line string)) {
	file, err := os.Open(s.path(name))
	if err != nil {
		s.problem(name, err)
		return
	}
	defer func() { _ = file.Close() }() // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		f(lines.Text())
	}
	if err := lines.Err(); err != nil && !errors.Is(err, fs.ErrClosed) {
		s.problem(name, err)
	}
}

// lines calls f for each line of the small files that match patterns, at most 100 files for each.
func (s *system) lines(f func(line string), patterns ...string) {
	const most = 100
	for _, pattern := range patterns {
		files, err := filepath.Glob(s.path(pattern))
		s.problem(pattern, err)
		for _, file := range files[:min(len(files), most)] {
			if name, err := filepath.Rel(s.root, file); err == nil {
				for line := range strings.Lines(s.text("/" + name)) {
					f(line)
				}
			}
		}
	}
}

// find looks for a program in the directories of root's PATH.
func (s *system) find(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return ""
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		full := filepath.Join(dir, name)
		info, err := os.Stat(s.path(full))
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return full
		}
	}
	return ""
}

// maxEntries bounds the listed names of a directory.
const maxEntries = 100

func (s *system) look(name string) Path {
	p := Path{Path: name}
	info, err := os.Stat(s.path(name))
	switch {
	case err != nil:
		s.problem(name, err)
	case info.IsDir():
		p.Type = "dir"
		p.Entries = s.list(name)
	case info.Mode().IsRegular():
		p.Type, p.Size = "file", info.Size()
	default:
		p.Type = "other"
	}
	return p
}

func (s *system) list(name string) []string {
	dir, err := os.Open(s.path(name))
	if err != nil {
		s.problem(name, err)
		return nil
	}
	defer func() { _ = dir.Close() }() // only read
	names, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		s.problem(name, err)
	}
	slices.Sort(names)
	return names
}

// IsAbsent reports whether an error means a missing path, also one below a file.
func IsAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }
