package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/closure"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/sbom"
)

// A closureError says that something which is needed is not among the items.
type closureError struct {
	where   string
	missing []string // a sentence each
	hint    string
}

func (e *closureError) Error() string {
	if len(e.missing) == 1 {
		return e.where + ": " + e.missing[0]
	}
	return fmt.Sprintf("%s: %d things that are needed are missing:\n  %s", e.where, len(e.missing), strings.Join(e.missing, "\n  "))
}

// Hint says what to do.
func (e *closureError) Hint() string { return e.hint }

const (
	hintManifest = "list what is missing in the manifest (images, charts, files, packages), or correct what asks for it, and run kkbundle lock"
	hintBundle   = "build the bundle again with this version of kkbundle, before it goes where nothing can be fetched"
)

// missing puts errors of package closure together. Others are returned as they are.
func missing(where, hint string, errs ...error) error {
	out := closureError{where: where, hint: hint}
	for _, err := range errs {
		var e *closure.MissingError
		switch {
		case errors.As(err, &e):
			out.missing = append(out.missing, e.Missing...)
		case err != nil:
			return err
		}
	}
	if len(out.missing) == 0 {
		return nil
	}
	slices.Sort(out.missing)
	out.missing = slices.Compact(out.missing)
	return &out
}

// wants are the needs of the clusters that the manifest names, of its packages among what is there, and of the places where f
// found images.
func (p *project) wants(f *finder, there []closure.Item) ([]closure.Need, error) {
	needs := closure.OfSets(p.manifest, there)
	for i, c := range p.clusters {
		more, err := clusterNeeds(c, p.manifest, p.below[i])
		if err != nil {
			return nil, &inputError{err}
		}
		needs = append(needs, more...)
	}
	if f == nil || !f.done {
		return needs, nil
	}
	own := map[string][]string{}
	for _, image := range p.own {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		if len(image.Platforms) > 0 {
			own[ref] = image.Platforms
		}
	}
	return append(needs, closure.OfImages(f.seen.Images, p.manifest.Platforms, own)...), nil
}

// clusterNeeds are those of one of a manifest's clusters, whose files the bundle carries below a directory.
func clusterNeeds(c *manifest.Cluster, b *manifest.Bundle, below string) ([]closure.Need, error) {
	needs, err := closure.OfCluster(c, b.Platforms, below)
	more, bad := closure.OfPackages(c, b)
	return append(needs, more...), errors.Join(err, bad)
}

// checkLock wants everything that is needed to be pinned, before anything large is fetched. f is what looked for images, nil
// where the lock was there already.
func (p *project) checkLock(l *manifest.Lock, f *finder) error {
	there := closure.Pinned(l)
	for _, d := range p.extras {
		there = append(there, closure.Item{Kind: d.kind, Ref: d.ref, Name: d.ref})
	}
	needs, err := p.wants(f, there)
	if err != nil {
		return err
	}
	_, err = closure.Check(needs, there)
	return missing(p.file, hintManifest, err)
}

// closure proves that the items have everything that is needed, and returns the proof for the bundle. Charts and YAML are
// looked into even where a lock says what was found in them: that may have been another version of kkbundle.
func (b *builder) closure(ctx context.Context, x bundle.Index) (document, error) {
	if b.finder == nil || !b.finder.done {
		charts, err := b.lockedCharts(ctx, x.Items)
		if err != nil {
			return document{}, err
		}
		b.finder = newFinder(b.globals, b.project, b.cache, b.lockOptions)
		if err := b.finder.find(ctx, charts); err != nil {
			return document{}, err
		}
	}
	there, err := closure.Contents(ctx, x.Items, b.readCached)
	if err != nil {
		return document{}, err
	}
	needs, err := b.wants(b.finder, there)
	if err != nil {
		return document{}, err
	}
	record, err := closure.Check(needs, there)
	if err := missing(b.file, hintManifest, err); err != nil {
		return document{}, err
	}
	record.Undecided = b.lock.Undecided
	data, err := record.Marshal()
	return document{bundle.KindClosure, documentClosure, data}, err
}

// lockedCharts are the manifest's charts with what the lock pins, whose archives are in the cache.
func (b *builder) lockedCharts(ctx context.Context, items []bundle.Item) ([]fetch.Chart, error) {
	var list []fetch.Chart
	for _, c := range b.manifest.Charts {
		pin, ok := b.chartPin(c)
		i := slices.IndexFunc(items, func(it bundle.Item) bool { return it.Kind == bundle.KindChart && it.Ref == pin.Ref })
		if !ok || i < 0 {
			return nil, fmt.Errorf("the lock has no chart %s", cmp.Or(c.Name, c.Path, c.URL))
		}
		archive, err := b.archiveOf(ctx, items[i])
		if err != nil {
			return nil, err
		}
		list = append(list, fetch.Chart{Chart: c, Pin: pin, Archive: archive})
	}
	return list, nil
}

