// Package hostfile brings configuration files of a host into a wanted state. It first compares, then changes files that
// differ. It replaces foreign files only if forced.
package hostfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	maxFile = 1 << 20 // most bytes of a configuration file
	// BackupSuffix is appended to a file's name for the backup of foreign content.
	BackupSuffix = ".before-kkbundle"
	// Author begins the first line of every file that kkbundle writes on a host.
	Author = "# Written by kkbundle"
	// Mark is the first line of a file that kkbundle replaces as a whole. Hosts have files with this line: it never
	// changes.
	Mark = Author + "."
)

// A File is the wanted content of a path.
type File struct {
	Path string // absolute, on the host
	Mode fs.FileMode
	Data []byte
	// Mark is the first line of our own files, which may be replaced. Other content is foreign. A file without a mark
	// is ours only if unchanged.
	Mark    string
	Secrecy Secrecy
	// Merge, if set, merges Data into the existing content. A contradiction is an error, unless force allows replacing
	// it.
	Merge func(have, data []byte, force bool) ([]byte, error)
}

// A Secrecy decides how much of a file a difference shows.
type Secrecy int

// The secrecies. Of a file with logins the lines are shown, without the values of credentials; of a secret file the
// number of lines.
const (
	Public Secrecy = iota
	Logins
	Secret
)

// A State is the state of a file before Apply.
type State string

// The states. A file in StateForeign is changed only with force.
const (
	StateSame    State = "same"
	StateNew     State = "new"
	StateChanged State = "changed" // ours, or foreign and mergeable
	StateForeign State = "foreign"
)

// A Change is the change of a file by Apply.
type Change struct {
	Path   string `json:"path"` // on the host
	State  State  `json:"state"`
	Diff   string `json:"diff,omitempty"`   // removed (-) and added (+) lines
	Backup string `json:"backup,omitempty"` // path of the backup of foreign content
	Reason string `json:"reason,omitempty"` // reason that the file counts as foreign

	file File
}

// Options configure Check and Apply.
type Options struct {
	Root  string // the host's root directory: "/" for this host
	Force bool   // replace foreign content, with a backup
}

// A ForeignError lists foreign files that were left unchanged.
type ForeignError struct{ Changes []Change }

// Error implements error.
func (e *ForeignError) Error() string {
	var b strings.Builder
	for i, c := range e.Changes {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s is not ours (%s)", c.Path, c.Reason)
		if c.Diff != "" {
			b.WriteString(":\n" + strings.TrimRight(c.Diff, "\n"))
		}
	}
	return b.String()
}

// Hint returns the remedy.
func (e *ForeignError) Hint() string {
	return "move them away, merge the lines by hand, or use --force, which keeps the old content as FILE" + BackupSuffix
}

// Check compares files with the host. The error lists all unreadable files.
func Check(o Options, files []File) ([]Change, error) {
	changes := make([]Change, 0, len(files))
	var errs []error
	for _, f := range files {
		c, err := check(o, f)
		if err != nil {
			errs = append(errs, err)
		}
		changes = append(changes, c)
	}
	return changes, errors.Join(errs...)
}

func check(o Options, f File) (Change, error) {
	c := Change{Path: f.Path, State: StateSame, file: f}
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
		return c, fmt.Errorf("%q is not an absolute path", f.Path)
	}
	have, mode, err := read(filepath.Join(o.Root, f.Path))
	if errors.Is(err, fs.ErrNotExist) {
		c.State, c.Diff = StateNew, diff(f, nil, f.Data)
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if f.Merge != nil {
		return merge(o, c, have, mode)
	}
	switch {
	case bytes.Equal(have, f.Data) && mode == f.Mode:
		return c, nil
	case bytes.Equal(have, f.Data), f.Mark != "" && bytes.HasPrefix(have, []byte(f.Mark)):
		c.State = StateChanged
	default:
		c.State, c.Reason, c.Backup = StateForeign, "other content, without kkbundle's first line", f.Path+BackupSuffix
	}
	c.Diff = diff(f, have, f.Data)
	return c, nil
}

