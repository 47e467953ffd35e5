package build

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Question is the input of fetch.Outdated.
type Question struct {
	Pins    []manifest.Pin
	Sources []manifest.Source
}

// NewQuestion reads a manifest or a lock.
func NewQuestion(path string) (*Question, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	if isLock(data) {
		return lockQuestion(path, data)
	}
	p, err := Load(path)
	if err != nil {
		return nil, err
	}
	q := &Question{Sources: p.Manifest.Sources}
	l, err := p.Lock()
	switch {
	case err != nil:
		return nil, err
	case l != nil && l.Covers(p.Manifest) == nil:
		q.Pins = l.Items
	default:
		q.Pins, err = unlocked(p.Manifest)
	}
	return q, err
}

// lockQuestion takes the sources from the manifest beside the lock, if there is one.
func lockQuestion(path string, data []byte) (*Question, error) {
	l, err := manifest.ParseLock(path, data)
	if err != nil {
		return nil, err
	}
	q := &Question{Pins: l.Items}
	ext := filepath.Ext(path)
	beside := strings.TrimSuffix(strings.TrimSuffix(path, ext), ".lock") + ext
	if _, err := os.Stat(beside); err != nil || beside == path {
		return q, nil //nolint:nilerr // the manifest is optional
	}
	p, err := Load(beside)
	if err != nil {
		return nil, err
	}
	q.Sources = p.Manifest.Sources
	return q, nil
}

// BundleQuestion returns the pins of a bundle's lock, or of its index without a lock, and the sources of its manifest.
func BundleQuestion(ctx context.Context, r *bundle.Reader) (*Question, error) {
	q := &Question{}
	if _, ok := r.Find(bundle.KindManifest, bundle.DocumentManifest, ""); ok {
		data, err := r.Document(ctx, bundle.KindManifest, bundle.DocumentManifest)
		if err != nil {
			return nil, err
		}
		b, err := manifest.ParseBundle(bundle.DocumentManifest, data)
		if err != nil {
			return nil, err
		}
		q.Sources = b.Sources
	}
	if _, ok := r.Find(bundle.KindLock, bundle.DocumentLock, ""); ok {
		data, err := r.Document(ctx, bundle.KindLock, bundle.DocumentLock)
		if err != nil {
			return nil, err
		}
		l, err := manifest.ParseLock(bundle.DocumentLock, data)
		if err != nil {
			return nil, err
		}
		q.Pins = l.Items
		return q, nil
	}
	for _, it := range r.Index().Items {
		pin := manifest.Pin{Kind: it.Kind, Ref: it.Ref, Name: it.Name, Version: it.Version, Platform: bundle.PlatformString(it.Descriptor.Platform)}
		switch it.Kind {
		case bundle.KindImage:
			pin.Digest, pin.Platform = it.Descriptor.Digest, ""
		case bundle.KindChart, bundle.KindFile:
		default:
			continue
		}
		q.Pins = append(q.Pins, pin)
	}
	return q, nil
}

// unlocked returns the items of a manifest without a lock. Without digests, none can be reported as moved.
func unlocked(b *manifest.Bundle) ([]manifest.Pin, error) {
	var pins []manifest.Pin
	for _, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(ref, "@")
		pin := manifest.Pin{Kind: manifest.ItemImage, Ref: ref, Name: name}
		if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
			pin.Name, pin.Version = name[:i], name[i+1:]
		}
		pins = append(pins, pin)
	}
	for _, c := range b.Charts {
		ref := manifest.ChartRef(c, c.Name, c.Version)
		pins = append(pins, manifest.Pin{Kind: manifest.ItemChart, Ref: ref, Name: cmp.Or(c.Name, ref), Version: c.Version})
	}
	for _, f := range b.Files {
		for _, p := range f.PlatformsIn(b.Platforms) {
			pin := manifest.Pin{Kind: manifest.ItemFile, Ref: manifest.FileURL(f, p), Name: f.Name, Version: f.Version}
			if f.PerPlatform() {
				pin.Platform = p
			}
			pins = append(pins, pin)
			if !f.PerPlatform() {
				break
			}
		}
	}
	return pins, nil
}

// isLock reports whether data is a lock, by its kind only.
func isLock(data []byte) bool {
	var head struct {
		Kind string `yaml:"kind"`
	}
	return yaml.Unmarshal(data, &head) == nil && head.Kind == manifest.KindLock
}
