package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// ParseIndex reads an index.json. It refuses bytes that Marshal would not write, so that one content has one identity.
// Its memory is bounded by the input, at most 64 MiB.
func ParseIndex(data []byte) (Index, error) {
	if len(data) > format.MaxIndexSize {
		return Index{}, fmt.Errorf("index.json has %d bytes; at most %d are allowed", len(data), format.MaxIndexSize)
	}
	s := format.NewScanner(data)
	x := Index{}
	s.Lit(indexHead)
	for !s.Has("]") && s.Err == nil {
		if len(x.Items) > 0 {
			s.Lit(",")
		}
		it, err := scanItem(s)
		if err != nil {
			return Index{}, fmt.Errorf("index.json: %w", err)
		}
		x.Items = append(x.Items, it)
	}
	top := scanAnnotations(s)
	s.Lit("}")
	if err := s.End(); err != nil {
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

func scanItem(s *format.Scanner) (Item, error) {
	var d ocispec.Descriptor
	s.Lit(`{"mediaType":`)
	d.MediaType = s.Text()
	s.Lit(`,"digest":`)
	d.Digest = s.Sum().Digest()
	s.Lit(`,"size":`)
	d.Size = s.Integer(format.MaxSize)
	m := scanAnnotations(s)
	if s.Has(`,"platform":`) {
		d.Platform = scanPlatform(s)
	}
	if s.Has(`,"artifactType":`) {
		d.ArtifactType = s.Text()
	}
	s.Lit("}")
	if s.Err != nil {
		return Item{}, s.Err
	}
	it := Item{Kind: m[AnnotationKind], Ref: m[AnnotationRef], Name: m[annotationTitle], Version: m[annotationVersion]}
	if a, ok := m[AnnotationAbsent]; ok {
		for text := range strings.SplitSeq(a, ",") {
			if _, err := format.ParseDigest(digest.Digest(text)); err != nil {
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
func scanAnnotations(s *format.Scanner) map[string]string {
	if !s.Has(`,"annotations":{`) {
		return nil
	}
	m, last := map[string]string{}, ""
	for first := true; s.Err == nil; first = false {
		if !first && s.Has("}") {
			return m
		}
		if !first {
			s.Lit(",")
		}
		k := s.Text()
		s.Lit(":")
		v := s.Text()
		if s.Err == nil && (k <= last || len(m) >= maxAnnotations) {
			s.Fail("sorted annotations within the limit")
		}
		m[k], last = v, k
	}
	return nil
}

func scanPlatform(s *format.Scanner) *ocispec.Platform {
	p := &ocispec.Platform{}
	s.Lit(`{"architecture":`)
	p.Architecture = s.Text()
	s.Lit(`,"os":`)
	p.OS = s.Text()
	if s.Has(`,"os.version":`) {
		p.OSVersion = s.Text()
	}
	if s.Has(`,"os.features":[`) {
		p.OSFeatures = append(p.OSFeatures, s.Text())
		for s.Has(",") {
			p.OSFeatures = append(p.OSFeatures, s.Text())
		}
		s.Lit("]")
	}
	if s.Has(`,"variant":`) {
		p.Variant = s.Text()
	}
	s.Lit("}")
	return p
}
