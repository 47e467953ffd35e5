package parts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// Names and bounds.
const (
	Max        = 999           // parts of a bundle
	ListSuffix = ".parts.json" // of the list beside the parts
	// MaxList exceeds the size of a list of 999 records of maximal length.
	MaxList = 256 << 10
)

// An Error names a missing or damaged file of a bundle in parts. It matches format.ErrDamaged.
type Error struct {
	Part   string        // the file's path
	Reason string        // the problem, as a phrase
	Err    error         // the cause, or nil
	absent bool          // the file does not exist
	got    digest.Digest // the content's, if it is not that in parts.json
}

// Error names the file and the reason.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("part %s: %s: %v", e.Part, e.Reason, e.Err)
	}
	return fmt.Sprintf("part %s: %s", e.Part, e.Reason)
}

// Is makes every Error match format.ErrDamaged, and fs.ErrNotExist where the file is missing.
func (e *Error) Is(target error) bool {
	return target == format.ErrDamaged || e.absent && target == fs.ErrNotExist
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *Error) Hint() string {
	return "copy " + filepath.Base(e.Part) +
		" again from where the bundle was built, and check all parts with kkbundle parts verify"
}

// Name returns the name of a part of the bundle with base name base, counted from 1.
func Name(base string, number int) string { return fmt.Sprintf("%s.%03d", base, number) }

var partGrammar = regexp.MustCompile(`^(.+)\.([0-9]{3})$`)

// parsePartName is the reverse of Name.
func parsePartName(path string) (base string, number int, ok bool) {
	m := partGrammar.FindStringSubmatch(path)
	if m == nil || m[2] == "000" {
		return "", 0, false
	}
	number, err := strconv.Atoi(m[2])
	return m[1], number, err == nil
}

// Locate reports whether path means a bundle in parts, and returns its base name. path may be any part's name, that of
// parts.json, or the base name itself if no such file exists.
func Locate(path string) (base string, parts bool) {
	if base, ok := strings.CutSuffix(path, ListSuffix); ok && base != "" {
		return base, true
	}
	if base, _, ok := parsePartName(path); ok {
		return base, strings.HasSuffix(base, ".kkb") || strings.HasSuffix(base, ".kkb.age") || inParts(base)
	}
	return path, !exists(path) && inParts(path)
}

// inParts reports whether a bundle in parts, or a remainder of one, has that base name.
func inParts(base string) bool { return exists(base+ListSuffix) || exists(Name(base, 1)) }

// CheckTarget returns an error if no bundle may be written to path, in one file or in parts. A bundle in the other form
// must not exist there, since path would be ambiguous.
func CheckTarget(path string, parts bool) error {
	switch {
	case parts && exists(path):
		return fmt.Errorf("%s exists as one file: remove it, or choose another path for the parts", path)
	case !parts && inParts(path):
		return fmt.Errorf("%s exists in parts (%s and others): remove them, or choose another path for the file", path,
			filepath.Base(Name(path, 1)))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// An Info is the record of a part in parts.json.
type Info struct {
	Size int64
	Sum  format.Sum
}

// A List is the content of NAME.kkb.parts.json.
type List []Info

func (l List) size() (n int64) {
	for _, p := range l {
		n += p.Size
	}
	return n
}

// Marshal returns the canonical JSON.
func (l List) Marshal() []byte {
	b := strconv.AppendInt([]byte(`{"version":1,"size":`), l.size(), 10)
	b = append(b, `,"parts":[`...)
	for i, p := range l {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"size":`...), p.Size, 10)
		b = append(append(append(b, `,"sha256":"`...), p.Sum.Hex()...), `"}`...)
	}
	return append(b, "]}"...)
}

// ParseList reads the content of a NAME.kkb.parts.json of at most MaxList bytes.
func ParseList(data []byte) (List, error) {
	if len(data) > MaxList {
		return nil, fmt.Errorf("the list of parts has more than %d bytes", MaxList)
	}
	return parsePartList(data)
}

// parsePartList refuses every byte that Marshal would not write.
func parsePartList(data []byte) (List, error) {
	s := format.NewScanner(data)
	s.Lit(`{"version":`)
	if v := s.Integer(1 << 31); s.Err == nil && v != 1 {
		return nil, &format.UnsupportedError{Feature: fmt.Sprintf("version %d of parts.json", v)}
	}
	s.Lit(`,"size":`)
	size := s.Integer(format.MaxSize)
	s.Lit(`,"parts":[`)
	var l List
	for s.Err == nil && !s.Has("]") {
		if len(l) > 0 {
			s.Lit(",")
		}
		if len(l) == Max {
			return nil, fmt.Errorf("more than %d parts", Max)
		}
		var p Info
		s.Lit(`{"size":`)
		p.Size = s.Integer(format.MaxSize)
		s.Lit(`,"sha256":"`)
		p.Sum = s.HexSum()
		s.Lit(`"}`)
		if s.Err == nil && p.Size == 0 {
			return nil, fmt.Errorf("part %d is empty", len(l)+1)
		}
		l = append(l, p)
	}
	s.Lit("}")
	if err := s.End(); err != nil {
		return nil, err
	}
	if len(l) == 0 || l.size() != size {
		return nil, fmt.Errorf("the parts have %d bytes in total instead of %d", l.size(), size)
	}
	return l, nil
}

// readPartList reads NAME.kkb.parts.json. It returns nil without an error if the file is missing.
func readPartList(base string) (List, error) {
	name := base + ListSuffix
	refuse := func(err error) error {
		return &Error{Part: name, Reason: "unusable: delete the file to read the parts without it", Err: err}
	}
	f, err := OpenRegular(name)
	if errors.Is(err, fs.ErrNotExist) && !exists(name) {
		return nil, nil
	}
	if err != nil {
		return nil, refuse(err)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxList+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, refuse(err)
	}
	if len(data) > MaxList {
		return nil, refuse(fmt.Errorf("more than %d bytes", MaxList))
	}
	l, err := parsePartList(data)
	if errors.Is(err, format.ErrUnsupported) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		return nil, refuse(err)
	}
	return l, nil
}

// errNotRegular is the error for a path that is not a regular file.
var errNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file, but no pipe or device: opening one may block for ever.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return os.Open(path)
}
