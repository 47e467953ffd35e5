// Package pull downloads a published bundle from a registry. It transfers only blobs that are neither in the cache
// nor in local bundles.
package pull

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A Result is a pulled bundle.
type Result struct {
	Version    int             `json:"version"` // 1
	Path       string          `json:"path"`
	Manifest   digest.Digest   `json:"manifest"` // in the registry
	Digest     digest.Digest   `json:"digest"`   // identity of the written bundle
	Size       int64           `json:"size"`     // bytes, as are the others
	Parts      int             `json:"parts,omitempty"`
	Items      int             `json:"items"`
	Blobs      int             `json:"blobs"`
	Content    int64           `json:"content"` // unpacked
	Fetched    int64           `json:"fetched"`
	Cached     int64           `json:"cached"`           // found in the cache or in Options.Have
	Deltas     []digest.Digest `json:"deltas,omitempty"` // of the deltas that were fetched in place of blobs
	Signatures []string        `json:"signatures"`
	LeftOut    []string        `json:"leftOut"` // items that a part cannot contain, with reasons
	Duration   plain.Duration  `json:"duration"`

	OtherEncoder string `json:"-"` // of the published file if it differs from ours
}

// Options name a bundle in a registry and say how to pull it.
type Options struct {
	Name       string // of the bundle in messages
	Repository name.Repository
	Reference  string        // tag or digest
	Fetch      fetch.Options // Store and Progress are set by this package
	Have       []bundle.From // local bundles; their blobs are not downloaded
	Items      []string      // patterns as in transfer.Selection; none for all items
	Platforms  transfer.Platforms
	Level      string          // of compression
	LevelGiven bool            // by the user: otherwise the level of the published file is used
	PartSize   int64           // 0 for a single file
	Recipients []age.Recipient // encrypt the file: see bundle.WriteOptions

	// Want, if it is not "", is the identity that the bundle must have.
	Want digest.Digest

	// OpenCache returns the cache for a level, and its directory.
	OpenCache func(level string) (*cache.Cache, string, error)
	// Check verifies the signatures by name before any content is downloaded.
	Check func(x bundle.Index, signatures []string, read func(name string) ([]byte, error)) error
	// Output returns the path of the file to write.
	Output func(x bundle.Index) (string, error)
	// CheckSignature, if it is not nil, is called with the path of each signature to write and its content, before
	// any content is downloaded.
	CheckSignature func(path string, signature []byte) error
	View           View
}

// A View shows the progress.
type View interface {
	Note(format string, args ...any)
	// Meter starts to show a phase.
	Meter(phase string) (set func(done, total int64), stop func())
	Item(phase, kind, ref, platform string, err error)
}

// A puller pulls one bundle.
type puller struct {
	Options
	output string                  // "" if no file is written
	meter  func(done, total int64) // of the phase "fetch"; nil before
}

// A lateStore is replaced when the compression of the bundle is known.
type lateStore struct{ *cache.Cache }

// Pull downloads a bundle and writes it to a file, with its signatures beside it.
func Pull(ctx context.Context, o Options) (Result, error) {
	start := time.Now()
	one, err := look(ctx, o)
	if err != nil {
		return Result{}, err
	}
	defer one.artifact.Close()
	r, err := cache.Mend(one.cache, one.dropped, func() (Result, error) {
		again := *one
		return again.run(ctx)
	})
	r.Duration = plain.Duration(time.Since(start))
	return r, err
}

