package sbom

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

const maxDocument = 4 << 20 // bytes of a manifest or configuration

// content holds the facts from an item's own documents.
type content struct {
	digest    digest.Digest   // digest of a file or chart archive, else of the item
	licence   string          // "" if unknown
	manifests []digest.Digest // the item's manifests, except attestations
}

// manifestDoc holds the fields of an index or manifest in use.
type manifestDoc struct {
	Config      *ocispec.Descriptor  `json:"config"`
	Layers      []ocispec.Descriptor `json:"layers"`
	Manifests   []ocispec.Descriptor `json:"manifests"`
	Annotations map[string]string    `json:"annotations"`
}

// configDoc holds the fields that may name a licence in the configuration of an image, or of a chart (its Chart.yaml).
type configDoc struct {
	Config struct {
		Labels map[string]string `json:"Labels"`
	} `json:"config"`
	Annotations map[string]string `json:"annotations"`
}

func (b *builder) content(ctx context.Context, it bundle.Item) (content, error) {
	w := contentWalk{read: b.read, absent: it.Absent, content: content{digest: it.Descriptor.Digest}}
	if it.Kind == bundle.KindReferrer {
		return w.content, nil
	}
	if err := w.document(ctx, it.Descriptor, 0); err != nil {
		return content{}, err
	}
	w.content.licence = joined(w.licences)
	if it.Kind != bundle.KindImage && len(w.layers) > 0 {
		w.content.digest = w.layers[0].Digest
		for _, l := range w.layers {
			if l.MediaType == bundle.MediaTypeChartContent {
				w.content.digest = l.Digest
			}
		}
	}
	return w.content, nil
}

// joined joins the licences of several platforms.
func joined(licences []string) string {
	slices.Sort(licences)
	licences = slices.Compact(licences)
	for i, text := range licences {
		if len(licences) > 1 && strings.Contains(text, " OR ") {
			licences[i] = "(" + text + ")"
		}
	}
	return strings.Join(licences, " AND ")
}

// A contentWalk reads an item's documents.
type contentWalk struct {
	read     ReadBlob
	absent   []digest.Digest
	descent  bundle.Descent
	content  content
	licences []string
	layers   []ocispec.Descriptor
}

func (w *contentWalk) document(ctx context.Context, d ocispec.Descriptor, depth int) error {
	if first, err := w.descent.Enter(d.Digest, depth); err != nil || !first {
		return err
	}
	w.content.manifests = append(w.content.manifests, d.Digest)
	data, err := w.read(ctx, d.Digest, maxDocument)
	if err != nil {
		return err
	}
	var doc manifestDoc
	if err := bundle.DecodeManifest(data, &doc); err != nil {
		return fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if err := w.descent.Count(len(doc.Manifests)); err != nil {
		return err
	}
	w.layers = append(w.layers, doc.Layers...)
	before := len(w.licences)
	w.says(doc.Annotations[ocispec.AnnotationLicenses])
	for _, child := range doc.Manifests {
		if slices.Contains(w.absent, child.Digest) || bundle.PlatformString(child.Platform) == "unknown/unknown" {
			continue
		}
		if err := w.document(ctx, child, depth+1); err != nil {
			return err
		}
	}
	if doc.Config == nil || len(w.licences) > before {
		return nil
	}
	return w.config(ctx, *doc.Config)
}

// config reads an image's labels and a chart's annotations (https://artifacthub.io/docs/topics/annotations/helm/).
func (w *contentWalk) config(ctx context.Context, d ocispec.Descriptor) error {
	known := []string{
		ocispec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json",
		bundle.MediaTypeChartConfig,
	}
	if !slices.Contains(known, d.MediaType) || d.Size > maxDocument {
		return nil
	}
	data, err := w.read(ctx, d.Digest, maxDocument)
	if err != nil {
		return err
	}
	var doc configDoc
	if bundle.DecodeManifest(data, &doc) != nil {
		return nil // an upstream problem; the licence is unknown
	}
	w.says(doc.Config.Labels[ocispec.AnnotationLicenses])
	for _, key := range []string{"artifacthub.io/license", "licenses", ocispec.AnnotationLicenses} {
		if len(w.licences) == 0 {
			w.says(doc.Annotations[key])
		}
	}
	return nil
}

func (w *contentWalk) says(text string) {
	if text = strings.TrimSpace(text); text != "" {
		w.licences = append(w.licences, text)
	}
}