// chartPin returns what a chart resolved to: of several versions that a range allows, the newest.
func (b *builder) chartPin(c manifest.Chart) (best manifest.Pin, found bool) {
	for _, p := range b.lock.Items {
		if p.Kind != manifest.ItemChart || !c.Fits(p) {
			continue
		}
		exact := p.Version == c.Version
		if !found || exact || best.Version != c.Version && compareVersions(p.Version, best.Version) > 0 {
			best, found = p, true
		}
	}
	return best, found
}

// archiveOf returns a chart's archive.
func (b *builder) archiveOf(ctx context.Context, it bundle.Item) (digest.Digest, error) {
	data, err := b.readCached(ctx, it.Descriptor.Digest, maxFile)
	if err != nil {
		return "", err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return "", fmt.Errorf("%s: %w", it, err)
	}
	for _, l := range m.Layers {
		if l.MediaType == bundle.MediaTypeChartContent || l.MediaType == "application/tar+gzip" { // Helm's before 3.7
			return l.Digest, nil
		}
	}
	return "", fmt.Errorf("%s has no chart archive", it)
}

// readCached returns a small blob of the cache.
func (b *builder) readCached(ctx context.Context, d digest.Digest, most int64) (data []byte, err error) {
	r, err := b.cache.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	data, err = io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("blob %s has more than %s", d, size(most))
	}
	return data, err
}

// billOfMaterials is for the bundle too.
func (b *builder) billOfMaterials(ctx context.Context, x bundle.Index) (document, error) {
	data, err := sbom.New(ctx, x, b.lock, b.readCached)
	return document{bundle.KindSBOM, documentSBOM, data}, err
}

// checkWritten is verify --closure of the bundle that was just written.
func (b *builder) checkWritten(ctx context.Context) error {
	if b.output == standardStream {
		return nil
	}
	r, err := bundle.Open(b.output)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = checkClosure(ctx, b.output, &r.Catalog)
	return err
}

// checkClosure compares a bundle with the proof that it carries, and with what this version of kkbundle asks it for when it
// installs the cluster that it carries. It returns how many items somebody needs.
func checkClosure(ctx context.Context, name string, c *bundle.Catalog) (needed int, err error) {
	record, err := readClosure(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	there, err := closure.Contents(ctx, c.Index().Items, c.ReadBlob)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	needs, err := bundleNeeds(ctx, c)
	if err != nil {
		return 0, err
	}
	for _, e := range record.Items {
		if len(e.NeededBy) > 0 {
			needed++
		}
	}
	_, err = closure.Check(needs, there)
	return needed, missing(name, hintBundle, record.Compare(there), err)
}

// bundleNeeds are those of the cluster files that a bundle carries, by the names that addCluster gives them.
func bundleNeeds(ctx context.Context, c *bundle.Catalog) ([]closure.Need, error) {
	read := func(ref string) ([]byte, error) { return readDocument(ctx, c, bundle.KindManifest, ref) }
	data, err := read(documentManifest)
	if err != nil {
		return nil, err
	}
	b, err := manifest.ParseBundle(documentManifest, data)
	if err != nil {
		return nil, err
	}
	b.Platforms = c.Index().Platforms
	var needs []closure.Need
	for _, name := range b.ClusterFiles() {
		as, below := carriedAs(b, name)
		if data, err = read(as); err != nil {
			return nil, err
		}
		cluster, err := manifest.ParseCluster(as, data)
		if err != nil {
			return nil, err
		}
		if cluster.Catalogs, err = readCatalogs(cluster, read, below); err != nil {
			return nil, err
		}
		more, err := clusterNeeds(cluster, b, below)
		if err != nil {
			return nil, err
		}
		needs = append(needs, more...)
	}
	return needs, nil
}

// readClosure reads the proof that a bundle carries.
func readClosure(ctx context.Context, c *bundle.Catalog) (closure.Record, error) {
	if _, ok := c.Find(bundle.KindClosure, documentClosure, ""); !ok {
		return closure.Record{}, errors.New("the bundle carries no closure: it is a part of another, or several in one, or an older kkbundle built it")
	}
	data, err := readDocument(ctx, c, bundle.KindClosure, documentClosure)
	if err != nil {
		return closure.Record{}, err
	}
	return closure.ParseRecord(data)
}

// printClosure prints who needs what.
func (g *globals) printClosure(r closure.Record) error {
	if g.json {
		return printJSON(g.Out, r)
	}
	var rows [][]string
	extra := 0
	for _, e := range r.Items {
		by := "nobody: extra"
		switch n := len(e.NeededBy); {
		case n == 0:
			extra++
		case n == 1:
			by = e.NeededBy[0].String()
		default:
			by = fmt.Sprintf("%s; and %d more", e.NeededBy[0], n-1)
		}
		rows = append(rows, []string{e.Kind, e.Ref, strings.Join(e.Platforms, ","), by})
	}
	if err := printTable(g.Out, []string{"KIND", "NAME", "PLATFORMS", "NEEDED BY"}, rows); err != nil {
		return err
	}
	g.note("%s, %d that nobody needs (they are listed in the manifest); undecided: %d", count(len(rows), "item"), extra, len(r.Undecided))
	for _, text := range r.Undecided {
		g.note("undecided: %s", printable(text))
	}
	return nil
}
