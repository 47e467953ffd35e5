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

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// ReadBlob returns a blob of at most the given number of bytes. It is called for manifests, and for configurations of
// images and charts.
type ReadBlob func(ctx context.Context, d digest.Digest, most int64) ([]byte, error)

// New returns the bill of materials of a bundle with these items. Sources come from the lock; items that the lock does
// not pin are left out.
func New(ctx context.Context, x bundle.Index, l *manifest.Lock, read ReadBlob) ([]byte, error) {
	b := builder{read: read, pins: map[pinID]manifest.Pin{}, about: map[digest.Digest][]cdx.ExternalReference{}}
	for _, p := range l.Items {
		b.pins[pinID{p.Kind, p.Ref, p.Platform}] = p
		if p.Kind == manifest.ItemReferrer {
			b.about[p.Subject] = append(b.about[p.Subject], attached(p))
		}
	}
	const root = "bundle"
	d := cdx.BOM{
		JSONSchema: "http://cyclonedx.org/schema/bom-1.6.schema.json", BOMFormat: cdx.BOMFormat,
		SpecVersion: cdx.SpecVersion1_6, Version: 1,
		Metadata: &cdx.Metadata{
			// Without a version: another version of kkbundle that says the same says it with the same bytes.
			Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{{
				Type: cdx.ComponentTypeApplication,
				Name: "kkbundle",
			}}},
			Component: &cdx.Component{
				Type: cdx.ComponentTypeApplication, BOMRef: root, Name: x.Name,
				Version: x.Version,
			},
		},
	}
	components, refs := []cdx.Component{}, []string{}
	for _, it := range x.Items {
		if it.Kind == bundle.KindSBOM {
			continue
		}
		c, err := b.component(ctx, it)
		if err != nil {
			return nil, fmt.Errorf("bill of materials: %s: %w", it, err)
		}
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	d.Components, d.Dependencies = &components, &[]cdx.Dependency{{Ref: root, Dependencies: &refs}}
	return marshal(d)
}

// marshal adds the serial number, a UUID of version 8 (RFC 9562) derived from the bill's digest.
func marshal(d cdx.BOM) ([]byte, error) {
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
	about map[digest.Digest][]cdx.ExternalReference // artifacts attached to a manifest
}

// pin returns an item's pin, and false for an item without one.
func (b *builder) pin(it bundle.Item) (manifest.Pin, bool) {
	p, ok := b.pins[pinID{it.Kind, it.Ref, bundle.PlatformString(it.Descriptor.Platform)}]
	if !ok {
		p, ok = b.pins[pinID{it.Kind, it.Ref, ""}]
	}
	return p, ok
}

func (b *builder) component(ctx context.Context, it bundle.Item) (cdx.Component, error) {
	platform := bundle.PlatformString(it.Descriptor.Platform)
	name := scalar.WithoutSecrets(it.Ref)
	c := cdx.Component{
		Type: cdx.ComponentTypeData, BOMRef: strings.TrimSuffix(it.Kind+" "+name+" "+platform, " "),
		Name: cmp.Or(it.Name, name), Version: it.Version,
	}
	properties := []cdx.Property{
		{Name: "io.kkbundle.kind", Value: it.Kind},
		{Name: "io.kkbundle.ref", Value: name},
		{Name: "io.kkbundle.digest", Value: it.Descriptor.Digest.String()},
	}
	if platform != "" {
		properties = append(properties, cdx.Property{Name: "io.kkbundle.platform", Value: platform})
	}
	content, err := b.content(ctx, it)
	if err != nil {
		return c, err
	}
	c.Hashes, c.Licenses = hashes(content.digest), licences(content.licence)
	pin, pinned := b.pin(it)
	source := scalar.WithoutSecrets(cmp.Or(pin.From, pin.URL, it.Ref))
	switch it.Kind {
	case bundle.KindImage:
		c.Type, c.PackageURL = cdx.ComponentTypeContainer, ociPURL(it.Ref, it.Descriptor.Digest, platform)
		external := []cdx.ExternalReference{{URL: "oci://" + it.Ref, Type: cdx.ERTypeDistribution}}
		for _, d := range content.manifests {
			external = append(external, b.about[d]...)
		}
		c.ExternalReferences = &external
	case bundle.KindChart, bundle.KindFile, bundle.KindTool:
		c.Type = cdx.ComponentTypeApplication
		if it.Kind == bundle.KindFile {
			c.Type = cdx.ComponentTypeFile
		}
		if rest, oci := strings.CutPrefix(it.Ref, "oci://"); oci {
			c.PackageURL = ociPURL(rest, it.Descriptor.Digest, "")
		} else {
			c.PackageURL = cmp.Or(packagePURL(it), genericPURL(it, content.digest, source))
		}
		if address(source) {
			c.ExternalReferences = &[]cdx.ExternalReference{{
				URL: source, Type: cdx.ERTypeDistribution,
				Hashes: c.Hashes,
			}}
		}
	}
	if it.Kind == bundle.KindGit {
		c.ExternalReferences = &[]cdx.ExternalReference{{URL: source, Type: cdx.ERTypeVCS}}
	}
	if pinned && pin.Verified != "" {
		properties = append(properties, cdx.Property{Name: "io.kkbundle.verified", Value: string(pin.Verified)})
	}
	c.Properties = &properties
	return c, nil
}

// attached returns a referrer as an external reference of its subject.
func attached(p manifest.Pin) cdx.ExternalReference {
	kind := cdx.ERTypeAttestation
	for _, word := range []string{"spdx", "cyclonedx", "syft"} {
		if strings.Contains(strings.ToLower(p.ArtifactType), word) {
			kind = cdx.ERTypeBOM
		}
	}
	if strings.HasSuffix(p.Ref, ".sig") {
		kind = cdx.ERTypeDigitalSignature
	}
	if strings.HasSuffix(p.Ref, ".sbom") {
		kind = cdx.ERTypeBOM
	}
	return cdx.ExternalReference{URL: "oci://" + p.Ref, Type: kind, Hashes: hashes(p.Digest)}
}

func hashes(d digest.Digest) *[]cdx.Hash {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return nil
	}
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: d.Encoded()}}
}

// address reports whether s is a public address, not a path on the build machine.
func address(s string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains([]string{"http", "https", "oci"}, u.Scheme) && u.Host != ""
}
