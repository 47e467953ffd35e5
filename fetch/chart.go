package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/fetch/helmindex"
	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	chartConfig     = "application/vnd.cncf.helm.config.v1+json"
	chartContent    = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	chartProvenance = "application/vnd.cncf.helm.chart.provenance.v1.prov"

	maxProvenance = 1 << 20
)

// chartLabel names a chart that is not resolved yet.
func chartLabel(c manifest.Chart) string {
	if c.Path != "" {
		return c.Path
	}
	return manifest.ChartRef(c, c.Name, cmp.Or(c.Version, "latest"))
}

// helmCharts pins and brings charts: local ones, and those of Helm repositories and registries.
type helmCharts struct {
	kept       kept
	web        *webFiles
	registries *registries.Registries
	local      *localFiles
	cache      *upstream.Cache
}

// resolve pins a chart.
func (h *helmCharts) resolve(ctx context.Context, c manifest.Chart) (manifest.Pin, error) {
	if pin, ok := h.kept.chart(c, h.web); ok {
		if c.Verify == nil {
			return pin, nil
		}
		c.Version = pin.Version // its signature is checked again
	}
	switch {
	case c.Path != "":
		return h.resolveLocal(ctx, c)
	case c.URL != "":
		return h.resolveURL(ctx, c)
	case isRegistryAddress(c.Repo):
		return h.resolveOCI(ctx, c)
	}
	return h.resolveRepo(ctx, c)
}

func (h *helmCharts) resolveLocal(ctx context.Context, c manifest.Chart) (manifest.Pin, error) {
	desc, err := h.storeLocal(ctx, c.Path, "", false)
	if err != nil {
		return manifest.Pin{}, err
	}
	loaded, err := h.load(ctx, desc.Digest)
	if err != nil {
		return manifest.Pin{}, err
	}
	if c.Name != "" && c.Name != loaded.Name() {
		return manifest.Pin{}, fmt.Errorf("the manifest names the chart %s, but its Chart.yaml says %s", c.Name,
			loaded.Name())
	}
	return manifest.Pin{
		Kind:     manifest.ItemChart,
		Ref:      manifest.ChartRef(c, loaded.Name(), loaded.Version()),
		Name:     loaded.Name(),
		Version:  loaded.Version(),
		URL:      c.Path,
		Digest:   desc.Digest,
		Size:     desc.Size,
		Verified: manifest.VerifiedFirstUse,
	}, nil
}

