package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/plain"
)

// openBundle opens a bundle, a file or parts, and checks its signature before reading more. It prints warnings about missing files that
// are not essential. Commands open bundles only here and in openStream.
func (g *globals) openBundle(path string) (*bundle.Reader, error) {
	if err := usage.CheckFile(path); err != nil {
		return nil, err
	}
	r, err := g.openUnchecked(path)
	if errors.Is(err, fs.ErrNotExist) && !exists(path) {
		return nil, fmt.Errorf("bundle %s: %w", path, usage.FileError(err))
	}
	if err != nil {
		return nil, err
	}
	for _, w := range r.Warnings() {
		if g.Watched() {
			g.Logger().Warn("a file of the bundle is missing", "reason", w)
		}
		g.Note("warning: %s", plain.Line(w))
	}
	if _, err := g.checkTrust(path, r.Index()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// openUnchecked opens a bundle whose signature does not matter.
func (g *globals) openUnchecked(path string) (*bundle.Reader, error) {
	return bundle.OpenWith(path, g.keysFor(path))
}

// openStream opens a bundle from a pipe and checks its signature before reading the content.
func (g *globals) openStream(ctx context.Context, path string, pipe io.Reader, jobs int) (*bundle.Stream, error) {
	s, err := bundle.NewStream(ctx, pipe, jobs)
	if err != nil {
		return nil, err
	}
	if _, err := g.checkTrust(path, s.Index()); err != nil {
		return nil, err
	}
	return s, nil
}

// openSite opens the site and the bundle; path is "" without a bundle.
func (g *globals) openSite(ctx context.Context, f site.Flags, path string) (*site.Site, error) {
	return site.Open(ctx, g.Console, f, func() (*bundle.Reader, error) {
		if path == "" {
			return nil, nil //nolint:nilnil // there is no bundle
		}
		return g.openBundle(path)
	})
}

// standardStream names standard input or output instead of a file.
const standardStream = "-"

// openPipe opens standard input for "-", or a named pipe. It returns nil for anything else. The caller closes it. An encrypted
// bundle is decrypted while it is read.
func (g *globals) openPipe(path string) (io.ReadCloser, error) {
	pipe, err := g.openRawPipe(path)
	if pipe == nil || err != nil {
		return nil, err
	}
	return decryptedPipe{bundle.Decrypt(pipe, g.keysFor(path)), pipe}, nil
}

// A decryptedPipe reads the content of a bundle and closes its pipe.
type decryptedPipe struct {
	io.Reader
	io.Closer
}

// openRawPipe is openPipe without decryption.
func (g *globals) openRawPipe(path string) (io.ReadCloser, error) {
	if path == standardStream {
		if terminal.IsTerminal(g.In) {
			return nil, usage.Errorf("a bundle is read from a pipe, not from a terminal: kkbundle ... - < FILE, or name the file")
		}
		return io.NopCloser(g.In), nil
	}
	if !isNamedPipe(path) {
		return nil, nil //nolint:nilnil // it is a file
	}
	return os.Open(path)
}

// isNamedPipe reports whether path is a named pipe; false if it does not exist.
func isNamedPipe(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0
}