// Open opens a bundle in a registry for reading its contents. Manifests are downloaded as needed. Call the returned
// function afterwards.
func Open(ctx context.Context, o Options) (*bundle.Remote, func(), error) {
	one, err := look(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	if err := one.openRemote(ctx); err != nil {
		one.artifact.Close()
		return nil, nil, err
	}
	return one.remote, one.artifact.Close, nil
}

// OpenWhole downloads the blobs of a bundle into the cache and opens the bundle there, without writing it. Temporary
// files lie in the directory scratch. Close the Reader afterwards.
func OpenWhole(ctx context.Context, o Options, scratch string) (*bundle.Reader, error) {
	one, err := look(ctx, o)
	if err != nil {
		return nil, err
	}
	defer one.artifact.Close()
	return cache.Mend(one.cache, one.dropped, func() (*bundle.Reader, error) {
		again := *one
		return again.compose(ctx, scratch)
	})
}

// look reads the published manifest, which has the level to open the cache with. Close the artifact afterwards.
func look(ctx context.Context, o Options) (*pulling, error) {
	p := &puller{Options: o}
	c, dir, err := p.OpenCache(p.Level)
	if err != nil {
		return nil, err
	}
	store := &lateStore{c}
	p.Fetch.Store, p.Fetch.Progress = store, p.progress
	var found published.Bundle
	a, err := cache.Mend(c, p.dropped, func() (a *fetch.Artifact, err error) {
		if a, err = fetch.OpenArtifact(ctx, p.Repository, p.Reference, p.Fetch); err != nil {
			return nil, err
		}
		found, err = published.Parse(a.Manifest,
			func(d ocispec.Descriptor) ([]byte, error) { return a.Document(ctx, d) })
		if err != nil {
			a.Close()
		}
		return a, err
	})
	if err != nil {
		return nil, p.refused(err)
	}
	if level, err := bundle.ParseLevel(found.Level); err == nil && !p.LevelGiven && p.Level != level.String() {
		if c, dir, err = p.OpenCache(level.String()); err != nil {
			a.Close()
			return nil, err
		}
		store.Cache = c
	}
	return &pulling{puller: p, artifact: a, published: found, cache: c, cacheDir: dir}, nil
}

// dropped reports a damaged blob of the cache.
func (p *puller) dropped(damaged *cache.EntryError) {
	p.View.Note("the cache's copy of blob %s is damaged (%s); downloading it again", damaged.Digest, damaged.Reason)
}

// progress shows downloads after the manifests.
func (p *puller) progress(e fetch.Event) {
	if p.meter == nil {
		return
	}
	p.meter(e.Done, e.Total)
	if e.Type == fetch.EventFinished {
		p.View.Item("fetch", e.Kind, e.Ref, e.Platform, e.Err)
	}
}

// A RefusedError is an error of the registry, or of the data it served.
type RefusedError struct{ err error }

// Error returns the text.
func (e *RefusedError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.err }

// refused adds the bundle's name, and the flag that helps.
func (p *puller) refused(err error) error {
	var unknown x509.UnknownAuthorityError
	host := p.Repository.RegistryStr()
	switch {
	case errors.As(err, &unknown):
		err = &remedy{fmt.Errorf(
			"the certificate of %s is signed by a CA that this machine does not know: give the CA's certificate with --ca FILE", host), err}
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no type for it
		err = &remedy{fmt.Errorf("%s speaks plain HTTP, not HTTPS: allow it with --plain-http if you trust the network",
			host), err}
	}
	return &RefusedError{fmt.Errorf("%s: %w", p.Name, err)}
}

// A remedy replaces the text of its cause.
type remedy struct {
	error
	cause error
}

func (r *remedy) Unwrap() error { return r.cause }

// A pulling is one attempt; a damaged cache causes another one.
type pulling struct {
	*puller
	artifact  *fetch.Artifact
	published published.Bundle
	cache     *cache.Cache
	cacheDir  string
	made      *bundle.From // the bundle that deltas make; nil without
	deltas    []digest.Digest
	local     bundle.Source
	remote    *bundle.Remote
	cached    int64 // bytes of needed blobs that were found locally
	fetched   int64
}

func (p *pulling) run(ctx context.Context) (_ Result, err error) {
	if err := p.openRemote(ctx); err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, p.closeMade()) }()
	x, leftOut, err := p.choose(ctx)
	if err != nil {
		return Result{}, err
	}
	if p.output, err = p.Output(x); err != nil {
		return Result{}, err
	}
	whole, err := p.checkSignatures(ctx, x)
	if err != nil {
		return Result{}, err
	}
	if err := p.bringAll(ctx, x); err != nil {
		return Result{}, err
	}
	set, stop := p.View.Meter("write")
	defer stop()
	sum, err := bundle.Create(ctx, p.output, p.local, x, bundle.WriteOptions{
		PartSize:   p.PartSize,
		Recipients: p.Recipients, Progress: set,
	})
	if errors.Is(err, bundle.ErrDamaged) {
		err = plain.Advise(err, "run the command again without --have for that bundle")
	}
	r := Result{
		Version: 1, Path: p.output, Manifest: p.artifact.Digest, Digest: sum.Digest, Size: sum.Size, Parts: sum.Parts,
		Items: len(x.Items),
		Blobs: sum.Blobs, Content: sum.Content, Fetched: p.fetched, Cached: p.cached, Signatures: []string{},
		LeftOut: append([]string{}, leftOut...),
		Deltas:  p.deltas,
	}
	if err != nil || !whole {
		return r, err // the signatures are for the whole bundle
	}
	if published := p.published.Encoder; published != p.cache.Encoder() && !p.LevelGiven {
		r.OtherEncoder = published
	}
	r.Signatures, err = p.signatures(ctx)
	return r, err
}