// storeLocal stores a local chart archive unchanged, or a directory after packaging it.
func (h *helmCharts) storeLocal(ctx context.Context, file string, want digest.Digest,
	planned bool,
) (ocispec.Descriptor, error) {
	name := h.local.dir.Path(file)
	info, err := os.Stat(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if !info.IsDir() {
		return h.local.store(ctx, file, want, planned)
	}
	return upstream.Once(&h.cache.Flights, "local "+name+" "+want.String(), func() (ocispec.Descriptor, error) {
		loaded, err := charts.LoadDir(name)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		return h.cache.CopyIn(ctx, "local "+name, want, func(w io.Writer) error {
			if !planned {
				w = io.MultiWriter(w, totalWriter(h.cache.Count))
			}
			return loaded.Archive(w)
		})
	})
}

// totalWriter adds the written bytes to the session's total.
type totalWriter func(total, done, cached int64)

func (t totalWriter) Write(p []byte) (int, error) {
	t(int64(len(p)), 0, 0)
	return len(p), nil
}

// load loads a chart archive from the store.
func (h *helmCharts) load(ctx context.Context, d digest.Digest) (*charts.Chart, error) {
	rc, err := h.cache.Store.Open(ctx, d)
	if err != nil {
		return nil, &upstream.StoreError{Cause: err}
	}
	c, err := charts.Load(rc)
	if closeErr := rc.Close(); err == nil && closeErr != nil {
		return nil, &upstream.StoreError{Cause: closeErr}
	}
	return c, err
}

func (h *helmCharts) resolveURL(ctx context.Context, c manifest.Chart) (manifest.Pin, error) {
	pin, err := h.web.pinURL(ctx, manifest.Pin{Kind: manifest.ItemChart, Ref: c.URL}, c.URL, "")
	if err != nil {
		return pin, err
	}
	loaded, err := h.load(ctx, pin.Digest)
	if err != nil {
		return pin, err
	}
	pin.Name, pin.Version = loaded.Name(), loaded.Version()
	if c.Name != "" && c.Name != pin.Name {
		return pin, fmt.Errorf("the manifest names the chart %s, but its Chart.yaml says %s", c.Name, pin.Name)
	}
	if pin, err = h.pinProvenance(ctx, pin, c.URL); err != nil {
		return pin, err
	}
	return h.verifyChart(ctx, c.Verify, pin, pin.Digest)
}

func (h *helmCharts) resolveRepo(ctx context.Context, c manifest.Chart) (manifest.Pin, error) {
	versions, err := h.versions(ctx, c.Repo, c.Name)
	if err != nil {
		return manifest.Pin{}, err
	}
	chosen, err := pickVersion(versions, c.Version, func(v helmindex.Version) string { return v.Version })
	if err != nil {
		return manifest.Pin{}, fmt.Errorf("chart %s in %s: %w", c.Name, c.Repo, err)
	}
	address, err := archiveAddress(chosen, c.Repo)
	if err != nil {
		return manifest.Pin{}, fmt.Errorf("chart %s %s in %s: %w", c.Name, chosen.Version, c.Repo, err)
	}
	verified, err := h.web.vouchesFor(indexAddress(c.Repo))
	if err != nil {
		return manifest.Pin{}, err
	}
	pin := manifest.Pin{
		Kind:     manifest.ItemChart,
		Ref:      manifest.ChartRef(c, c.Name, chosen.Version),
		Name:     c.Name,
		Version:  chosen.Version,
		URL:      address,
		Verified: verified,
	}
	if isRegistryAddress(address) {
		pin, err = h.pinIndexed(ctx, pin, archiveDigest(chosen))
	} else if pin, err = h.web.pinURL(ctx, pin, address, archiveDigest(chosen)); err == nil {
		pin, err = h.pinProvenance(ctx, pin, address)
	}
	if err != nil {
		return pin, err
	}
	return h.verifyChart(ctx, c.Verify, pin, pin.Digest)
}

// pinProvenance pins the provenance file beside a chart archive, if there is one: it becomes part of the artifact.
func (h *helmCharts) pinProvenance(ctx context.Context, pin manifest.Pin, address string) (manifest.Pin, error) {
	d, err := h.provenance(address, "")
	if err != nil {
		return pin, err
	}
	data, _, err := d.Get(ctx, http.MethodGet, maxProvenance)
	// Object stores answer 403 for missing files.
	if upstream.Lacking(err, http.StatusNotFound, http.StatusGone, http.StatusForbidden, http.StatusUnauthorized) {
		return pin, nil
	}
	if err != nil {
		return pin, err
	}
	if !strings.Contains(string(data), "-----BEGIN PGP SIGN") {
		return pin, nil // an error page for people
	}
	pin.Provenance = upstream.SHA256Of(data)
	return pin, h.cache.Put(ctx, data, pin.Provenance)
}

// provenance returns the download of the provenance file beside a chart archive.
func (h *helmCharts) provenance(address string, want digest.Digest) (*upstream.Download, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	u.Path += ".prov"
	if u.RawPath != "" {
		u.RawPath += ".prov"
	}
	return h.web.urlDownload(u.String(), want, -1)
}

// ociRepository parses oci://host/path and a chart's name.
func ociRepository(repo, chart string) (name.Repository, error) {
	rest := strings.TrimSuffix(strings.TrimPrefix(repo, "oci://"), "/")
	parsed, err := name.NewRepository(rest+"/"+chart, name.StrictValidation)
	if err != nil {
		return parsed, fmt.Errorf("%s/%s is not an OCI reference: %w", repo, chart, err)
	}
	return parsed, nil
}

func (h *helmCharts) resolveOCI(ctx context.Context, c manifest.Chart) (manifest.Pin, error) {
	home, err := ociRepository(c.Repo, c.Name)
	if err != nil {
		return manifest.Pin{}, err
	}
	repo, err := h.registries.Repository(home)
	if err != nil {
		return manifest.Pin{}, err
	}
	tag, root, data, err := h.tagged(ctx, repo, c)
	if err != nil {
		return manifest.Pin{}, err
	}
	root, doc, err := chartOf(ctx, repo, root, data)
	if err != nil {
		return manifest.Pin{}, err
	}
	pin := manifest.Pin{
		Kind:      manifest.ItemChart,
		Name:      c.Name,
		Version:   tag,
		Digest:    root.Digest,
		Size:      root.Size,
		MediaType: root.MediaType,
		Verified:  vouches(repo.Peers),
	}
	if !isPrecise(tag) {
		if pin.Version, err = chartVersionOf(ctx, repo, doc); err != nil {
			return manifest.Pin{}, err
		}
	}
	pin.Ref = manifest.ChartRef(c, c.Name, pin.Version)
	if c.Version != "" && !c.Fits(pin) {
		return manifest.Pin{}, fmt.Errorf("chart %s in %s: the tag %s has version %s of the chart: name that version",
			c.Name, c.Repo, upstream.Printable(tag), upstream.Printable(pin.Version))
	}
	return h.verifyOCIChart(ctx, repo, c.Verify, pin, doc)
}

// tagged returns the tag of a chart's version, as a version, and its manifest.
func (h *helmCharts) tagged(ctx context.Context, repo *registries.Repository,
	c manifest.Chart,
) (tag string, root ocispec.Descriptor, data []byte, err error) {
	exact := isPrecise(c.Version)
	if exact {
		root, data, err = repo.Resolve(ctx, asTag(c.Version))
		if err == nil || !upstream.Lacking(err, http.StatusNotFound) {
			return c.Version, root, data, err
		}
	}
	missing := err
	tags, err := repo.Tags(ctx)
	if err != nil {
		return "", root, nil, cmp.Or(missing, err)
	}
	for i, tag := range tags {
		tags[i] = asVersion(tag)
	}
	if exact { // a tag with a v, or without
		tags = slices.DeleteFunc(tags, func(tag string) bool { return !equalVersions(tag, c.Version) })
		if len(tags) == 0 {
			return "", root, nil, missing
		}
	}
	if tag, err = pickVersion(tags, c.Version, func(v string) string { return v }); err != nil {
		return "", root, nil, fmt.Errorf("chart %s in %s: %w", c.Name, c.Repo, err)
	}
	root, data, err = repo.Resolve(ctx, asTag(tag))
	return tag, root, data, err
}

// asTag returns the tag of a chart's version: tags cannot have a plus sign, and this is Helm's replacement.
func asTag(version string) string { return strings.ReplaceAll(version, "+", "_") }

// asVersion returns the version that has the tag.
func asVersion(tag string) string { return strings.ReplaceAll(tag, "_", "+") }

// isPrecise reports whether a tag is one whole version: others, such as 1.2, can move.
func isPrecise(tag string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(tag, "v"))
	return err == nil
}

