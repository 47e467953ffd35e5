package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/opencontainers/go-digest"
)

// ErrDamaged is what errors.Is finds in every error that says the bytes of a bundle are not what they should be.
var ErrDamaged = errors.New("the bundle is damaged")

// ErrUnsupported is what errors.Is finds where a bundle needs a feature or a format version this program does not have.
var ErrUnsupported = errors.New("the bundle needs a newer kkbundle")

// A DamageError is one place of a bundle that is wrong. errors.Is(err, ErrDamaged) holds for it.
type DamageError struct {
	Blob   digest.Digest // the blob it concerns, "" if it is about the structure
	Offset int64         // byte offset in the bundle of the frame concerned, -1 where there is none
	Part   string        // the file of a bundle in parts that Offset lies in, "" if not known
	Items  []string      // "kind ref" of the items that need the blob, as far as they are known; set by Verify
	Reason string        // what is wrong, as a phrase
	Err    error         // the cause, if there is one below
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

// An UnsupportedError names what a bundle needs and this program lacks. errors.Is(err, ErrUnsupported) holds for it.
type UnsupportedError struct {
	Feature string // "format version 2", or a name out of the directory's "requires"
}

// Error names the feature and the remedy.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("the bundle needs %s, which this kkbundle does not have: use a newer kkbundle", e.Feature)
}

// Is makes every UnsupportedError match ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// A MismatchError says that what was written to the cache is not what was promised. Nothing was kept under the digest.
type MismatchError struct {
	Want, Got         digest.Digest // Want is "" where only the size was promised
	WantSize, GotSize int64         // WantSize is -1 where no size was promised
}

// Error says which of size and digest differs, both as promised and as received.
func (e *MismatchError) Error() string {
	if e.WantSize >= 0 && e.WantSize != e.GotSize {
		return fmt.Sprintf("wrong size: promised %d bytes, received %d", e.WantSize, e.GotSize)
	}
	return fmt.Sprintf("wrong digest: promised %s, received %s", e.Want, e.Got)
}

// A CacheError says that the cache's copy of a blob is damaged. The remedy is Cache.DropDamaged and fetching it again.
type CacheError struct {
	Digest digest.Digest
	Path   string
	Reason string

	site cacheSite
	file fs.FileInfo // as it was found
}

// Error names the blob, its file and the remedy.
func (e *CacheError) Error() string {
	return fmt.Sprintf("damaged cache entry of blob %s: %s: remove %s and fetch it again", e.Digest, e.Reason, e.Path)
}

// A MissingError names a blob that an item needs and that is not there.
type MissingError struct {
	Digest digest.Digest
	Item   string // "kind ref" of one item that needs it
}

// Error names the blob and the item.
func (e *MissingError) Error() string {
	return fmt.Sprintf("blob %s of %s is missing", e.Digest, e.Item)
}

// damage makes a DamageError about the structure, not about one blob.
func damage(offset int64, format string, args ...any) *DamageError {
	return &DamageError{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
