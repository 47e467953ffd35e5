package cli

import (
	"bytes"
	"io"
	"os"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A noBundleError names what was given in place of a bundle. A file matches bundle.ErrDamaged.
type noBundleError struct {
	path, what string
	directory  bool
	remedy     string // default: to name a bundle
}

func (e *noBundleError) Error() string {
	return plain.Line(e.path) + " is " + e.what + ", not a bundle"
}

// Is makes the exit code for a file that of a damaged bundle.
func (e *noBundleError) Is(target error) bool { return target == bundle.ErrDamaged && !e.directory }

// Hint returns the remedy.
func (e *noBundleError) Hint() string {
	if e.remedy != "" {
		return e.remedy
	}
	return "name the file that kkbundle build wrote, NAME-VERSION.kkb"
}

// otherFile returns the error of a file that is something else than a bundle, nil if its first bytes do not tell.
func otherFile(path string) *noBundleError {
	e := &noBundleError{path: path}
	if head, err := delta.ReadHead(path); err == nil {
		if e.what = "a pack"; head.Old == "" {
			e.remedy = "make the bundle of it with kkbundle unpack " + plain.Line(path) + " -o NEW.kkb"
			return e
		}
		e.what = "a delta"
		e.remedy = "name the bundle that it was made against, too: OLD.kkb+" + plain.Line(path) +
			", or kkbundle patch OLD.kkb " + plain.Line(path) + " -o NEW.kkb"
		return e
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	head := make([]byte, 512) // a header of tar
	n, err := io.ReadFull(f, head)
	if err != nil && n == 0 {
		e.what = "empty"
		e.remedy = "copy it again from where it was built: nothing of it arrived"
		return e
	}
	if e.what = kindOfFile(head[:n]); e.what == "" && usage.IsYAML(path) {
		e.what = "a YAML file"
	}
	if e.what == "" {
		return nil
	}
	return e
}

// kindOfFile names a kind of file that people take for a bundle, by its first bytes; "" for another one.
func kindOfFile(head []byte) string {
	for _, kind := range []struct {
		offset      int
		magic, name string
	}{
		{0, "\x1f\x8b", "a gzip file (.gz, .tgz)"},
		{0, "\xfd7zXZ\x00", "an xz file"},
		{0, "BZh", "a bzip2 file"},
		{0, "PK\x03\x04", "a zip file"},
		{0, "\x7fELF", "a program"},
		{0, "kkbundle delta 1\n", "a damaged delta or pack"},
		{257, "ustar", "a tar archive"},
		{0, "{", "a JSON file"},
		{0, "<", "a web page or XML file"},
	} {
		if len(head) > kind.offset && bytes.HasPrefix(head[kind.offset:], []byte(kind.magic)) {
			return kind.name
		}
	}
	return ""
}
