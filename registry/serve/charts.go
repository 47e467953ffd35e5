package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry"
)

const (
	indexFile      = "index.yaml"
	maxChartConfig = 1 << 20 // bytes of a chart's metadata
	provenance     = ".prov"
)

// chartWord matches names and versions of charts.
var chartWord = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._+-]*$`)

// A chart is one version of a chart in a Helm repository's index.
type chart struct {
	dir      string // of its upstream repository
	name     string
	version  *semver.Version
	metadata map[string]any // Chart.yaml with the index's additions
	archive  blob
}

// charts serves a Helm repository of all charts, and one for each upstream repository:
// /charts/<host>/<path>/index.yaml. index.yaml is written as JSON, which is YAML, and which Helm reads faster.
func (s *Server) charts(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	if err := s.chart(w, r, sh); err != nil {
		plainError(w, err)
	}
}

func (s *Server) chart(w http.ResponseWriter, r *http.Request, sh *snapshot) error {
	t, err := sh.chartsOf.get(func() (*chartIndex, error) {
		return s.buildCharts(context.WithoutCancel(r.Context()),
			sh.books)
	})
	if err != nil {
		return err
	}
	path := strings.TrimPrefix(r.URL.Path, "/charts/")
	if l, ok := t.find(path); ok {
		return s.sendLeaf(w, r, l, "application/gzip")
	}
	if dir, ok := strings.CutSuffix(path, indexFile); ok && isDir(dir) && (dir == "" || len(t.under(dir)) > 0) {
		body, err := t.index(dir)
		if err != nil {
			return err
		}
		sendBytes(w, r, "application/yaml", body)
		return nil
	}
	if isDir(path) && (path == "" || len(t.under(path)) > 0) {
		return s.render(w, r, "listing", t.listing("/charts/", path))
	}
	return notFound(codeBlobUnknown, "no such chart; /charts/index.yaml lists all charts")
}

// A chartIndex is the tree of charts with their metadata.
type chartIndex struct {
	tree
	charts []chart // by name, newest version first
}

// buildCharts reads the metadata of every chart. At the root each version of a name exists once; the last bundle wins.
func (s *Server) buildCharts(ctx context.Context, books []*book) (*chartIndex, error) {
	t, taken := &chartIndex{}, make(map[string]digest.Digest)
	for i := len(books) - 1; i >= 0; i-- {
		b := books[i]
		items := b.reader.Index().Items
		for j := range items {
			if items[j].Kind != bundle.KindChart {
				continue
			}
			c, signature, err := b.chart(ctx, &items[j])
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				s.log.Error("a chart is not in the Helm repository", "chart", items[j].Ref, "bundle", b.path, "error",
					err)
				continue
			}
			t.plant(c, signature, taken)
		}
	}
	t.sort()
	slices.SortStableFunc(t.charts,
		func(a, b chart) int { return cmp.Or(cmp.Compare(a.name, b.name), b.version.Compare(a.version)) })
	return t, nil
}

func (t *chartIndex) plant(c chart, signature blob, taken map[string]digest.Digest) {
	file := c.name + "-" + c.version.Original() + ".tgz"
	if t.add(leaf{path: c.dir + "/" + file, blob: c.archive}, taken) {
		t.charts = append(t.charts, c)
		if signature.book != nil {
			t.add(leaf{path: c.dir + "/" + file + provenance, blob: signature}, taken)
		}
	}
	if t.add(leaf{path: file, blob: c.archive}, taken) && signature.book != nil {
		t.add(leaf{path: file + provenance, blob: signature}, taken)
	}
}

// chart reads one chart's metadata, and finds its archive and its provenance, if any.
func (b *book) chart(ctx context.Context, it *bundle.Item) (c chart, signature blob, err error) {
	m, err := b.manifest(ctx, it.Descriptor)
	if err != nil {
		return c, signature, err
	}
	data, err := b.read(ctx, m.Config.Digest, maxChartConfig)
	if err != nil {
		return c, signature, err
	}
	if err := json.Unmarshal(data, &c.metadata); err != nil {
		return c, signature, fmt.Errorf("its metadata: %w", err)
	}
	name, _ := c.metadata["name"].(string)
	version, _ := c.metadata["version"].(string)
	if !chartWord.MatchString(name) || !chartWord.MatchString(version) {
		return c, signature, fmt.Errorf("name %q and version %q are not valid for a chart", name, version)
	}
	if c.version, err = semver.NewVersion(version); err != nil {
		return c, signature, fmt.Errorf("version %q: %w", version, err)
	}
	if c.archive, err = b.layer(ctx, it.Descriptor, bundle.MediaTypeChartContent); err != nil {
		return c, signature, err
	}
	for _, l := range m.Layers {
		if l.MediaType == bundle.MediaTypeChartProvenance {
			signature, _ = b.blob(l)
		}
	}
	c.name, c.dir = name, chartDir(it.Ref)
	c.metadata["digest"] = c.archive.digest.Encoded()
	return c, signature, nil
}

// chartDir returns the directory of a chart's upstream repository, <host>/<path>.
func chartDir(ref string) string {
	u, err := url.Parse(ref)
	if err != nil || u.Host == "" {
		return "local"
	}
	dir, _, _ := cutLast("/" + strings.Trim(u.Path, "/"))
	return cleanPath(registry.UpstreamPath(u.Host), dir)
}

// index returns index.yaml of the charts below a directory.
func (t *chartIndex) index(dir string) ([]byte, error) {
	entries := make(map[string][]map[string]any)
	for _, c := range t.charts {
		path := c.name + "-" + c.version.Original() + ".tgz"
		if dir != "" {
			path = c.dir + "/" + path
		}
		l, ok := t.find(path)
		if !ok || !strings.HasPrefix(path, dir) || l.blob.digest != c.archive.digest {
			continue // a chart of another bundle or repository has the name
		}
		if has := entries[c.name]; dir == "" && len(has) > 0 && has[len(has)-1]["version"] == c.metadata["version"] {
			continue // the same chart from two repositories
		}
		one := make(map[string]any, len(c.metadata)+1)
		maps.Copy(one, c.metadata)
		one["urls"] = []string{escapePath(path[len(dir):])}
		entries[c.name] = append(entries[c.name], one)
	}
	body, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "entries": entries}, "", " ")
	return append(body, '\n'), err
}
