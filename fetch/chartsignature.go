package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/fetch/packages/signature"
	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
)

const maxProvenanceValues = 1 << 14

// errUnsignedChart means that a chart has no provenance file, which its manifest demands.
var errUnsignedChart = errors.New(
	"the chart has no provenance file (.prov), which verify needs: ask its publisher to sign it, or leave verify out")

// checkChart requires a provenance file of Helm that a given key signed, for this chart and archive. The format is that
// of helm package --sign: a clear-signed text with Chart.yaml, "..." and the digests of the files.
func checkChart(dir upstream.BaseDir, v *manifest.ChartVerify, pin manifest.Pin, archive digest.Digest,
	provenance []byte,
) error {
	data, err := capped.ReadFile(dir.Path(v.Key), signature.MaxKeyring)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	keys, err := signature.ReadKeys(data)
	if err != nil {
		return fmt.Errorf("verify: %s: %w", v.Key, err)
	}
	text, err := keys.Clear(provenance, time.Now())
	if err != nil {
		return fmt.Errorf("provenance file: %w", err)
	}
	return describes(text, pin, archive)
}

// describes compares the text of a provenance file with a chart.
func describes(text []byte, pin manifest.Pin, archive digest.Digest) error {
	if n := capped.Values(text); n > maxProvenanceValues {
		return fmt.Errorf("provenance file: about %d values; at most %d are read", n, maxProvenanceValues)
	}
	var chart struct {
		Name    string `yaml:"name"`
		Version string `yaml:"version"`
	}
	var sums struct {
		Files map[string]string `yaml:"files"`
	}
	head, tail, ok := bytes.Cut(text, []byte("\n...\n"))
	if !ok {
		return errors.New("provenance file: it has no digests of files")
	}
	if err := errors.Join(yaml.Unmarshal(head, &chart), yaml.Unmarshal(tail, &sums)); err != nil {
		return fmt.Errorf("provenance file: %w", err)
	}
	if chart.Name != pin.Name || chart.Version != pin.Version && !equalVersions(chart.Version, pin.Version) {
		return fmt.Errorf("provenance file: it is signed for chart %s %s instead of %s %s",
			upstream.Printable(chart.Name), upstream.Printable(chart.Version), pin.Name, pin.Version)
	}
	for _, sum := range sums.Files {
		if sum == archive.String() {
			return nil
		}
	}
	return fmt.Errorf("provenance file: none of its %d files has the archive's digest %s", len(sums.Files), archive)
}

// verifyChart checks the stored provenance file of a chart, if the manifest demands that.
func (h *helmCharts) verifyChart(ctx context.Context, v *manifest.ChartVerify, pin manifest.Pin,
	archive digest.Digest,
) (manifest.Pin, error) {
	if v == nil {
		return pin, nil
	}
	if pin.Provenance == "" {
		return pin, errUnsignedChart
	}
	provenance, ok, err := h.cache.Stored(ctx, pin.Provenance, maxProvenance)
	if err == nil && !ok {
		err = &upstream.StoreError{Cause: fmt.Errorf("blob %s has disappeared from the cache", pin.Provenance)}
	}
	if err == nil {
		err = checkChart(h.local.dir, v, pin, archive, provenance)
	}
	if err != nil {
		return pin, err
	}
	pin.Verified = manifest.VerifiedSignature
	return pin, nil
}

// verifyOCIChart checks the provenance file in a chart's artifact.
func (h *helmCharts) verifyOCIChart(ctx context.Context, r *registries.Repository, v *manifest.ChartVerify,
	pin manifest.Pin, doc registries.Manifest,
) (manifest.Pin, error) {
	if v == nil {
		return pin, nil
	}
	archive, signed, err := chartLayers(doc)
	if err != nil {
		return pin, err
	}
	if signed.Digest == "" {
		return pin, errUnsignedChart
	}
	if err := r.Bring(ctx, signed.Digest, signed.Size); err != nil {
		return pin, err
	}
	pin.Provenance = signed.Digest
	pin, err = h.verifyChart(ctx, v, pin, archive.Digest)
	pin.Provenance = "" // it is part of the artifact
	return pin, err
}
