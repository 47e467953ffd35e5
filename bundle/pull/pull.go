package cli

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

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

type pullOptions struct {
	loginFlags
	fetchFlags
	output           string
	split            sizeFlag
	haves            []string
	items, platforms []string
	levelGiven       bool
}

func newPullCmd(g *globals) *cobra.Command {
	o := pullOptions{split: sizeFlag{least: minSplit}}
	cmd := &cobra.Command{
		Use:   "pull oci://HOST/PATH[:TAG|@DIGEST]",
		Short: "Pull a published bundle from an OCI registry",
		Long: `Brings a bundle from a registry that publish put it into, and writes it as a file, with its signatures beside it. Only what
neither the cache nor the bundles named with --have hold is transferred; a pull that was interrupted continues at the byte
when run again. Every blob's digest is checked. The file has the bytes of the one that was published if this kkbundle has the same
encoder, and in any case the same identity.

With --trust (or keys that are trusted already) the bundle must be signed by one of them, which is checked before any of its
content comes. With --item or --platform only that part of it comes, as copy would make it. ` + itemsHelp,
		Example: `  kkbundle pull oci://registry.corp.example/bundles/site:1.4.0
  kkbundle pull --have site-1.3.0.kkb oci://registry.corp.example/bundles/site:1.4.0
  kkbundle pull --item 'chart/*' -o charts.kkb oci://registry.corp.example/bundles/site@sha256:6d1f…`,
		Args: takes("oci://HOST/PATH[:TAG|@DIGEST]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.levelGiven = cmd.Flags().Changed("level")
			return runPull(cmd.Context(), g, args[0], o)
		},
	}
	f := cmd.Flags()
	o.loginFlags.add(f)
	o.fetchFlags.add(f)
	f.Lookup("level").Usage = "compression: fast, default, better or best (default that of the published file)"
	g.addTrust(f)
	f.StringVarP(&o.output, "output", "o", "", "the file to write (default NAME-VERSION.kkb)")
	f.Var(&o.split, "split", "write parts of this size, such as 4GB, 4GiB or 700MB")
	f.StringArrayVar(&o.haves, "have", nil, "a bundle that is here already: what it holds is not transferred (repeated)")
	f.StringArrayVar(&o.items, "item", nil, "bring only this item (may be repeated; * stands for any characters)")
	f.StringSliceVar(&o.platforms, "platform", nil, "bring only this platform (may be repeated)")
	return cmd
}

// pullResult is what pull prints with --json.
type pullResult struct {
	Version    int           `json:"version"` // 1
	Path       string        `json:"path"`
	Manifest   digest.Digest `json:"manifest"` // in the registry
	Digest     digest.Digest `json:"digest"`   // the identity of what was written
	Size       int64         `json:"size"`     // bytes, as are the others
	Parts      int           `json:"parts,omitempty"`
	Items      int           `json:"items"`
	Blobs      int           `json:"blobs"`
	Content    int64         `json:"content"` // what it unpacks to
	Fetched    int64         `json:"fetched"`
	Cached     int64         `json:"cached"` // that were in the cache or in a bundle of --have
	Signatures []string      `json:"signatures"`
	LeftOut    []string      `json:"leftOut"`  // what could not come along with a part, and why
	Duration   time.Duration `json:"duration"` // nanoseconds

	otherEncoder string // of the published file, "" if it is ours
}

func runPull(ctx context.Context, g *globals, address string, o pullOptions) (err error) {
	start := time.Now()
	p := &puller{globals: g, pullOptions: o}
	if p.at, err = parseOCI(address); err != nil {
		return err
	}
	if err := p.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	r, err := p.pull(ctx)
	if err != nil {
		return err
	}
	r.Duration = time.Since(start)
	if g.json {
		return printJSON(g.Out, r)
	}
	for _, text := range r.LeftOut {
		g.note("left out: %s", plain.Line(text))
	}
	if r.otherEncoder != "" {
		g.note("%s has the identity of what was published but not its bytes, which another encoder made (%s)", r.Path, plain.Line(r.otherEncoder))
	}
	g.note("%s: %s, %s (%s fetched, %s here already) in %s", r.Path, plain.Size(r.Size), plain.Count(r.Items, "item"), plain.Size(r.Fetched), plain.Size(r.Cached),
		r.Duration.Round(100*time.Millisecond))
	return g.result("%s", r.Digest)
}

