package bundle

import (
	"errors"
	"fmt"
	"io/fs"
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
	return fmt.Sprintf("the bundle needs %s, which this version of kkbundle does not support: use a newer kkbundle", e.Feature)
}

// Is makes every UnsupportedError match ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// A MismatchError means the bytes written to the cache do not have the promised size or digest. Nothing was kept under
// the digest.
type MismatchError struct {
	Want, Got         digest.Digest // Want is "" if only the size was promised
	WantSize, GotSize int64         // WantSize is -1 if no size was promised
}

// Error names the value that differs, size or digest, as promised and as received.
func (e *MismatchError) Error() string {
	if e.WantSize >= 0 && e.WantSize != e.GotSize {
		return fmt.Sprintf("wrong size: promised %d bytes, received %d", e.WantSize, e.GotSize)
	}
	return fmt.Sprintf("wrong digest: promised %s, received %s", e.Want, e.Got)
}

// A CacheError means the cache's copy of a blob is damaged. The remedy is Cache.DropDamaged and fetching the blob
// again.
type CacheError struct {
	Digest digest.Digest
	Path   string
	Reason string

	site cacheSite
	file fs.FileInfo // the file as found
}

// Error names the blob, its file and the remedy.
func (e *CacheError) Error() string {
	return fmt.Sprintf("damaged cache entry of blob %s: %s: remove %s and fetch it again", e.Digest, e.Reason, e.Path)
}

// A MissingError names a missing blob that an item needs.
type MissingError struct {
	Digest digest.Digest
	Item   string // "kind ref" of one item that needs the blob
}

// Error names the blob and the item.
func (e *MissingError) Error() string {
	return fmt.Sprintf("blob %s of %s is missing", e.Digest, e.Item)
}

// damage returns a DamageError about the structure, not about one blob.
func damage(offset int64, format string, args ...any) *DamageError {
	return &DamageError{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
