package cache

import (
	"fmt"
	"io/fs"

	"github.com/opencontainers/go-digest"
)

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

// An EntryError means the cache's copy of a blob is damaged. The remedy is Cache.DropDamaged and fetching the blob
// again.
type EntryError struct {
	Digest digest.Digest
	Path   string
	Reason string

	site site
	file fs.FileInfo // the file as found
}

// Error names the blob, its file and the remedy.
func (e *EntryError) Error() string {
	return fmt.Sprintf("damaged cache entry of blob %s: %s: remove %s and fetch it again", e.Digest, e.Reason, e.Path)
}