// A puller brings one bundle.
type puller struct {
	*globals
	pullOptions
	at     ociAddress
	wanted transfer.Platforms
	fetch  fetch.Options
	have   []bundle.From
	meter  *meter // of what is fetched; nil while that is not the items themselves
}

// prepare reads the command line and opens what it names.
func (p *puller) prepare() (err error) {
	if p.wanted, err = parsePlatforms(p.platforms); err != nil {
		return err
	}
	if p.output != "" {
		if p.output == standardStream {
			return &usageError{errors.New("a bundle is pulled into a file: name one with -o")}
		}
		if err := p.checkOutput(); err != nil {
			return err
		}
	}
	if p.fetch.Keychain, err = p.keychain(p.In); err != nil {
		return err
	}
	if err := p.loginFlags.check(); err != nil {
		return err
	}
	p.fetch.Sources = []manifest.Source{{
		Host: p.at.host(), CA: p.ca, Cert: p.cert, Key: p.key, PlainHTTP: p.plainHTTP, MaxConcurrent: p.pullOptions.jobs,
	}}
	p.fetch.Jobs, p.fetch.Logger = p.pullOptions.jobs, p.logger()
	for _, path := range p.haves {
		r, err := p.openBundle(path)
		if err != nil {
			return errors.Join(err, p.close())
		}
		p.have = append(p.have, bundle.From{Name: path, Reader: r})
	}
	return nil
}

func (p *puller) checkOutput() error {
	return checkBundleOutput(p.globals, p.output, p.split.bytes)
}

