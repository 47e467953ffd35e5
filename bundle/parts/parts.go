package bundle

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
)

const (
	maxParts    = 999
	partsSuffix = ".parts.json"
	// maxPartsJSON exceeds the size of 999 records of maximal length.
	maxPartsJSON = 256 << 10
)

// A PartError names a missing or damaged file of a bundle in parts. It matches ErrDamaged.
type PartError struct {
	Part   string // the file's path
	Reason string // the problem, as a phrase
	Err    error  // the cause, or nil
	absent bool   // the file does not exist
}

// Error names the file and the reason.
func (e *PartError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("part %s: %s: %v", e.Part, e.Reason, e.Err)
	}
	return fmt.Sprintf("part %s: %s", e.Part, e.Reason)
}

// Is makes every PartError match ErrDamaged, and fs.ErrNotExist where the file is missing.
func (e *PartError) Is(target error) bool {
	return target == ErrDamaged || e.absent && target == fs.ErrNotExist
}

// Unwrap returns the cause.
func (e *PartError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *PartError) Hint() string {
	return "copy " + filepath.Base(e.Part) + " again from where the bundle was built, and check all parts with kkbundle parts verify"
}

// PartName returns the name of a part of the bundle with base name base, counted from 1.
func PartName(base string, number int) string { return fmt.Sprintf("%s.%03d", base, number) }

var partGrammar = regexp.MustCompile(`^(.+)\.([0-9]{3})$`)

// parsePartName is the reverse of partName.
func parsePartName(path string) (base string, number int, ok bool) {
	m := partGrammar.FindStringSubmatch(path)
	if m == nil || m[2] == "000" {
		return "", 0, false
	}
	number, err := strconv.Atoi(m[2])
	return m[1], number, err == nil
}

// locate reports whether path means a bundle in parts, and returns its base name. path may be any part's name, that of
// parts.json, or the base name itself if no such file exists.
func locate(path string) (base string, parts bool) {
	if base, ok := strings.CutSuffix(path, partsSuffix); ok && base != "" {
		return base, true
	}
	if base, _, ok := parsePartName(path); ok {
		return base, strings.HasSuffix(base, ".kkb") || inParts(base)
	}
	return path, !exists(path) && inParts(path)
}

// inParts reports whether a bundle in parts, or a remainder of one, has that base name.
func inParts(base string) bool { return exists(base+partsSuffix) || exists(PartName(base, 1)) }

// CheckTarget returns an error if no bundle may be written to path, in one file or in parts. A bundle in the other form
// must not exist there, since path would be ambiguous.
func CheckTarget(path string, parts bool) error {
	switch {
	case parts && exists(path):
		return fmt.Errorf("%s exists as one file: remove it, or choose another path for the parts", path)
	case !parts && inParts(path):
		return fmt.Errorf("%s exists in parts (%s and others): remove them, or choose another path for the file", path, filepath.Base(PartName(path, 1)))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// A partInfo is the record of a part in parts.json.
type partInfo struct {
	size int64
	sum  sum
}

// A partList is the content of NAME.kkb.parts.json.
type partList []partInfo

func (l partList) size() (n int64) {
	for _, p := range l {
		n += p.size
	}
	return n
}

// marshal returns the canonical JSON.
func (l partList) marshal() []byte {
	b := strconv.AppendInt([]byte(`{"version":1,"size":`), l.size(), 10)
	b = append(b, `,"parts":[`...)
	for i, p := range l {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"size":`...), p.size, 10)
		b = append(append(append(b, `,"sha256":"`...), p.sum.hex()...), `"}`...)
	}
	return append(b, "]}"...)
}

// parsePartList refuses every byte that marshal would not write.
func parsePartList(data []byte) (partList, error) {
	s := newScanner(data)
	s.lit(`{"version":`)
	if v := s.integer(1 << 31); s.err == nil && v != 1 {
		return nil, &UnsupportedError{Feature: fmt.Sprintf("version %d of parts.json", v)}
	}
	s.lit(`,"size":`)
	size := s.integer(maxSize)
	s.lit(`,"parts":[`)
	var l partList
	for s.err == nil && !s.has("]") {
		if len(l) > 0 {
			s.lit(",")
		}
		if len(l) == maxParts {
			return nil, fmt.Errorf("more than %d parts", maxParts)
		}
		var p partInfo
		s.lit(`{"size":`)
		p.size = s.integer(maxSize)
		s.lit(`,"sha256":"`)
		p.sum = s.hexSum()
		s.lit(`"}`)
		if s.err == nil && p.size == 0 {
			return nil, fmt.Errorf("part %d is empty", len(l)+1)
		}
		l = append(l, p)
	}
	s.lit("}")
	if err := s.end(); err != nil {
		return nil, err
	}
	if len(l) == 0 || l.size() != size {
		return nil, fmt.Errorf("the parts have %d bytes in total instead of %d", l.size(), size)
	}
	return l, nil
}

// readPartList reads NAME.kkb.parts.json. It returns nil without an error if the file is missing.
func readPartList(base string) (partList, error) {
	name := base + partsSuffix
	refuse := func(err error) error {
		return &PartError{Part: name, Reason: "unusable: delete the file to read the parts without it", Err: err}
	}
	f, err := openRegular(name)
	if errors.Is(err, fs.ErrNotExist) && !exists(name) {
		return nil, nil
	}
	if err != nil {
		return nil, refuse(err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPartsJSON+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, refuse(err)
	}
	if len(data) > maxPartsJSON {
		return nil, refuse(fmt.Errorf("more than %d bytes", maxPartsJSON))
	}
	l, err := parsePartList(data)
	if errors.Is(err, ErrUnsupported) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		return nil, refuse(err)
	}
	return l, nil
}

// errNotRegular is the error for a path that is not a regular file.
var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file, but no pipe or device: opening one may block for ever.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return os.Open(path)
}
