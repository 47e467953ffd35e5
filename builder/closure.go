package builder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/closure"
	"github.com/kkbundle/kkbundle/proof/sbom"
)

// A ClosureError lists the items that are needed and missing.
type ClosureError struct {
	where   string
	missing []string // a sentence each
	hint    string
}

// Error has a line for each of them.
func (e *ClosureError) Error() string {
	if len(e.missing) == 1 {
		return e.where + ": " + e.missing[0]
	}
	return fmt.Sprintf("%s: %d needed items are missing:\n  %s", e.where, len(e.missing),
		strings.Join(e.missing, "\n  "))
}

// Hint returns the remedy.
func (e *ClosureError) Hint() string { return e.hint }

const (
	hintManifest = "add the missing items to the manifest (images, charts, files, packages), or correct the file that asks for them, and run kkbundle lock"
	hintBundle   = "build the bundle again with this version of kkbundle, while there is internet"
)

// missing joins errors of package closure. Other errors are returned unchanged.
func missing(where, hint string, errs ...error) error {
	out := ClosureError{where: where, hint: hint}
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

// wants returns the needs of the manifest's clusters, of its packages among the items in there, and of the places
// where f found images.
func (p *Project) wants(f *finder, there []closure.Item) ([]closure.Need, error) {
	needs := closure.OfSets(p.Manifest, there)
	for i, c := range p.clusters {
		more, err := clusterNeeds(c, p.Manifest, p.below[i])
		if err != nil {
			return nil, &InputError{err}
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
	return append(needs, closure.OfImages(f.seen.Images, p.Manifest.Platforms, own)...), nil
}

// clusterNeeds returns the needs of one cluster of a manifest. The bundle carries its files below a directory.
func clusterNeeds(c *manifest.Cluster, b *manifest.Bundle, below string) ([]closure.Need, error) {
	needs, err := closure.OfCluster(c, b.Platforms, below)
	more, bad := closure.OfPackages(c, b)
	return append(needs, more...), errors.Join(err, bad)
}

// checkLock checks that everything needed is pinned, before anything large is fetched. f is nil if the lock existed
// already.
func (p *Project) checkLock(l *manifest.Lock, f *finder) error {
	there := closure.Pinned(l)
	for _, d := range p.extras {
		there = append(there, closure.Item{Kind: d.Kind, Ref: d.Ref, Name: d.Ref})
	}
	needs, err := p.wants(f, there)
	if err != nil {
		return err
	}
	_, err = closure.Check(needs, there)
	return missing(p.File, hintManifest, err)
}

// closure proves that the items have everything needed, and returns the proof for the bundle. Charts and YAML are
// searched even with a lock, which another version of kkbundle may have made.
func (b *builder) closure(ctx context.Context, x bundle.Index) (bundle.Document, error) {
	if b.finder == nil || !b.finder.done {
		charts, err := b.lockedCharts(ctx, x.Items)
		if err != nil {
			return bundle.Document{}, err
		}
		b.finder = &finder{session: b.session, repositories: b.repositoriesIn(b.lock)}
		if err := b.finder.find(ctx, charts); err != nil {
			return bundle.Document{}, err
		}
	}
	there, err := closure.Contents(ctx, x.Items, b.cache.ReadBlob)
	if err != nil {
		return bundle.Document{}, err
	}
	needs, err := b.wants(b.finder, there)
	if err != nil {
		return bundle.Document{}, err
	}
	programs, err := b.programNeeds(ctx)
	if err != nil {
		return bundle.Document{}, err
	}
	if err := b.checkSettings(ctx); err != nil {
		return bundle.Document{}, err
	}
	needs = append(needs, programs...)
	record, err := closure.Check(needs, there)
	if err := missing(b.File, hintManifest, err); err != nil {
		return bundle.Document{}, err
	}
	record.Undecided = b.lock.Undecided
	data, err := record.Marshal()
	return bundle.Document{Kind: bundle.KindClosure, Ref: bundle.DocumentClosure, Data: data}, err
}

// lockedCharts returns the charts of the manifest with their pins. Their archives are in the cache.
func (b *builder) lockedCharts(ctx context.Context, items []bundle.Item) ([]fetch.Chart, error) {
	var list []fetch.Chart
	for _, c := range b.Manifest.Charts {
		pin, ok := b.chartPin(c)
		i := slices.IndexFunc(items,
			func(it bundle.Item) bool { return it.Kind == bundle.KindChart && it.Ref == pin.Ref })
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

// chartPin returns the pin of a chart: of several versions in a range, the newest.
func (b *builder) chartPin(c manifest.Chart) (best manifest.Pin, found bool) {
	for _, p := range b.lock.Items {
		if p.Kind != manifest.ItemChart || !c.Fits(p) {
			continue
		}
		exact := p.Version == c.Version
		if !found || exact || best.Version != c.Version && manifest.CompareVersions(p.Version, best.Version) > 0 {
			best, found = p, true
		}
	}
	return best, found
}

// archiveOf returns a chart's archive.
func (b *builder) archiveOf(ctx context.Context, it bundle.Item) (digest.Digest, error) {
	data, err := b.cache.ReadBlob(ctx, it.Descriptor.Digest, bundle.MaxDocument)
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

// billOfMaterials returns the SBOM for the bundle.
func (b *builder) billOfMaterials(ctx context.Context, x bundle.Index) (bundle.Document, error) {
	data, err := sbom.New(ctx, x, b.lock, b.cache.ReadBlob)
	return bundle.Document{Kind: bundle.KindSBOM, Ref: bundle.DocumentSBOM, Data: data}, err
}

// checkWritten checks the closure of the bundle that was just written.
func (b *builder) checkWritten(ctx context.Context) error {
	if b.Stream != nil {
		return nil
	}
	r, err := bundle.OpenWith(b.Output, b.written)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = CheckClosure(ctx, b.Output, &r.Catalog)
	return err
}

// CheckClosure compares a bundle with the proof that it carries, and with the needs of its clusters in this version
// of kkbundle. It returns the number of needed items. The error is a *ClosureError if something is missing.
func CheckClosure(ctx context.Context, name string, c *bundle.Catalog) (needed int, err error) {
	record, err := ReadClosure(ctx, c)
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

// bundleNeeds returns the needs of the cluster files that a bundle carries.
func bundleNeeds(ctx context.Context, c *bundle.Catalog) ([]closure.Need, error) {
	read := func(ref string) ([]byte, error) { return c.Document(ctx, bundle.KindManifest, ref) }
	data, err := read(bundle.DocumentManifest)
	if err != nil {
		return nil, err
	}
	b, err := parseCarried(ctx, c, data)
	if err != nil {
		return nil, err
	}
	b.Platforms = c.Index().Platforms
	listed, err := LockedKubeadm(ctx, c)
	if err != nil {
		return nil, err
	}
	base, err := CarriedCatalog(ctx, c)
	if err != nil {
		return nil, err
	}
	var needs []closure.Need
	for _, name := range b.ClusterFiles() {
		as, below := carriedAs(b, name)
		if data, err = read(as); err != nil {
			return nil, err
		}
		cluster, err := manifest.ParseClusterWith(b.Set, as, data)
		if err != nil {
			return nil, err
		}
		if cluster.Catalogs, err = ReadCatalogs(cluster, read, below); err != nil {
			return nil, err
		}
		cluster.Catalogs = append(cluster.Catalogs, listed)
		cluster.Base = base
		more, err := clusterNeeds(cluster, b, below)
		if err != nil {
			return nil, err
		}
		needs = append(needs, more...)
	}
	return needs, nil
}

// ReadClosure reads the proof that a bundle carries.
func ReadClosure(ctx context.Context, c *bundle.Catalog) (closure.Record, error) {
	if _, ok := c.Find(bundle.KindClosure, bundle.DocumentClosure, ""); !ok {
		return closure.Record{},
			errors.New("the bundle carries no closure: it was copied from other bundles, or built by an older kkbundle")
	}
	data, err := c.Document(ctx, bundle.KindClosure, bundle.DocumentClosure)
	if err != nil {
		return closure.Record{}, err
	}
	return closure.ParseRecord(data)
}
