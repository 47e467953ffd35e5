package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// deltaGC has the collector run when the heap has grown by a fifth. The heap is large buffers without pointers: a
// collection costs little, and frees much.
const deltaGC = 20

func newDeltaCmd(g *globals) *cobra.Command {
	var f deltaFiles
	cmd := &cobra.Command{
		Use:   "delta OLD NEW -o DELTA",
		Short: "Make a small update from one bundle to another",
		Long: `Writes the difference between two bundles. At a site that has OLD, kkbundle patch makes NEW from it, byte for byte,
so that NEW's digest and signatures stay valid; carry the signature file beside the delta.

What happens: layers are unpacked and compared file by file, across images. The delta is applied once before it gets
its name. Temporary files, about as large as both bundles unpacked, lie beside the output.

OLD may also be a published bundle, oci://HOST/PATH[:TAG], or a file of kkbundle inspect --listing: its content is not
read, and the delta carries the blobs that OLD lacks, compressed as by pack. At the site, patch needs OLD itself.

NEW must have been written by this version of kkbundle, and patch must be of the same version. A layer that no known
encoder makes is carried whole; see inspect --layers. Encrypted bundles are refused: a delta is in clear. An existing
file is replaced if it is a delta between the same bundles; any other needs --force. Guide: docs/site/updates.md.`,
		Example: `  kkbundle delta site-1.4.0.kkb site-1.5.0.kkb -o site-1.5.0.kkd
  kkbundle patch site-1.4.0.kkb site-1.5.0.kkd -o site-1.5.0.kkb
  kkbundle inspect --listing site-1.4.0.kkb > site-1.4.0.json     # at the site
  kkbundle delta site-1.4.0.json site-1.5.0.kkb -o site-1.5.0.kkd`,
		Args: takes("OLD", "NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.old, f.next = args[0], args[1]
			return runDelta(cmd.Context(), g, f)
		},
	}
	f.login.add(cmd.Flags())
	g.addTrust(cmd.Flags())
	f.add(cmd.Flags(), "the file to write (required)")
	return cmd
}

// A packLevel is a value of pack --level.
type packLevel string

const (
	packDefault packLevel = "default"
	packMax     packLevel = "max"
)

// program returns the path of the program that compresses at this level, or "" for the library.
func (l packLevel) program() (string, error) {
	switch l {
	case packDefault:
		return "", nil
	case packMax:
		path, err := exec.LookPath("zstd")
		if err != nil {
			return "", fmt.Errorf("--level max: %w: install the package zstd, or leave out --level", err)
		}
		return path, nil
	}
	return "", usage.Errorf("--level %q: want default or max", string(l))
}

func newPackCmd(g *globals) *cobra.Command {
	var f deltaFiles
	var level string
	cmd := &cobra.Command{
		Use:   "pack BUNDLE -o PACK",
		Short: "Make a bundle smaller for a slow line",
		Long: `Writes a bundle in a smaller form: layers unpacked, each file once across all images, similar files compressed
together. kkbundle unpack gives the bundle back, byte for byte. Both take far longer than writing the bundle: use them
for slow lines only. The rules of kkbundle delta apply.

--level max compresses with the program zstd, which must be installed here: a smaller file for about three times the
processor time. kkbundle unpack does not need the program.`,
		Example: `  kkbundle pack site-1.4.0.kkb -o site-1.4.0.kkp
  kkbundle unpack site-1.4.0.kkp -o site-1.4.0.kkb`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if f.zstd, err = packLevel(level).program(); err != nil {
				return err
			}
			f.next = args[0]
			return runDelta(cmd.Context(), g, f)
		},
	}
	g.addTrust(cmd.Flags())
	cmd.Flags().StringVar(&level, "level", string(packDefault), "compression: default, or max with the program zstd")
	// fails only for a second one
	_ = cmd.RegisterFlagCompletionFunc("level", oneOf(string(packDefault), string(packMax)))
	f.add(cmd.Flags(), "the file to write (required)")
	return cmd
}

// deltaFiles are the arguments of delta, patch, pack and unpack.
type deltaFiles struct {
	old    string // "" for a pack
	delta  string // of patch and unpack
	next   string // of delta and pack
	output string
	zstd   string     // of pack: the program that compresses, or ""
	login  loginFlags // of delta and patch, for OLD in a registry

	overwrite overwrite
}

func (f *deltaFiles) add(fs *pflag.FlagSet, output string) {
	fs.StringVarP(&f.output, "output", "o", "", output)
	f.overwrite.add(fs)
}

