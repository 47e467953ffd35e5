package software

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"
)

// webChart is where the chart of a user's application is, below files/.
const webChart = "charts.lab.example/stable/web-1.0.0.tgz"

// charts publishes two chart repositories: flannel's, whose index points at a file on another host, and a user's, whose
// index has relative addresses.
func (f fileSet) charts(ctx context.Context, small bool) error {
	web, err := folder(sources, "src/web", "web")
	if err != nil {
		return fmt.Errorf("chart web: %w", err)
	}
	if err := f.chart("charts.lab.example/stable", path.Base(webChart), webChart, web); err != nil || small {
		return err
	}
	own := ownFlannel()
	flannel, err := own.chart(ctx, f.b)
	if err != nil {
		return err
	}
	return f.chart("flannel-io.github.io/flannel", "https://"+own.chartFile(), own.chartFile(), flannel)
}

// chart publishes one chart as the file to, and a repository whose index names it as url.
func (f fileSet) chart(repo, url, to string, entries []entry) error {
	name, err := f.place(to)
	if err != nil {
		return err
	}
	if err := archive(name, entries); err != nil {
		return fmt.Errorf("publish %s: %w", to, err)
	}
	sum, err := sumOf(name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(entries, func(e entry) bool { return path.Base(e.Name) == "Chart.yaml" })
	version := map[string]any{}
	if err := yaml.Unmarshal([]byte(entries[i].Text), &version); err != nil {
		return fmt.Errorf("chart of %s: %w", to, err)
	}
	version["urls"], version["digest"], version["created"] = []string{url}, sum, epoch()
	chart, _ := version["name"].(string)
	index, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "generated": epoch(), "entries": map[string]any{chart: []any{version}},
	})
	if err != nil {
		return fmt.Errorf("index of %s: %w", repo, err)
	}
	return f.text(repo+"/index.yaml", string(index))
}

// publishChart pushes a chart's file to a registry as the artifact that Helm makes of it.
func publishChart(ctx context.Context, ref, file string) error {
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		return err
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("chart %s: %w", ref, err)
	}
	meta, err := sources.ReadFile("src/web/Chart.yaml")
	if err != nil {
		return fmt.Errorf("chart %s: %w", ref, err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(meta, &fields); err != nil {
		return fmt.Errorf("chart %s: %w", ref, err)
	}
	config, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("chart %s: %w", ref, err)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, blob := range []struct {
		data  []byte
		media types.MediaType
	}{
		{config, "application/vnd.cncf.helm.config.v1+json"},
		{archive, "application/vnd.cncf.helm.chart.content.v1.tar+gzip"},
	} {
		l := static.NewLayer(blob.data, blob.media)
		if err := remote.WriteLayer(tag.Repository, l, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("chart %s: %w", ref, err)
		}
		m.Layers = append(m.Layers, v1.Descriptor{
			MediaType: blob.media, Size: int64(len(blob.data)),
			Digest: sha256Of(blob.data),
		})
	}
	m.Config, m.Layers = m.Layers[0], m.Layers[1:]
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("chart %s: %w", ref, err)
	}
	return remote.Put(tag, rawManifest(raw), remote.WithContext(ctx))
}

// rawManifest is a manifest that is pushed as it is.
type rawManifest []byte

func (r rawManifest) RawManifest() ([]byte, error) { return r, nil }

func (r rawManifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
