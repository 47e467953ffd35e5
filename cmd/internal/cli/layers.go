package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/encoders"
	"github.com/kkbundle/kkbundle/bundle/regzip"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// layersResult is the JSON output of inspect --layers.
type layersResult struct {
	Version  int              `json:"version"` // 1
	Digest   digest.Digest    `json:"digest"`
	Encoders []encoderResult  `json:"encoders"` // by size
	Unknown  []inspectedLayer `json:"unknown"`  // gzip streams that no known encoder makes
}

type encoderResult struct {
	Encoder regzip.ID `json:"encoder"` // "" for gzip streams that no known encoder makes
	Blobs   int       `json:"blobs"`
	Size    int64     `json:"size"` // bytes
}

type inspectedLayer struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// openLayers opens a bundle whose content is read. A published one comes to the cache.
func (g *globals) openLayers(ctx context.Context, path string, login loginFlags) (*bundle.Reader, error) {
	if usage.IsAddress(path) {
		return g.openPublished(ctx, inRegistry{address: path, scratch: os.TempDir()}, login)
	}
	return g.openAny(ctx, path)
}

// runInspectLayers finds the encoder of each gzip stream of a bundle.
func runInspectLayers(ctx context.Context, g *globals, path string, login loginFlags) error {
	r, err := g.openLayers(ctx, path, login)
	if err != nil {
		return err
	}
	defer r.Close()
	record := openEncoders()
	found, err := g.identifyLayers(ctx, r, record)
	g.noteUnrecorded(record)
	if err != nil {
		return err
	}
	result := layersResult{Version: 1, Digest: r.Digest(), Encoders: []encoderResult{}, Unknown: []inspectedLayer{}}
	var known, all int64
	for _, l := range found {
		at := slices.IndexFunc(result.Encoders, func(e encoderResult) bool { return e.Encoder == l.encoder })
		if at < 0 {
			at = len(result.Encoders)
			result.Encoders = append(result.Encoders, encoderResult{Encoder: l.encoder})
		}
		result.Encoders[at].Blobs++
		result.Encoders[at].Size += l.Size
		all += l.Size
		if l.encoder == "" {
			result.Unknown = append(result.Unknown, inspectedLayer{l.Digest, l.Size})
		} else {
			known += l.Size
		}
	}
	slices.SortFunc(result.Encoders, func(a, b encoderResult) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Encoder, b.Encoder))
	})
	if g.JSON {
		return g.PrintJSON(result)
	}
	return g.printLayers(result, known, all)
}

func (g *globals) printLayers(r layersResult, known, all int64) error {
	rows := make([][]string, 0, len(r.Encoders))
	for _, e := range r.Encoders {
		rows = append(rows, []string{cmp.Or(string(e.Encoder), "unknown"), fmt.Sprint(e.Blobs), plain.Size(e.Size)})
	}
	if err := g.PrintTable([]string{"ENCODER", "BLOBS", "SIZE"}, rows); err != nil {
		return err
	}
	if all == 0 {
		g.Note("no blob is a gzip stream")
		return nil
	}
	g.Note("%s of %s in gzip streams can be made again from their content (%d %%)", plain.Size(known), plain.Size(all),
		known*100/all)
	for _, l := range r.Unknown {
		g.Note("unknown encoder: %s, %s", shortDigest(l.Digest.String()), plain.Size(l.Size))
	}
	return nil
}

type identifiedLayer struct {
	ocispec.Descriptor
	gzip    bool
	encoder regzip.ID
}

// openEncoders opens the record of encoders in the cache.
func openEncoders() *encoders.Record {
	dir, err := cacheDir("")
	if err != nil {
		return &encoders.Record{} // no home directory; the record only saves time
	}
	return encoders.Open(dir)
}

// noteUnrecorded warns if the record could not be read or written.
func (g *globals) noteUnrecorded(r *encoders.Record) {
	if err := r.Err(); err != nil {
		g.Note("warning: the encoders of layers are not remembered: %s", plain.Line(err.Error()))
	}
}

// identifyLayers returns the gzip streams of a bundle with their encoders. Streams in the record are not read.
func (g *globals) identifyLayers(ctx context.Context, r *bundle.Reader,
	record *encoders.Record,
) ([]identifiedLayer, error) {
	blobs := r.Blobs()
	all := make([]identifiedLayer, len(blobs))
	var total int64
	for i, b := range blobs {
		all[i].Descriptor = b
		total += b.Size
	}
	m := g.NewMeter("identify")
	defer m.Stop()
	var mu sync.Mutex
	var done int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range all {
		group.Go(func() (err error) {
			l := &all[i]
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				done += l.Size
				m.Set(done, total)
			}()
			if l.encoder, l.gzip = record.Lookup(l.Digest); l.gzip {
				return nil
			}
			open := func() (io.ReadCloser, error) { return r.Unhashed(ctx, l.Digest, 0) }
			if l.gzip, err = regzip.IsGzip(open); err != nil || !l.gzip {
				return err
			}
			recipe, _, err := record.Identify(ctx, l.Digest, open)
			l.encoder = recipe.Encoder
			return err
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(all, func(l identifiedLayer) bool { return !l.gzip }), err
}