// compose opens the bundle in the cache.
func (p *pulling) compose(ctx context.Context, scratch string) (*bundle.Reader, error) {
	if err := p.openRemote(ctx); err != nil {
		return nil, err
	}
	if err := p.bringAll(ctx, p.remote.Index()); err != nil {
		return nil, err
	}
	spool, err := delta.NewSpool(scratch)
	if err != nil {
		return nil, err
	}
	r, err := bundle.Compose(ctx, p.local, p.remote.Index(), spool)
	if err != nil {
		return nil, errors.Join(err, spool.Close())
	}
	return r, nil
}

// openRemote reads the bundle's index.
func (p *pulling) openRemote(ctx context.Context) error {
	if got := p.published.Index.Digest; p.Want != "" && got != p.Want {
		return fmt.Errorf("the delta was made against bundle %s, but %s is bundle %s: name the right bundle", p.Want,
			p.Name, got)
	}
	if err := p.combine(); err != nil {
		return err
	}
	index, err := p.small(ctx, "index", "index.json", p.published.Index)
	if err != nil {
		return err
	}
	if p.remote, err = bundle.NewRemote(p.published.Index.Digest, p.published.Blobs, index, p.local,
		p.bring); err != nil {
		return p.refused(err)
	}
	return p.Check(p.remote.Index(), slices.Sorted(maps.Keys(p.published.Signatures)),
		func(name string) ([]byte, error) {
			return p.small(ctx, "signature", name, p.published.Signatures[name])
		})
}

// combine sets the source of local blobs.
func (p *pulling) combine() error {
	p.local = p.cache
	same := p.same()
	if len(same) == 0 {
		return nil
	}
	combined, err := bundle.Combine(p.cache, same...)
	if err == nil {
		p.local = combined
	}
	return err
}