// chartOf returns the manifest of the chart that a tag leads to.
func chartOf(ctx context.Context, repo *registries.Repository, root ocispec.Descriptor,
	data []byte,
) (_ ocispec.Descriptor, doc registries.Manifest, err error) {
	if registries.IsIndex(root.MediaType) {
		if root, data, err = chartIn(ctx, repo, root, data); err != nil {
			return root, doc, err
		}
	}
	doc, err = chartManifest(root, data)
	return root, doc, err
}

// chartIn returns the chart among the manifests of an index. Some projects publish their images and their chart under
// one tag; Helm takes the chart.
func chartIn(ctx context.Context, repo *registries.Repository, root ocispec.Descriptor,
	data []byte,
) (ocispec.Descriptor, []byte, error) {
	doc, err := registries.ParseManifest(root, data)
	if err != nil {
		return root, nil, err
	}
	const most = 20 // manifests to read; the descriptor of a chart mostly says what it is
	read := 0
	for _, child := range doc.Manifests {
		named := child.ArtifactType == chartConfig
		isImage := child.Platform != nil && child.Platform.Architecture != "" &&
			child.Platform.Architecture != "unknown"
		if registries.IsIndex(child.MediaType) || !named && (child.ArtifactType != "" || isImage) {
			continue
		}
		if read++; read > most {
			break
		}
		desc, text, err := repo.Manifest(ctx, ocispec.Descriptor{
			Digest: child.Digest, Size: child.Size,
			MediaType: child.MediaType,
		})
		if err != nil {
			return root, nil, err
		}
		if _, err := chartManifest(desc, text); err == nil {
			return desc, text, nil
		}
	}
	return root, nil, errors.New("not a Helm chart: an index without one")
}