func (f *deltaFiles) check() error {
	switch f.output {
	case "":
		return usage.Errorf("name the file to write with -o")
	case standardStream:
		return usage.Errorf("the result is a file: name one with -o")
	case f.old, f.delta, f.next:
		return usage.Errorf("the result would replace %s: name another file with -o", f.output)
	}
	return nil
}

// deltaResult is the JSON output of delta and pack.
type deltaResult struct {
	Version  int            `json:"version"` // 1
	Path     string         `json:"path"`
	Size     int64          `json:"size"` // bytes, as are the others
	Old      digest.Digest  `json:"old,omitempty"`
	New      digest.Digest  `json:"new"`
	NewSize  int64          `json:"newSize"` // of NEW
	Blobs    int            `json:"blobs"`   // of NEW that OLD lacks
	Content  int64          `json:"content"` // of these blobs
	Rebuilt  int64          `json:"rebuilt"` // of these, gzip streams that are compressed again
	Kept     int64          `json:"kept"`    // of these, gzip streams that no known encoder makes
	Duration plain.Duration `json:"duration"`
}

func runDelta(ctx context.Context, g *globals, f deltaFiles) (err error) {
	start := time.Now()
	if err := f.check(); err != nil {
		return err
	}
	listed, err := g.listingOf(ctx, &f)
	if err != nil {
		return err
	}
	old, next, err := g.openBoth(f.old, f.next)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBundles(old, next)) }()
	record := openEncoders()
	var base digest.Digest
	if listed != nil {
		base = listed.Digest
	} else if old != nil {
		base = old.Digest()
	}
	if err := f.overwrite.delta(f.output, base, next.Digest()); err != nil {
		return err
	}
	debug.SetGCPercent(deltaGC)
	progress, stop := g.Phases()
	c, err := delta.Create(ctx, *next, delta.Options{
		Old: old, Listed: listed, Output: f.output, Zstd: f.zstd,
		Encoders: record, Progress: progress,
	})
	stop()
	g.noteUnrecorded(record)
	if err != nil {
		return err
	}
	r := deltaResult{
		Version: 1, Path: f.output, Size: c.Bytes, Old: c.Old, New: c.New, NewSize: c.Head.Size, Blobs: c.Blobs,
		Content: c.Content,
		Rebuilt: c.Rebuilt, Kept: c.Kept, Duration: plain.Duration(time.Since(start)),
	}
	if g.JSON {
		return g.PrintJSON(r)
	}
	if r.Kept > 0 {
		g.Note("%s of layers are carried whole: no known encoder makes their gzip streams", plain.Size(r.Kept))
	}
	g.Note("%s: %s for %s, %s of which are new (%s) in %s", r.Path, plain.Size(r.Size), plain.Size(r.NewSize),
		plain.Count(r.Blobs, "blob"), plain.Size(r.Content),
		r.Duration.Round(100*time.Millisecond))
	return g.Result("%s", r.New)
}

// listingOf returns the listing of OLD if its content is not here: OLD is an address in a registry, or a file of
// inspect --listing.
func (g *globals) listingOf(ctx context.Context, f *deltaFiles) (*delta.Listing, error) {
	name := f.old
	switch {
	case usage.IsAddress(name):
		r, end, err := g.openRemote(ctx, name, f.login)
		if err != nil {
			return nil, err
		}
		defer end()
		f.old = ""
		return delta.NewListing(published.Bundle{Index: ocispec.Descriptor{Digest: r.Digest()}, Blobs: r.Blobs()}), nil
	case strings.HasSuffix(name, ".json") && !strings.HasSuffix(name, parts.ListSuffix):
		data, err := builder.ReadFile(name)
		if err != nil {
			return nil, err
		}
		p, err := published.ParseListing(data)
		if err != nil {
			return nil, &builder.InputError{Err: fmt.Errorf("%s: %w: want the output of kkbundle inspect --listing",
				name, err)}
		}
		f.old = ""
		return delta.NewListing(p), nil
	}
	return nil, nil //nolint:nilnil // OLD is a bundle
}

// openBoth opens OLD, if there is one, and NEW, if there is one.
func (g *globals) openBoth(old, next string) (o, n *bundle.From, err error) {
	open := func(path string) (*bundle.From, error) {
		if path == "" {
			return nil, nil //nolint:nilnil // there is none
		}
		r, err := g.openBundle(path)
		return &bundle.From{Name: path, Reader: r}, err
	}
	if o, err = open(old); err != nil {
		return nil, nil, err
	}
	if n, err = open(next); err != nil {
		return nil, nil, errors.Join(err, closeBundles(o))
	}
	return o, n, nil
}

func closeBundles(all ...*bundle.From) (err error) {
	for _, f := range all {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
