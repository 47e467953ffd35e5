package bundle

import (
	"fmt"
	"io/fs"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// ErrDamaged matches, with errors.Is, every error about wrong bytes in a bundle.
var ErrDamaged = format.ErrDamaged

// ErrUnsupported matches, with errors.Is, errors about a bundle that needs a feature or format version unknown to this
// program.
var ErrUnsupported = format.ErrUnsupported

// A DamageError is one damaged place of a bundle. It matches ErrDamaged.
type DamageError = format.DamageError

// An UnsupportedError names a feature that a bundle needs and this program lacks. It matches ErrUnsupported.
type UnsupportedError = format.UnsupportedError

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
