package cli

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	deltaSuffix  = ".kkd"
	packSuffix   = ".kkp"
	bundleSuffix = ".kkb"
	chainSign    = "+"
)

// A chain names a bundle by an older one and deltas: OLD.kkb+a.kkd+b.kkd. A pack, x.kkp, may be in OLD's place.
type chain struct {
	old    string // "" if the first delta is a pack
	deltas []string
}

// parseChain reports whether text names a chain. Names of files may contain the sign: a file that exists is no chain,
// and a name ends where it has its suffix.
func parseChain(text string) (c chain, ok bool) {
	if !strings.HasSuffix(text, deltaSuffix) && !strings.HasSuffix(text, packSuffix) ||
		exists(text) && !strings.HasSuffix(text, packSuffix) {
		return c, false
	}
	var names []string
	name := ""
	for part := range strings.SplitSeq(text, chainSign) {
		name += part
		if named(name, len(names) == 0) {
			names = append(names, name)
			name = ""
			continue
		}
		name += chainSign
	}
	switch {
	case name != "" || len(names) == 0:
		return c, false
	case strings.HasSuffix(names[0], packSuffix):
		return chain{deltas: names}, true
	case len(names) == 1:
		return c, false
	}
	return chain{names[0], names[1:]}, true
}

// named reports whether a name in a chain is complete.
func named(name string, first bool) bool {
	if !first {
		return strings.HasSuffix(name, deltaSuffix)
	}
	_, inParts := parts.Locate(name)
	return inParts || strings.HasSuffix(name, bundleSuffix) || strings.HasSuffix(name, packSuffix) ||
		strings.HasSuffix(name, bundleSuffix+bundle.EncryptedSuffix) || exists(name)
}

// result returns the name that the bundle would have as a file; its signatures are beside it.
func (c chain) result() string {
	last := c.deltas[len(c.deltas)-1]
	return strings.TrimSuffix(strings.TrimSuffix(last, deltaSuffix), packSuffix) + bundleSuffix
}

// sidecarBase returns the name of a bundle to which the suffixes of its signatures are appended.
func sidecarBase(path string) string {
	if c, ok := parseChain(path); ok {
		return c.result()
	}
	return path
}

// openChain opens the bundle that a chain makes, without writing it.
func (g *globals) openChain(ctx context.Context, c chain) (*bundle.Reader, error) {
	o := delta.Options{Scratch: os.TempDir()}
	need := int64(0)
	for _, path := range c.deltas {
		h, err := delta.ReadHead(path)
		if err != nil {
			return nil, usage.FileError(err)
		}
		need += h.Scratch()
	}
	if c.old != "" {
		r, err := g.openUnchecked(c.old) // NEW's signature covers all that is used
		if err != nil {
			return nil, err
		}
		o.Old = &bundle.From{Name: c.old, Reader: r}
	}
	g.Note("%s is read, not written: its new blobs need up to %s of temporary files in %s", plain.Line(c.result()),
		plain.Size(need), o.Scratch)
	progress, stop := g.Phases()
	o.Progress = progress
	r, err := delta.Open(ctx, o, c.deltas...)
	stop()
	if err != nil {
		return nil, errors.Join(err, closeBundles(o.Old))
	}
	return r, nil
}
