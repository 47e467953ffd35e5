package bundle

import (
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// A Descent bounds a walk over the indexes below a root. A hostile index can name the same child many times, so that
// the number of paths grows exponentially with the nesting; a Descent enters each document once. It also refuses
// indexes that are nested too deep, and too many references. The zero value is ready.
type Descent struct {
	entered    map[digest.Digest]bool
	references int
}

// Enter reports whether to read a document, at depth 0 for the root: false if the walk has already entered it.
func (d *Descent) Enter(document digest.Digest, depth int) (bool, error) {
	if depth > maxDepth {
		return false, fmt.Errorf("indexes are nested more than %d deep", maxDepth)
	}
	if d.entered[document] {
		return false, nil
	}
	if d.entered == nil {
		d.entered = make(map[digest.Digest]bool)
	}
	d.entered[document] = true
	return true, nil
}

// Count adds the references of a document.
func (d *Descent) Count(references int) error {
	if d.references += references; d.references > maxChildren {
		return fmt.Errorf("the indexes have more than %d references", maxChildren)
	}
	return nil
}

// DecodeManifest decodes an index, a manifest or an image's configuration. It refuses documents that would take far
// more memory than their text.
func DecodeManifest(data []byte, into any) error {
	return capped.JSON(data, maxValues, into)
}