// chartVersionOf returns the version in the config of a chart, which is its Chart.yaml.
func chartVersionOf(ctx context.Context, repo *registries.Repository, doc registries.Manifest) (string, error) {
	if doc.Config.Size > registries.MaxConfig {
		return "", fmt.Errorf("config %s: %d bytes are more than the %d allowed", doc.Config.Digest, doc.Config.Size,
			registries.MaxConfig)
	}
	data, err := repo.Small(ctx, *doc.Config, registries.MaxConfig)
	if err != nil {
		return "", err
	}
	var config struct {
		Version string `json:"version"`
	}
	if err := capped.JSON(data, registries.MaxValues, &config); err != nil {
		return "", fmt.Errorf("config %s: %w", doc.Config.Digest, err)
	}
	if _, err := semver.NewVersion(config.Version); err != nil {
		return "", fmt.Errorf("config %s: the chart's version %q is no version", doc.Config.Digest,
			upstream.Printable(config.Version))
	}
	return config.Version, nil
}

// chartManifest checks that a manifest is that of a Helm chart.
func chartManifest(root ocispec.Descriptor, data []byte) (registries.Manifest, error) {
	doc, err := registries.ParseManifest(root, data)
	if err != nil {
		return doc, err
	}
	if registries.IsIndex(root.MediaType) || doc.Config == nil || doc.Config.MediaType != chartConfig {
		return doc, errors.New("not a Helm chart")
	}
	return doc, nil
}

// plan returns the plan of a pinned chart.
func (h *helmCharts) plan(ctx context.Context, pin manifest.Pin) (*plan, error) {
	if registries.IsManifest(pin.MediaType) {
		return h.planOCI(ctx, pin)
	}
	p := &plan{}
	if strings.HasPrefix(pin.Ref, localPrefix) {
		p.blobs = []blob{{digest: pin.Digest, size: pinnedSize(pin), fetch: func(ctx context.Context) error {
			_, err := h.storeLocal(ctx, pin.URL, pin.Digest, pin.Size > 0)
			return changedLocally(err)
		}}}
	} else {
		archive, signed, err := h.downloads(pin)
		if err != nil {
			return nil, err
		}
		p.blobs = []blob{pinnedBlob(archive, pin)}
		if signed != nil {
			p.blobs = append(p.blobs, blobOf(signed))
		}
	}
	p.needAll()
	p.finish = func(ctx context.Context) (ocispec.Descriptor, error) { return h.artifact(ctx, pin) }
	return p, nil
}

