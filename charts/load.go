// Package charts is Helm as a library: it loads charts, packages them deterministically and installs them. It is the
// only package that imports Helm.
package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// Limits on the content of a chart archive. Helm bounds one archive and one file, but gives each nested archive a fresh
// allowance, so a few kilobytes could become gigabytes. Here one allowance covers all levels.
const (
	maxArchive  = 32 << 20  // compressed bytes of the outermost archive
	maxUnpacked = 100 << 20 // bytes of all files of all levels: Helm's own limit for one archive
	maxFile     = 5 << 20   // bytes of one file: Helm's own limit
	maxEntries  = 20_000    // files of all levels
	maxName     = 1024      // bytes of one path
	maxNesting  = 8         // charts inside charts
)

// ErrTooLarge means a chart is larger or nested deeper than Helm allows.
var ErrTooLarge = errors.New("chart is larger than allowed")

// A Chart is a loaded and validated Helm chart with all its subcharts. It is safe for concurrent reading.
type Chart struct {
	helm      *chart.Chart
	unchecked []string
}

// Load reads a packaged chart (.tgz). The input is untrusted: at most 32 MiB are read, and with nested archives it may
// unpack to at most 100 MiB. Every dependency named in Chart.yaml must be inside.
func Load(r io.Reader) (*Chart, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxArchive+1))
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	if len(data) > maxArchive {
		return nil, fmt.Errorf("%w: the archive has more than %d bytes", ErrTooLarge, maxArchive)
	}
	a := allowance{bytes: maxUnpacked, entries: maxEntries}
	if err := a.archive(data, 0); err != nil {
		return nil, err
	}
	c, err := loader.LoadArchive(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
	return checked(c)
}

// LoadDir reads a chart directory like Helm: it obeys .helmignore and follows symbolic links. Every dependency named in
// Chart.yaml must be in the charts directory.
func LoadDir(dir string) (*Chart, error) {
	if _, err := os.Stat(filepath.Join(dir, "Chart.yaml")); err != nil {
		return nil, fmt.Errorf("load chart %s: not a chart directory: %w", dir, err)
	}
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("load chart %s: %w", dir, err)
	}
	return checked(c)
}