// small downloads the index or a signature.
func (p *pulling) small(ctx context.Context, kind, ref string, d ocispec.Descriptor) (data []byte, err error) {
	if err := p.artifact.Fetch(ctx,
		[]fetch.Wanted{{Kind: kind, Ref: ref, Blobs: []ocispec.Descriptor{d}}}); err != nil {
		return nil, err
	}
	rc, err := p.cache.Open(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	return io.ReadAll(io.LimitReader(rc, d.Size)) // the published manifest bounds the size
}

// choose returns the index of the file to write.
func (p *pulling) choose(ctx context.Context) (x bundle.Index, leftOut []string, err error) {
	if len(p.Items)+len(p.Platforms) == 0 {
		return p.remote.Index(), nil, nil
	}
	var first []bundle.Item // items whose manifests are needed; those of referrers name their images
	for _, it := range p.remote.Index().Items {
		if len(p.Items) == 0 || it.Kind == bundle.KindReferrer {
			first = append(first, it)
		}
	}
	for _, pattern := range p.Items {
		first = append(first, transfer.Matching(p.remote.Index().Items, pattern)...)
	}
	if err := p.remote.Documents(ctx, first); err != nil {
		return x, nil, err
	}
	plan, err := transfer.Selection{Items: p.Items, Platforms: p.Platforms}.Plan(ctx,
		[]transfer.Source{{Name: p.Name, Catalog: &p.remote.Catalog}})
	if x = plan.Index; err != nil {
		return x, nil, err
	}
	for _, d := range plan.Locks {
		it, err := d.Put(ctx, p.cache)
		if err != nil {
			return x, nil, err
		}
		x.Items = append(x.Items, it)
	}
	return x, plan.LeftOut, nil
}

// bringAll downloads missing blobs if there is space for them.
func (p *pulling) bringAll(ctx context.Context, x bundle.Index) error {
	needs, err := p.needs(ctx, x.Items)
	if err != nil {
		var (
			damaged *cache.EntryError
			failed  *fetch.Errors
		)
		if errors.As(err, &damaged) || errors.As(err, &failed) || ctx.Err() != nil {
			return err
		}
		return p.refused(err)
	}
	missing, err := p.missing(ctx, needs)
	if err != nil {
		return err
	}
	var total int64
	for _, n := range needs {
		for _, d := range n.Blobs {
			total += d.Size
		}
	}
	p.cached = max(total-missing-p.fetched, 0)
	if err := p.useDeltas(ctx, missing); err != nil {
		return err
	}
	if p.made != nil {
		missing = 0
		if err := p.combine(); err != nil {
			return err
		}
	}
	if err := p.room(ctx, needs); err != nil {
		return err
	}
	p.View.Note("%s: %s to fetch, %s here already", plain.Count(len(x.Items), "item"), plain.Size(missing),
		plain.Size(p.cached))
	set, stop := p.View.Meter("fetch")
	p.meter = set
	defer func() { stop(); p.meter = nil }()
	return p.bring(ctx, needs)
}

// missing returns the bytes of the blobs that are not here.
func (p *pulling) missing(ctx context.Context, needs []bundle.Need) (bytes int64, err error) {
	lacking, err := p.lacking(ctx, needs, p.sources())
	for _, w := range lacking {
		for _, d := range w.Blobs {
			bytes += d.Size
		}
	}
	return bytes, err
}

// room returns an error if a disk lacks space.
func (p *pulling) room(ctx context.Context, needs []bundle.Need) error {
	var cache, file int64
	for _, n := range needs {
		for _, d := range n.Blobs {
			file += p.cache.MostInBundle(d.Size)
		}
	}
	if len(p.Recipients) > 0 {
		file = agefile.MaxSize(file)
	}
	lacking, err := p.lacking(ctx, needs, p.same())
	if err != nil {
		return err
	}
	for _, w := range lacking {
		for _, d := range w.Blobs {
			cache += p.cache.MostInCache(d.Size)
		}
	}
	room := []disk.Need{{
		Dir: p.cacheDir, What: "the cache", Bytes: cache,
		Remedy: "choose another place for the cache with --cache",
	}}
	if p.output != "" {
		room = append(room, disk.Need{
			Dir: filepath.Dir(p.output), What: "the bundle", Bytes: file,
			Remedy: "write it to another place with -o",
		})
	}
	_, err = disk.CheckSpace(room...)
	return err
}

// same returns the sources with frames of the cache's encoder.
func (p *pulling) same() []bundle.From {
	return slices.DeleteFunc(p.sources(), func(f bundle.From) bool { return f.Encoder() != p.cache.Encoder() })
}

// needs returns the blobs of items, each once, with the first item that has it.
func (p *pulling) needs(ctx context.Context, items []bundle.Item) ([]bundle.Need, error) {
	var needs []bundle.Need
	seen := map[digest.Digest]bool{}
	err := p.remote.Needs(ctx, items, func(it bundle.Item, d ocispec.Descriptor) {
		if seen[d.Digest] {
			return
		}
		seen[d.Digest] = true
		if n := len(needs); n == 0 || transfer.ByIndex(needs[n-1].Item, it) != 0 {
			needs = append(needs, bundle.Need{Item: it})
		}
		last := &needs[len(needs)-1]
		last.Blobs = append(last.Blobs, d)
	})
	return needs, err
}

// lacking returns the blobs that are neither in the cache nor in the bundles.
func (p *pulling) lacking(ctx context.Context, needs []bundle.Need, have []bundle.From) ([]fetch.Wanted, error) {
	var lacking []fetch.Wanted
	for _, n := range needs {
		w := fetch.Wanted{
			Kind: n.Item.Kind, Ref: n.Item.Ref,
			Platform: bundle.PlatformString(n.Item.Descriptor.Platform),
		}
		for _, d := range n.Blobs {
			_, here, err := p.cache.Stat(ctx, d.Digest)
			if err != nil {
				return nil, err
			}
			for _, f := range have {
				_, there := f.Stat(d.Digest)
				here = here || there
			}
			if !here {
				w.Blobs = append(w.Blobs, d)
			}
		}
		if len(w.Blobs) > 0 {
			lacking = append(lacking, w)
		}
	}
	return lacking, nil
}

// bring is the Bringer of the remote bundle.
func (p *pulling) bring(ctx context.Context, needs []bundle.Need) error {
	lacking, err := p.lacking(ctx, needs, p.same())
	if err != nil {
		return err
	}
	for i := range lacking {
		w := &lacking[i]
		var rest []ocispec.Descriptor
		for _, d := range w.Blobs {
			here, err := p.compressAgain(ctx, d)
			if err != nil {
				return err
			}
			if !here {
				rest = append(rest, d)
				p.fetched += d.Size
			}
		}
		w.Blobs = rest
	}
	lacking = slices.DeleteFunc(lacking, func(w fetch.Wanted) bool { return len(w.Blobs) == 0 })
	return p.artifact.Fetch(ctx, lacking)
}

// compressAgain copies a blob into the cache from a bundle with frames of another encoder. A damaged blob is
// downloaded.
func (p *pulling) compressAgain(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	for _, f := range p.sources() {
		if have, ok := f.Stat(d.Digest); !ok || have != d.Size || f.Encoder() == p.cache.Encoder() {
			continue
		}
		err := p.take(ctx, f, d)
		if errors.Is(err, bundle.ErrDamaged) {
			p.View.Note("blob %s is damaged in %s; downloading it", d.Digest, f.Name)
			continue
		}
		return err == nil, err
	}
	return false, nil
}

func (p *pulling) take(ctx context.Context, f bundle.From, d ocispec.Descriptor) (err error) {
	w, offset, err := p.cache.Begin(ctx, d.Digest.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rc, err := f.Blob(ctx, d.Digest, offset)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, rc)
	if err := errors.Join(err, rc.Close()); err != nil {
		return err
	}
	_, err = w.Commit(ctx, d.Size, d.Digest)
	return err
}

// checkSignatures reports whether x is the whole bundle, whose signatures are written beside it, and returns an error
// if one must not be.
func (p *pulling) checkSignatures(ctx context.Context, x bundle.Index) (whole bool, err error) {
	index, err := x.Marshal()
	if err != nil || digest.FromBytes(index) != p.published.Index.Digest {
		return false, err
	}
	for suffix, d := range p.published.Signatures {
		data, err := p.small(ctx, "signature", suffix, d)
		if err == nil && p.CheckSignature != nil {
			err = p.CheckSignature(bundle.BaseName(p.output)+"."+suffix, data)
		}
		if err != nil {
			return true, err
		}
	}
	return true, nil
}

// signatures writes the published signatures beside the bundle.
func (p *pulling) signatures(ctx context.Context) ([]string, error) {
	paths := []string{}
	for _, suffix := range slices.Sorted(maps.Keys(p.published.Signatures)) {
		data, err := p.small(ctx, "signature", suffix, p.published.Signatures[suffix])
		if err != nil {
			return paths, err
		}
		path := bundle.BaseName(p.output) + "." + suffix
		if err := disk.WriteFile(path, 0o644, bytes.NewReader(data)); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
