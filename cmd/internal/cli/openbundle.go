package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// openBundle opens a bundle, a file or parts, and checks its signature before reading more. It prints warnings about
// missing files that are not essential. Commands open bundles only here, in openAny and in openStream.
func (g *globals) openBundle(path string) (*bundle.Reader, error) {
	if c, ok := parseChain(path); ok {
		return nil, usage.Errorf(
			"%s is a bundle without a file: write it with kkbundle patch or unpack first (push, install, upgrade, verify, inspect and diff take it as it is)",
			plain.Line(c.result()))
	}
	r, err := g.openUnchecked(path)
	if err != nil {
		return nil, err
	}
	r, _, err = g.signedBundle(path, r)
	return r, err
}

// openAny is openBundle for commands that read a bundle in place: also one that a chain of deltas makes.
func (g *globals) openAny(ctx context.Context, path string) (*bundle.Reader, error) {
	r, _, err := g.openSigned(ctx, path)
	return r, err
}

// openAccepted is openAny for commands that put a bundle to use: on hosts, in a registry, for clients. A signed
// bundle is recorded as accepted, and one that is older than the last of its name is refused.
func (g *globals) openAccepted(ctx context.Context, path string) (*bundle.Reader, error) {
	r, by, err := g.openSigned(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := g.accept(path, r.Index(), by); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (g *globals) openSigned(ctx context.Context, path string) (*bundle.Reader, *signed, error) {
	r, err := g.openInPlace(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	return g.signedBundle(path, r)
}

// openInPlace opens a bundle in any form, before its signature is checked.
func (g *globals) openInPlace(ctx context.Context, path string) (*bundle.Reader, error) {
	if c, ok := parseChain(path); ok {
		return g.openChain(ctx, c)
	}
	return g.openUnchecked(path)
}

// signedBundle checks the signature of a bundle, and closes the bundle after an error.
func (g *globals) signedBundle(path string, r *bundle.Reader) (*bundle.Reader, *signed, error) {
	for _, w := range r.Warnings() {
		if g.Watched() {
			g.Logger().Warn("a file of the bundle is missing", "reason", w)
		}
		g.Note("warning: %s", plain.Line(w))
	}
	by, err := g.checkTrust(sidecarBase(path), r.Index())
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return r, by, nil
}

// openUnchecked opens a file or parts whose signature does not matter yet.
func (g *globals) openUnchecked(path string) (*bundle.Reader, error) {
	if err := usage.CheckFile(path); err != nil {
		return nil, err
	}
	r, err := bundle.OpenWith(path, g.keysFor(path))
	if errors.Is(err, fs.ErrNotExist) && !exists(path) {
		return nil, fmt.Errorf("bundle %s: %w", path, usage.FileError(err))
	}
	if info, statErr := os.Stat(path); err != nil && statErr == nil && info.IsDir() {
		return nil, &noBundleError{path: path, what: "a directory", directory: true}
	}
	if errors.Is(err, bundle.ErrDamaged) {
		if other := otherFile(path); other != nil {
			return nil, other
		}
	}
	return r, err
}

// openStream opens a bundle from a pipe and checks its signature before reading the content. It is recorded as in
// openAccepted.
func (g *globals) openStream(ctx context.Context, path string, pipe io.Reader, jobs int) (*bundle.Stream, error) {
	s, err := bundle.NewStream(ctx, pipe, jobs)
	if err != nil {
		return nil, err
	}
	by, err := g.checkTrust(path, s.Index())
	if err == nil {
		err = g.accept(bundleName(path), s.Index(), by)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openSite opens the site and the bundle; path is "" without a bundle.
func (g *globals) openSite(ctx context.Context, f site.Flags, path string) (*site.Site, error) {
	return g.siteWith(ctx, f, path, g.openAny)
}

// openAcceptedSite is openSite for commands that bring the bundle's content onto hosts, see openAccepted.
func (g *globals) openAcceptedSite(ctx context.Context, f site.Flags, path string) (*site.Site, error) {
	return g.siteWith(ctx, f, path, g.openAccepted)
}

func (g *globals) siteWith(ctx context.Context, f site.Flags, path string,
	open func(context.Context, string) (*bundle.Reader, error),
) (*site.Site, error) {
	return site.Open(ctx, g.Console, f, func() (*bundle.Reader, error) {
		if path == "" {
			return nil, nil //nolint:nilnil // there is no bundle
		}
		return open(ctx, path)
	})
}

// runOnSite opens the site and the bundle, runs a verb on the hosts and prints its outcome.
func (g *globals) runOnSite(ctx context.Context, f site.Flags, path string, dryRun bool,
	verb func(engine.Options) (engine.Report, error),
) (err error) {
	s, err := g.openSite(ctx, f, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.DryRun, options.Progress = dryRun, p.Event
	report, err := verb(options)
	p.Close()
	if err != nil {
		return err
	}
	g.NoteOutcome(report, dryRun)
	return nil
}

// standardStream names standard input or output instead of a file.
const standardStream = "-"

// openPipe opens standard input for "-", or a named pipe. It returns nil for anything else. The caller closes it. An
// encrypted bundle is decrypted while it is read.
func (g *globals) openPipe(path string) (io.ReadCloser, error) {
	pipe, err := g.openRawPipe(path)
	if pipe == nil || err != nil {
		return nil, err
	}
	return decryptedPipe{agefile.Decrypt(pipe, g.keysFor(path)), pipe}, nil
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
			return nil, usage.Errorf(
				"a bundle is read from a pipe, not from a terminal: kkbundle ... - < FILE, or name the file")
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
