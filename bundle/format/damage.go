package format

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
)

// ErrDamaged matches, with errors.Is, every error about wrong bytes in a bundle.
var ErrDamaged = errors.New("the bundle is damaged")

// ErrUnsupported matches, with errors.Is, errors about a bundle that needs a feature or format version unknown to this
// program.
var ErrUnsupported = errors.New("the bundle needs a newer kkbundle")

// A DamageError is one damaged place of a bundle. It matches ErrDamaged.
type DamageError struct {
	Blob   digest.Digest // the blob concerned, "" if the error is about the structure
	Offset int64         // byte offset in the bundle of the frame concerned, -1 if none
	Part   string        // the file of a bundle in parts that holds Offset, "" if unknown
	Items  []string      // "kind ref" of the items that need the blob, as far as known; set by Verify
	Reason string        // the problem, as a phrase
	Err    error         // the cause, or nil
}

// Error names the blob, the place and the reason in one line.
func (e *DamageError) Error() string {
	var b strings.Builder
	b.WriteString("damaged bundle: ")
	if e.Blob != "" {
		fmt.Fprintf(&b, "blob %s: ", e.Blob)
	}
	b.WriteString(e.Reason)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	switch {
	case e.Offset >= 0 && e.Part != "":
		fmt.Fprintf(&b, " (at byte %d of the bundle, in %s)", e.Offset, e.Part)
	case e.Offset >= 0:
		fmt.Fprintf(&b, " (at byte %d of the file)", e.Offset)
	}
	if len(e.Items) > 0 {
		fmt.Fprintf(&b, "; part of %s", strings.Join(e.Items, ", "))
	}
	return b.String()
}

// Is makes every DamageError match ErrDamaged.
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Err }

// An UnsupportedError names a feature that a bundle needs and this program lacks. It matches ErrUnsupported.
type UnsupportedError struct {
	Feature string // "format version 2", or a name from the directory's "requires"
}

// Error names the feature and the remedy.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("the bundle needs %s, which this version of kkbundle does not support: use a newer kkbundle",
		e.Feature)
}

// Is makes every UnsupportedError match ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// Damage returns a DamageError about the structure, not about one blob.
func Damage(offset int64, format string, args ...any) *DamageError {
	return &DamageError{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