// downloads returns those of a pinned archive and of its provenance file, nil if it has none.
func (h *helmCharts) downloads(pin manifest.Pin) (archive, signed *upstream.Download, err error) {
	if pin.Provenance != "" {
		if err := upstream.CheckDigest(pin.Provenance); err != nil {
			return nil, nil, err
		}
	}
	if isRegistryAddress(pin.URL) {
		return h.indexedDownloads(pin)
	}
	address := cmp.Or(pin.URL, pin.Ref)
	if archive, err = h.web.urlDownload(address, pin.Digest, pinnedSize(pin)); err == nil && pin.Provenance != "" {
		signed, err = h.provenance(address, pin.Provenance)
	}
	return archive, signed, err
}

func (h *helmCharts) planOCI(ctx context.Context, pin manifest.Pin) (*plan, error) {
	rest, _ := strings.CutSuffix(pin.Ref, ":"+pin.Version)
	home, err := name.NewRepository(strings.TrimPrefix(rest, "oci://"), name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("not an OCI reference: %w", err)
	}
	repo, err := h.registries.Repository(home)
	if err != nil {
		return nil, err
	}
	img, err := pinnedImage(ctx, repo, pin, nil)
	if err != nil {
		return nil, err
	}
	p := planOf(repo, img)
	p.needAll()
	p.finish = func(ctx context.Context) (ocispec.Descriptor, error) { return img.Root, h.checkOCI(ctx, pin, img) }
	return p, nil
}

// checkOCI loads a chart from a registry, so that an invalid chart is found before the site has it.
func (h *helmCharts) checkOCI(ctx context.Context, pin manifest.Pin, img registries.Image) error {
	i := slices.IndexFunc(img.Blobs, isChartArchive)
	if i < 0 {
		return errNoArchive
	}
	c, err := h.load(ctx, img.Blobs[i].Digest)
	if err != nil {
		return err
	}
	if c.Version() == pin.Version || equalVersions(c.Version(), pin.Version) {
		return nil // the name of the repository need not be the chart's
	}
	return sameChart(pin, c)
}

// sameChart compares the name and version in an index or tag with the archive.
func sameChart(pin manifest.Pin, c *charts.Chart) error {
	if c.Name() == pin.Name && (c.Version() == pin.Version || equalVersions(c.Version(), pin.Version)) {
		return nil
	}
	return fmt.Errorf("the archive has chart %s %s instead of %s %s", upstream.Printable(c.Name()),
		upstream.Printable(c.Version()), pin.Name, pin.Version)
}

func equalVersions(a, b string) bool {
	x, err1 := semver.NewVersion(a)
	y, err2 := semver.NewVersion(b)
	return err1 == nil && err2 == nil && x.Equal(y)
}

// artifact makes the artifact that Helm would push for a chart archive in the store.
func (h *helmCharts) artifact(ctx context.Context, pin manifest.Pin) (ocispec.Descriptor, error) {
	c, err := h.load(ctx, pin.Digest)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := sameChart(pin, c); err != nil {
		return ocispec.Descriptor{}, err
	}
	config, err := c.Config()
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	m := ocispec.Manifest{
		Config: ocispec.Descriptor{
			MediaType: chartConfig, Digest: upstream.SHA256Of(config), Size: int64(len(config)),
		},
		Annotations: c.Annotations(),
	}
	if err := h.cache.Put(ctx, config, m.Config.Digest); err != nil {
		return ocispec.Descriptor{}, err
	}
	for _, layer := range []ocispec.Descriptor{
		{MediaType: chartContent, Digest: pin.Digest},
		{MediaType: chartProvenance, Digest: pin.Provenance},
	} {
		if layer.Digest == "" {
			continue
		}
		size, ok, err := h.cache.Store.Stat(ctx, layer.Digest)
		if err != nil || !ok {
			return ocispec.Descriptor{},
				&upstream.StoreError{
					Cause: cmp.Or(err, fmt.Errorf("blob %s has disappeared from the cache", layer.Digest)),
				}
		}
		layer.Size = size
		m.Layers = append(m.Layers, layer)
	}
	// Helm's order.
	slices.SortFunc(m.Layers, func(a, b ocispec.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
	return putManifest(ctx, h.cache, m)
}
