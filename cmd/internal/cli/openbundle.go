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

// openBundle opens a bundle, in one file or in parts, and checks who signed it before anything else is read. It prints what is
// missing without keeping it from being read. Commands open bundles here and in openStream, and nowhere else.
func (g *globals) openBundle(path string) (*bundle.Reader, error) {
	if err := usage.CheckFile(path); err != nil {
		return nil, err
	}
	r, err := bundle.Open(path)
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

// openStream begins to read a bundle out of a pipe, and checks who signed it before its contents come.
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

// standardStream is what stands for standard input or output in place of a file's name.
const standardStream = "-"

// openPipe opens what can only be read once: standard input for "-", or a named pipe. It returns nil for anything else.
// Closing it is up to the caller.
func (g *globals) openPipe(path string) (io.ReadCloser, error) {
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

// isNamedPipe is false for what is not there: whoever opens it as a file says what is wrong.
func isNamedPipe(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0
}
