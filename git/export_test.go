package git

import "io"

// Diff and Patch are for tests.
func Diff(base, target []byte) []byte { return diff(base, target) }

// Patch applies a delta.
func Patch(base, delta []byte) ([]byte, error) { return patch(base, delta, maxDelta) }

// MaxPack bounds the bytes of a pack.
const MaxPack = maxPack

// PackFrom writes an object into a pack that has so many bytes already.
func PackFrom(at int64) error {
	p := newPackWriter(io.Discard, 1)
	p.at = at
	return p.object(ID{1}, Blob, make([]byte, 100))
}

// Work calls what a received pack calls for each delta.
func (p *Received) Work(n int) error { return p.patched(n) }

// Large reports whether the last large object of a chain is remembered.
func Large() bool {
	o := newObjects(nil, 0, nil)
	o.remember(&content{at: 100, data: make([]byte, maxHeld)})
	return o.remembered(100) != nil && o.held == 0
}
