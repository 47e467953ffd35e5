package bundle

import (
	"fmt"

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

// A MissingError names a missing blob that an item needs.
type MissingError struct {
	Digest digest.Digest
	Item   string // "kind ref" of one item that needs the blob
}

// Error names the blob and the item.
func (e *MissingError) Error() string {
	return fmt.Sprintf("blob %s of %s is missing", e.Digest, e.Item)
}
