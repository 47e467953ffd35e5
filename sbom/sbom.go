// Package sbom writes a bill of materials of a bundle: CycloneDX 1.6 as JSON (https://cyclonedx.org/docs/1.6/json/).
// Every item is a component with its digest, package URL, source and, if its own metadata has one, licence. The content
// of images is not examined: their bills of materials from upstream are in the bundle and are referred to.
//
// The same items give the same bytes: there is no time, and the serial number is derived from the content.
package sbom

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// ReadBlob returns a blob of at most the given number of bytes. It is called for manifests, and for configurations of
// images and charts.
type ReadBlob func(ctx context.Context, d digest.Digest, most int64) ([]byte, error)

// New returns the bill of materials of a bundle with these items. Sources come from the lock; items that the lock does
// not pin are left out.
func New(ctx context.Context, x bundle.Index, l *manifest.Lock, read ReadBlob) ([]byte, error) {
	b := builder{read: read, pins: map[pinID]manifest.Pin{}, about: map[digest.Digest][]externalReference{}}
	for _, p := range l.Items {
		b.pins[pinID{p.Kind, p.Ref, p.Platform}] = p
		if p.Kind == manifest.ItemReferrer {
			b.about[p.Subject] = append(b.about[p.Subject], attached(p))
		}
	}
	const root = "bundle"
	d := document{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{
			Tools:     tools{[]component{{Type: "application", Name: "kkbundle"}}},
			Component: component{Type: "application", Ref: root, Name: x.Name, Version: x.Version},
		},
		Components: []component{},
	}
	depends := dependency{Ref: root, DependsOn: []string{}}
	for _, it := range x.Items {
		if it.Kind == bundle.KindSBOM {
			continue
		}
		c, err := b.component(ctx, it)
		if err != nil {
			return nil, fmt.Errorf("bill of materials: %s: %w", it, err)
		}
		d.Components = append(d.Components, c)
	}
	slices.SortFunc(d.Components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	for _, c := range d.Components {
		depends.DependsOn = append(depends.DependsOn, c.Ref)
	}
	d.Dependencies = []dependency{depends}
	return d.marshal()
}

// document is a CycloneDX document, its keys in the order of the specification.
type document struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	SerialNumber string       `json:"serialNumber,omitempty"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Tools     tools     `json:"tools"`
	Component component `json:"component"`
}

// tools has no version, so that versions of kkbundle with the same output give the same bytes.
type tools struct {
	Components []component `json:"components"`
}

type component struct {
	Type       string              `json:"type"`
	Ref        string              `json:"bom-ref,omitempty"`
	Name       string              `json:"name"`
	Version    string              `json:"version,omitempty"`
	Hashes     []hash              `json:"hashes,omitempty"`
	Licenses   []licence           `json:"licenses,omitempty"`
	PURL       string              `json:"purl,omitempty"`
	External   []externalReference `json:"externalReferences,omitempty"`
	Properties []property          `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type externalReference struct {
	URL    string `json:"url"`
	Type   string `json:"type"`
	Hashes []hash `json:"hashes,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// marshal adds the serial number, a UUID of version 8 (RFC 9562) derived from the document's digest.
func (d document) marshal() ([]byte, error) {
	body, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("bill of materials: %w", err)
	}
	id := sha256.Sum256(body)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	d.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // every package URL has an &
	e.SetIndent("", " ")
	err = e.Encode(d)
	return out.Bytes(), err
}

type pinID struct{ kind, ref, platform string }

type builder struct {
	read  ReadBlob
	pins  map[pinID]manifest.Pin
	about map[digest.Digest][]externalReference // artifacts attached to a manifest
}

// pin returns an item's pin, and false for an item without one.
func (b *builder) pin(it bundle.Item) (manifest.Pin, bool) {
	p, ok := b.pins[pinID{it.Kind, it.Ref, bundle.PlatformString(it.Descriptor.Platform)}]
	if !ok {
		p, ok = b.pins[pinID{it.Kind, it.Ref, ""}]
	}
	return p, ok
}

func (b *builder) component(ctx context.Context, it bundle.Item) (component, error) {
	platform := bundle.PlatformString(it.Descriptor.Platform)
	name := manifest.WithoutSecrets(it.Ref)
	c := component{Type: "data", Ref: strings.TrimSuffix(it.Kind+" "+name+" "+platform, " "), Name: cmp.Or(it.Name, name), Version: it.Version}
	c.Properties = []property{
		{"io.kkbundle.kind", it.Kind}, {"io.kkbundle.ref", name}, {"io.kkbundle.digest", it.Descriptor.Digest.String()},
	}
	if platform != "" {
		c.Properties = append(c.Properties, property{"io.kkbundle.platform", platform})
	}
	content, err := b.content(ctx, it)
	if err != nil {
		return c, err
	}
	c.Hashes, c.Licenses = hashes(content.digest), licences(content.licence)
	pin, pinned := b.pin(it)
	source := manifest.WithoutSecrets(cmp.Or(pin.From, pin.URL, it.Ref))
	switch it.Kind {
	case bundle.KindImage:
		c.Type, c.PURL = "container", ociPURL(it.Ref, it.Descriptor.Digest, platform)
		c.External = []externalReference{{URL: "oci://" + it.Ref, Type: "distribution"}}
		for _, d := range content.manifests {
			c.External = append(c.External, b.about[d]...)
		}
	case bundle.KindChart, bundle.KindFile, bundle.KindTool:
		c.Type = map[string]string{bundle.KindFile: "file"}[it.Kind]
		c.Type = cmp.Or(c.Type, "application")
		if rest, oci := strings.CutPrefix(it.Ref, "oci://"); oci {
			c.PURL = ociPURL(rest, it.Descriptor.Digest, "")
		} else {
			c.PURL = cmp.Or(packagePURL(it), genericPURL(it, content.digest, source))
		}
		if address(source) {
			c.External = []externalReference{{URL: source, Type: "distribution", Hashes: c.Hashes}}
		}
	}
	if pinned && pin.Verified != "" {
		c.Properties = append(c.Properties, property{"io.kkbundle.verified", pin.Verified})
	}
	return c, nil
}

// attached returns a referrer as an external reference of its subject.
func attached(p manifest.Pin) externalReference {
	kind := "attestation"
	for _, word := range []string{"spdx", "cyclonedx", "syft"} {
		if strings.Contains(strings.ToLower(p.ArtifactType), word) {
			kind = "bom"
		}
	}
	if strings.HasSuffix(p.Ref, ".sig") {
		kind = "digital-signature"
	}
	if strings.HasSuffix(p.Ref, ".sbom") {
		kind = "bom"
	}
	return externalReference{URL: "oci://" + p.Ref, Type: kind, Hashes: hashes(p.Digest)}
}

func hashes(d digest.Digest) []hash {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return nil
	}
	return []hash{{"SHA-256", d.Encoded()}}
}

// address reports whether s is a public address, not a path on the build machine.
func address(s string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains([]string{"http", "https", "oci"}, u.Scheme) && u.Host != ""
}