// merge checks a file that others may share. Its mode stays, unless it has credentials.
func merge(o Options, c Change, have []byte, mode fs.FileMode) (Change, error) {
	f := c.file
	if f.Secrecy == Public {
		c.file.Mode = mode
	}
	merged, err := f.Merge(have, f.Data, false)
	if err != nil {
		c.State, c.Reason = StateForeign, err.Error()
		if merged, err = f.Merge(have, f.Data, true); err != nil {
			if o.Force {
				return c, fmt.Errorf("%s: %w", f.Path, err)
			}
			return c, nil
		}
	} else if bytes.Equal(have, merged) && mode == c.file.Mode {
		return c, nil
	} else {
		c.State = StateChanged
	}
	c.Backup, c.Diff, c.file.Data = f.Path+BackupSuffix, diff(f, have, merged), merged
	return c, nil
}

// Apply makes the changes that Check found. Without force, foreign files are a *ForeignError before any change.
func Apply(o Options, changes []Change) error {
	var foreign []Change
	for _, c := range changes {
		if c.State == StateForeign && !o.Force {
			foreign = append(foreign, c)
		}
	}
	if len(foreign) > 0 {
		return &ForeignError{foreign}
	}
	for _, c := range changes {
		if c.State == StateSame {
			continue
		}
		if err := apply(o, c); err != nil {
			return err
		}
	}
	return nil
}

func apply(o Options, c Change) error {
	target := filepath.Join(o.Root, c.Path)
	const listable = 0o755
	if err := os.MkdirAll(filepath.Dir(target), listable); err != nil {
		return err
	}
	if c.Backup != "" {
		if err := backup(target); err != nil {
			return fmt.Errorf("back up %s: %w", c.Path, err)
		}
	}
	return Write(target, bytes.NewReader(c.file.Data), c.file.Mode)
}

// backup keeps the first foreign content: later content includes ours.
func backup(target string) error {
	have, _, err := read(target)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(target + BackupSuffix); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	const private = 0o600 // the content may have credentials
	return Write(target+BackupSuffix, bytes.NewReader(have), private)
}

// Write replaces a file atomically: afterwards it has either its old content or all of the new one.
func Write(target string, content io.Reader, mode fs.FileMode) (err error) {
	dir := filepath.Dir(target)
	f, err := os.CreateTemp(dir, ".kkbundle-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // no effect after the rename
		}
	}()
	_, err = io.Copy(f, content)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", target, err)
	}
	if err := os.Rename(f.Name(), target); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func read(name string) ([]byte, fs.FileMode, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, 0, fmt.Errorf("%s is not a configuration file (%s, %d bytes)", name, info.Mode().Type(),
			info.Size())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	return data, info.Mode().Perm(), err
}

// diff returns the lines between the first and the last difference.
func diff(f File, from, to []byte) string {
	old, next := lines(from), lines(to)
	for len(old) > 0 && len(next) > 0 && old[0] == next[0] {
		old, next = old[1:], next[1:]
	}
	for len(old) > 0 && len(next) > 0 && old[len(old)-1] == next[len(next)-1] {
		old, next = old[:len(old)-1], next[:len(next)-1]
	}
	var b strings.Builder
	for _, side := range []struct {
		sign  string
		lines []string
	}{{"-", old}, {"+", next}} {
		if n := len(side.lines); f.Secrecy == Secret && n > 0 {
			lines := "lines"
			if n == 1 {
				lines = "line"
			}
			fmt.Fprintf(&b, "%s(%d %s, not shown)\n", side.sign, n, lines)
			continue
		}
		for _, l := range side.lines {
			b.WriteString(side.sign + l + "\n")
		}
	}
	if f.Secrecy == Logins {
		return hide(b.String())
	}
	return b.String()
}

func lines(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// hide removes the values of possible credentials, in any format that we write.
func hide(text string) string {
	credential := regexp.MustCompile(
		`(?im)^(.*?(?:auth|password|passwd|secret|token|credential|key)[^:=\n]*["']?\s*[:=]).*$`)
	return credential.ReplaceAllString(text, "$1 (hidden)")
}