func checked(c *chart.Chart) (*Chart, error) {
	var missing []string
	for _, dep := range c.Metadata.Dependencies {
		if !slices.ContainsFunc(c.Dependencies(), func(d *chart.Chart) bool { return d.Name() == dep.Name }) {
			missing = append(missing, dep.Name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("chart %s: dependencies named in Chart.yaml are missing from charts/: %s (run \"helm dependency update\" and package it again)",
			c.Name(), strings.Join(missing, ", "))
	}
	return &Chart{helm: c, unchecked: dropSchemas(c)}, nil
}

// Name is the chart's name from Chart.yaml.
func (c *Chart) Name() string { return c.helm.Name() }

// Version is the chart's version from Chart.yaml, a semantic version.
func (c *Chart) Version() string { return c.helm.Metadata.Version }

// CRDs returns the custom resource definitions in the chart's crds directory as YAML, or nothing. Those of subcharts
// are left out, since values decide whether a subchart is enabled. Helm creates missing CRDs when it installs a
// release, and never changes existing ones.
func (c *Chart) CRDs() []byte {
	var b bytes.Buffer
	for _, crd := range c.helm.CRDObjects() {
		if strings.Contains(crd.Filename, "/charts/") {
			continue
		}
		b.WriteString("---\n")
		b.Write(bytes.TrimSpace(crd.File.Data))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Config returns Chart.yaml's metadata as JSON: byte for byte the config blob that Helm pushes with this chart.
func (c *Chart) Config() ([]byte, error) {
	data, err := json.Marshal(c.helm.Metadata)
	if err != nil {
		return nil, fmt.Errorf("chart %s: metadata: %w", c.Name(), err)
	}
	return data, nil
}

// Annotations are the annotations that Helm puts on a pushed chart's manifest, without the time of the push.
func (c *Chart) Annotations() map[string]string {
	meta := c.helm.Metadata
	out := make(map[string]string)
	maps.Copy(out, meta.Annotations)
	set := func(key, value string) {
		if strings.TrimSpace(value) != "" {
			if _, taken := out[key]; !taken {
				out[key] = value
			}
		}
	}
	delete(out, ocispec.AnnotationTitle) // these two always come from Chart.yaml
	delete(out, ocispec.AnnotationVersion)
	set(ocispec.AnnotationTitle, meta.Name)
	set(ocispec.AnnotationVersion, meta.Version)
	set(ocispec.AnnotationDescription, meta.Description)
	set(ocispec.AnnotationURL, meta.Home)
	if len(meta.Sources) > 0 {
		set(ocispec.AnnotationSource, meta.Sources[0])
	}
	set(ocispec.AnnotationAuthors, authors(meta.Maintainers))
	return out
}

func authors(maintainers []*chart.Maintainer) string {
	names := make([]string, 0, len(maintainers))
	for _, m := range maintainers {
		name := m.Name
		if m.Email != "" {
			name += " (" + m.Email + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// Archive writes the chart as a .tgz whose bytes depend only on the chart's files: sorted, mode 0644, without times.
// The content is stored, not compressed, because compressor output changes between Go releases.
func (c *Chart) Archive(w io.Writer) error {
	zw := newStored(w)
	tw := tar.NewWriter(zw)
	for _, f := range sortedFiles(c.helm.Raw) {
		// The zero ModTime is written as 1970-01-01.
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(c.Name(), f.Name), Mode: 0o644,
			Size: int64(len(f.Data)),
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("package chart %s: %s: %w", c.Name(), f.Name, err)
		}
		if _, err := tw.Write(f.Data); err != nil {
			return fmt.Errorf("package chart %s: %s: %w", c.Name(), f.Name, err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return fmt.Errorf("package chart %s: %w", c.Name(), err)
	}
	return nil
}

// sortedFiles puts Chart.yaml first, like Helm, so that tools can stop after the metadata.
func sortedFiles(raw []*chart.File) []*chart.File {
	files := slices.Clone(raw)
	slices.SortFunc(files, func(a, b *chart.File) int {
		if first := boolOrder(b.Name == "Chart.yaml") - boolOrder(a.Name == "Chart.yaml"); first != 0 {
			return first
		}
		return strings.Compare(a.Name, b.Name)
	})
	return files
}

func boolOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}

// An allowance is the remaining unpacked size of a chart archive, including nested archives.
type allowance struct {
	bytes   int64
	entries int
}

// archive walks a chart archive without keeping it. It reports only an exceeded allowance; Helm reports everything
// else.
func (a *allowance) archive(data []byte, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("%w: charts are nested more than %d deep", ErrTooLarge, maxNesting)
	}
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		if depth == 0 {
			return fmt.Errorf("not a packaged chart (.tgz): %w", err)
		}
		return nil
	}
	// Bytes between the files count too: padding and extended headers can be arbitrarily large.
	raw := &io.LimitedReader{R: zr, N: a.bytes + 1}
	tr := tar.NewReader(raw)
	for {
		before := raw.N
		h, err := tr.Next()
		a.bytes -= before - raw.N
		if a.bytes < 0 || raw.N <= 0 {
			return fmt.Errorf("%w: more than %d bytes unpacked", ErrTooLarge, maxUnpacked)
		}
		if err != nil {
			return nil
		}
		if err := a.entry(tr, h, depth); err != nil {
			return err
		}
		raw.N = min(raw.N, a.bytes+1)
	}
}

func (a *allowance) entry(tr *tar.Reader, h *tar.Header, depth int) error {
	a.entries--
	a.bytes -= h.Size // the declared size: sparse files unpack to far more than the archive holds
	switch {
	case a.entries < 0:
		return fmt.Errorf("%w: more than %d files", ErrTooLarge, maxEntries)
	case a.bytes < 0:
		return fmt.Errorf("%w: more than %d bytes unpacked", ErrTooLarge, maxUnpacked)
	case h.Size > maxFile:
		return fmt.Errorf("%w: %q has more than %d bytes", ErrTooLarge, plain.Clip(h.Name, 100), maxFile)
	case len(h.Name) > maxName || strings.Count(h.Name, "charts/") > maxNesting:
		return fmt.Errorf("%w: %q is too long or nested too deep", ErrTooLarge, plain.Clip(h.Name, 100))
	case path.Ext(h.Name) != ".tgz":
		return nil
	}
	inner, err := io.ReadAll(io.LimitReader(tr, maxFile+1))
	if err != nil {
		return nil // Helm reports a damaged archive
	}
	return a.archive(inner, depth+1)
}
