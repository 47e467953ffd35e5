package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ParseIndex reads an index.json. It refuses bytes that Marshal would not write, so that one content has one identity.
// Its memory is bounded by the input, at most 64 MiB.
func ParseIndex(data []byte) (Index, error) {
	if len(data) > maxIndexSize {
		return Index{}, fmt.Errorf("index.json has %d bytes; at most %d are allowed", len(data), maxIndexSize)
	}
	s := newScanner(data)
	x := Index{}
	s.lit(indexHead)
	for !s.has("]") && s.err == nil {
		if len(x.Items) > 0 {
			s.lit(",")
		}
		it, err := scanItem(s)
		if err != nil {
			return Index{}, fmt.Errorf("index.json: %w", err)
		}
		x.Items = append(x.Items, it)
	}
	top := scanAnnotations(s)
	s.lit("}")
	if err := s.end(); err != nil {
		return Index{}, fmt.Errorf("index.json: %w", err)
	}
	if err := x.take(top); err != nil {
		return Index{}, fmt.Errorf("index.json: %w", err)
	}
	again, err := x.Marshal()
	if err != nil {
		return Index{}, fmt.Errorf("index.json: %w", err)
	}
	if !bytes.Equal(again, data) {
		return Index{}, errors.New("index.json is not canonical: items, platforms or names deviate from the format")
	}
	return x, nil
}

// take moves the annotations of the index into their fields.
func (x *Index) take(top map[string]string) error {
	if top == nil {
		return nil
	}
	x.Name, x.Version = top[annotationTitle], top[annotationVersion]
	if p, ok := top[AnnotationPlatforms]; ok {
		if p == "" {
			return fmt.Errorf("%s is empty", AnnotationPlatforms)
		}
		x.Platforms = strings.Split(p, ",")
	}
	for _, k := range []string{annotationTitle, annotationVersion, AnnotationPlatforms} {
		delete(top, k)
	}
	if len(top) > 0 {
		x.Annotations = top
	}
	return nil
}

func scanItem(s *scanner) (Item, error) {
	var d ocispec.Descriptor
	s.lit(`{"mediaType":`)
	d.MediaType = s.text()
	s.lit(`,"digest":`)
	d.Digest = s.sum().digest()
	s.lit(`,"size":`)
	d.Size = s.integer(maxSize)
	m := scanAnnotations(s)
	if s.has(`,"platform":`) {
		d.Platform = scanPlatform(s)
	}
	if s.has(`,"artifactType":`) {
		d.ArtifactType = s.text()
	}
	s.lit("}")
	if s.err != nil {
		return Item{}, s.err
	}
	it := Item{Kind: m[AnnotationKind], Ref: m[AnnotationRef], Name: m[annotationTitle], Version: m[annotationVersion]}
	if a, ok := m[AnnotationAbsent]; ok {
		for text := range strings.SplitSeq(a, ",") {
			if _, err := parseDigest(digest.Digest(text)); err != nil {
				return Item{}, fmt.Errorf("%s: absent: %w", it.Ref, err)
			}
			it.Absent = append(it.Absent, digest.Digest(text))
		}
	}
	for k := range m {
		if ownAnnotation(k) {
			delete(m, k)
		}
	}
	if len(m) > 0 {
		d.Annotations = m
	}
	it.Descriptor = d
	return it, nil
}

// scanAnnotations reads `,"annotations":{…}` if it comes next. The names must be sorted and unique.
func scanAnnotations(s *scanner) map[string]string {
	if !s.has(`,"annotations":{`) {
		return nil
	}
	m, last := map[string]string{}, ""
	for first := true; s.err == nil; first = false {
		if !first && s.has("}") {
			return m
		}
		if !first {
			s.lit(",")
		}
		k := s.text()
		s.lit(":")
		v := s.text()
		if s.err == nil && (k <= last || len(m) >= maxAnnotations) {
			s.fail("sorted annotations within the limit")
		}
		m[k], last = v, k
	}
	return nil
}

func scanPlatform(s *scanner) *ocispec.Platform {
	p := &ocispec.Platform{}
	s.lit(`{"architecture":`)
	p.Architecture = s.text()
	s.lit(`,"os":`)
	p.OS = s.text()
	if s.has(`,"os.version":`) {
		p.OSVersion = s.text()
	}
	if s.has(`,"os.features":[`) {
		p.OSFeatures = append(p.OSFeatures, s.text())
		for s.has(",") {
			p.OSFeatures = append(p.OSFeatures, s.text())
		}
		s.lit("]")
	}
	if s.has(`,"variant":`) {
		p.Variant = s.text()
	}
	s.lit("}")
	return p
}