func (p *puller) close() error {
	var errs []error
	for _, f := range p.have {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// A lateStore is a fetch.Store that is chosen when it is known how the bundle is compressed.
type lateStore struct{ *bundle.Cache }

// pull asks the registry what the bundle is, and brings it.
func (p *puller) pull(ctx context.Context) (pullResult, error) {
	one, err := p.look(ctx)
	if err != nil {
		return pullResult{}, err
	}
	defer one.artifact.Close()
	return bundle.Mend(one.cache, p.dropped, func() (pullResult, error) {
		again := *one
		return again.run(ctx)
	})
}

// look asks the registry what the bundle is, which says what the cache has to be opened for. Close the artifact afterwards.
func (p *puller) look(ctx context.Context) (*pulling, error) {
	c, dir, err := p.openCache()
	if err != nil {
		return nil, err
	}
	store := &lateStore{c}
	p.fetch.Store, p.fetch.Progress = store, p.progress
	a, err := bundle.Mend(c, p.dropped, func() (*fetch.Artifact, error) { return p.open(ctx) })
	if err != nil {
		return nil, p.refused(err)
	}
	published, err := bundle.ParsePublished(a.Manifest)
	if err != nil {
		a.Close()
		return nil, p.refused(err)
	}
	if level, err := bundle.ParseLevel(published.Level); err == nil && !p.levelGiven && p.level != level.String() {
		p.level = level.String()
		if c, dir, err = p.openCache(); err != nil {
			a.Close()
			return nil, err
		}
		store.Cache = c
	}
	return &pulling{puller: p, artifact: a, published: published, cache: c, cacheDir: dir}, nil
}

// dropped reports a damaged blob of the cache.
func (p *puller) dropped(damaged *bundle.CacheError) {
	p.note("the cache's copy of blob %s is damaged (%s); downloading it again", damaged.Digest, damaged.Reason)
}

func (p *puller) open(ctx context.Context) (*fetch.Artifact, error) {
	repo, err := p.at.repo()
	if err != nil {
		return nil, err
	}
	return fetch.OpenArtifact(ctx, repo, p.at.reference(), p.fetch)
}

// progress passes on what is fetched. Manifests are fetched to know what is needed, before the items.
func (p *puller) progress(e fetch.Event) {
	if p.meter == nil {
		return
	}
	p.meter.set(e.Done, e.Total)
	if e.Type == fetch.EventFinished {
		p.item(p.meter.name, itemName{e.Kind, e.Ref, e.Platform}, e.Err)
	}
}

// refused says where what is wrong was found, and what flag helps.
func (p *puller) refused(err error) error {
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		err = &remedy{fmt.Errorf("the certificate of %s is signed by a CA that this machine does not know: give the CA's certificate with --ca FILE", p.at.host()), err}
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no type for it
		err = &remedy{fmt.Errorf("%s speaks plain HTTP, not HTTPS: allow it with --plain-http if you trust the network", p.at.host()), err}
	}
	return &pushError{fmt.Errorf("%s: %w", p.at, err)}
}

// A remedy says in other words what an error does, for errors.As with that behind it.
type remedy struct {
	error
	cause error
}

func (r *remedy) Unwrap() error { return r.cause }

// A haveError says that a bundle of --have is damaged.
type haveError struct{ error }

func (e *haveError) Unwrap() error { return e.error }

// Hint says how to go on.
func (e *haveError) Hint() string {
	return "run it again without --have for that bundle: what it holds is fetched then"
}

// A pulling is one attempt at bringing a bundle: another one follows if the cache is damaged.
type pulling struct {
	*puller
	artifact  *fetch.Artifact
	published bundle.Published
	cache     *bundle.Cache
	cacheDir  string
	others    []bundle.From // of those that are here, with frames of another encoder
	local     bundle.Source
	remote    *bundle.Remote
	cached    int64 // bytes of what is needed that were here
	fetched   int64
}

func (p *pulling) run(ctx context.Context) (pullResult, error) {
	if err := p.openRemote(ctx); err != nil {
		return pullResult{}, err
	}
	x, leftOut, err := p.choose(ctx)
	if err != nil {
		return pullResult{}, err
	}
	if p.output == "" {
		if p.output, err = p.fileName(x); err != nil {
			return pullResult{}, err
		}
		if err := p.checkOutput(); err != nil {
			return pullResult{}, err
		}
	}
	if err := p.bringAll(ctx, x); err != nil {
		return pullResult{}, err
	}
	m := p.newMeter("write")
	defer m.stop()
	sum, err := bundle.Create(ctx, p.output, p.local, x, bundle.WriteOptions{PartSize: p.split.bytes, Progress: m.set})
	if errors.Is(err, bundle.ErrDamaged) {
		err = &haveError{err}
	}
	r := pullResult{
		Version: 1, Path: p.output, Manifest: p.artifact.Digest, Digest: sum.Digest, Size: sum.Size, Parts: sum.Parts, Items: len(x.Items),
		Blobs: sum.Blobs, Content: sum.Content, Fetched: p.fetched, Cached: p.cached, Signatures: []string{}, LeftOut: append([]string{}, leftOut...),
	}
	if err != nil || sum.Digest != p.published.Index.Digest {
		return r, err // signatures are about the whole
	}
	if published := p.published.Encoder; published != p.cache.Encoder() && !p.levelGiven {
		r.otherEncoder = published
	}
	r.Signatures, err = p.signatures(ctx)
	return r, err
}

// openRemote reads the bundle's index.
func (p *pulling) openRemote(ctx context.Context) error {
	same := p.same()
	p.others = slices.DeleteFunc(slices.Clone(p.have), func(f bundle.From) bool { return f.Encoder() == p.cache.Encoder() })
	p.local = p.cache
	if len(same) > 0 {
		combined, err := bundle.Combine(p.cache, same...)
		if err != nil {
			return err
		}
		p.local = combined
	}
	index, err := p.small(ctx, "index", "index.json", p.published.Index)
	if err != nil {
		return err
	}
	if p.remote, err = bundle.NewRemote(p.published, index, p.local, p.bring); err != nil {
		return p.refused(err)
	}
	_, err = p.checkSignatures(signaturesOf{
		name: p.at.String(), none: "it was published without a signature", read: func(file string) ([]byte, error) { return p.signature(ctx, file) },
		list: func() ([]string, error) {
			if len(p.trust.signatures) > 0 {
				return p.trust.signatures, nil
			}
			return slices.Sorted(maps.Keys(p.published.Signatures)), nil
		},
	}, p.remote.Index())
	return err
}

// signature returns one that was published with the bundle, or a file of --signature.
func (p *pulling) signature(ctx context.Context, name string) ([]byte, error) {
	if len(p.trust.signatures) > 0 {
		return build.ReadFile(name)
	}
	return p.small(ctx, "signature", name, p.published.Signatures[name])
}

// small brings what is not one of the bundle's blobs.
func (p *pulling) small(ctx context.Context, kind, ref string, d ocispec.Descriptor) (data []byte, err error) {
	if err := p.artifact.Fetch(ctx, []fetch.Wanted{{Kind: kind, Ref: ref, Blobs: []ocispec.Descriptor{d}}}); err != nil {
		return nil, err
	}
	rc, err := p.cache.Open(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	return io.ReadAll(io.LimitReader(rc, d.Size)) // the published manifest's bounds hold
}

// choose says what the file will hold.
func (p *pulling) choose(ctx context.Context) (x bundle.Index, leftOut []string, err error) {
	if len(p.items)+len(p.wanted) == 0 {
		return p.remote.Index(), nil, nil
	}
	var first []bundle.Item // whose manifests are asked for; those of all referrers say what they are about
	for _, it := range p.remote.Index().Items {
		if len(p.items) == 0 || it.Kind == bundle.KindReferrer {
			first = append(first, it)
		}
	}
	for _, pattern := range p.items {
		first = append(first, transfer.Matching(p.remote.Index().Items, pattern)...)
	}
	if err := p.remote.Documents(ctx, first); err != nil {
		return x, nil, err
	}
	plan, err := transfer.Selection{Items: p.items, Platforms: p.wanted}.Plan(ctx, []transfer.Source{{Name: p.at.String(), Catalog: &p.remote.Catalog}})
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

// fileName is what the bundle is called if nobody says it; the registry may say anything.
func (p *pulling) fileName(x bundle.Index) (string, error) {
	name := bundle.FileName(x.Name, x.Version)
	if x.Name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, `/\`) || name != plain.Line(name) || !filepath.IsLocal(name) {
		return "", &usageError{fmt.Errorf("the bundle's name %q is not one for a file: name one with -o", plain.Line(x.Name))}
	}
	return name, nil
}

// bringAll brings what is lacking, if there is room for it.
func (p *pulling) bringAll(ctx context.Context, x bundle.Index) error {
	needs, err := p.needs(ctx, x.Items)
	if err != nil {
		var damaged *bundle.CacheError
		if errors.As(err, &damaged) || asError[*fetch.Errors](err) || ctx.Err() != nil {
			return err
		}
		return p.refused(err)
	}
	download, err := p.room(ctx, needs)
	if err != nil {
		return err
	}
	var total int64
	for _, n := range needs {
		for _, d := range n.Blobs {
			total += d.Size
		}
	}
	p.note("%s: %s to fetch, %s here already", plain.Count(len(x.Items), "item"), plain.Size(download), plain.Size(max(total-download-p.fetched, 0)))
	p.meter = p.newMeter("fetch")
	defer func() { p.meter.stop(); p.meter = nil }()
	if err := p.bring(ctx, needs); err != nil {
		return err
	}
	p.cached = max(total-p.fetched, 0)
	return nil
}

// room returns how many bytes are to be fetched, and refuses to begin where a disk cannot hold what comes of it.
func (p *pulling) room(ctx context.Context, needs []bundle.Need) (download int64, err error) {
	var cache, file int64
	for _, n := range needs {
		for _, d := range n.Blobs {
			file += p.cache.MostInBundle(d.Size)
		}
	}
	lacking, err := p.lacking(ctx, needs, p.same())
	if err != nil {
		return 0, err
	}
	for _, w := range lacking {
		for _, d := range w.Blobs {
			cache += p.cache.MostInCache(d.Size)
		}
	}
	if lacking, err = p.lacking(ctx, needs, p.have); err != nil {
		return 0, err
	}
	for _, w := range lacking {
		for _, d := range w.Blobs {
			download += d.Size
		}
	}
	_, err = disk.CheckSpace(
		disk.Need{Dir: p.cacheDir, What: "the cache", Bytes: cache, Remedy: "choose another place for the cache with --cache"},
		disk.Need{Dir: filepath.Dir(p.output), What: "the bundle", Bytes: file, Remedy: "write it to another place with -o"},
	)
	return download, err
}

// same are the bundles that are here with frames of the cache's encoder.
func (p *pulling) same() []bundle.From {
	return slices.DeleteFunc(slices.Clone(p.have), func(f bundle.From) bool { return f.Encoder() != p.cache.Encoder() })
}

// needs returns what items need, each blob once, with the first item that needs it.
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

// lacking returns what neither the cache nor the bundles have.
func (p *pulling) lacking(ctx context.Context, needs []bundle.Need, have []bundle.From) ([]fetch.Wanted, error) {
	var lacking []fetch.Wanted
	for _, n := range needs {
		w := fetch.Wanted{Kind: n.Item.Kind, Ref: n.Item.Ref, Platform: bundle.PlatformString(n.Item.Descriptor.Platform)}
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

// compressAgain puts a blob into the cache that a bundle has in frames of another encoder. One that is damaged there is
// fetched.
func (p *pulling) compressAgain(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	for _, f := range p.others {
		if have, ok := f.Stat(d.Digest); !ok || have != d.Size {
			continue
		}
		err := p.take(ctx, f, d)
		if errors.Is(err, bundle.ErrDamaged) {
			p.note("blob %s is fetched, because it is damaged in %s", d.Digest, f.Name)
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

// signatures writes the files that were beside the bundle.
func (p *pulling) signatures(ctx context.Context) ([]string, error) {
	paths := []string{}
	for _, suffix := range slices.Sorted(maps.Keys(p.published.Signatures)) {
		data, err := p.small(ctx, "signature", suffix, p.published.Signatures[suffix]) // not one of --signature
		if err != nil {
			return paths, err
		}
		path := p.output + "." + suffix
		if err := disk.WriteFile(path, 0o644, bytes.NewReader(data)); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// openRemote opens a bundle in a registry to see what is in it: its manifests are fetched when they are needed, and nothing
// else. Call the returned function afterwards.
func (g *globals) openRemote(ctx context.Context, address string, login loginFlags) (*bundle.Remote, func(), error) {
	p := &puller{globals: g, pullOptions: pullOptions{loginFlags: login, fetchFlags: fetchFlags{level: bundle.LevelDefault.String()}}}
	var err error
	if p.at, err = parseOCI(address); err != nil {
		return nil, nil, err
	}
	if err := p.prepare(); err != nil {
		return nil, nil, err
	}
	one, err := p.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := one.openRemote(ctx); err != nil {
		one.artifact.Close()
		return nil, nil, err
	}
	return one.remote, one.artifact.Close, nil
}
