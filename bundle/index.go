package bundle

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// Kinds of items.
const (
	KindImage    = "image"    // a container image: an index or a manifest, as upstream has it
	KindChart    = "chart"    // a Helm chart, as the OCI artifact Helm itself uses
	KindFile     = "file"     // one file, as an artifact of type ArtifactTypeFile
	KindReferrer = "referrer" // signatures, attestations and SBOMs, attached by an image's subject or by cosign's tags
	KindManifest = "manifest" // a file that the bundle was built from
	KindLock     = "lock"     // the lock it was built from
	KindClosure  = "closure"  // the completeness proof
	KindSBOM     = "sbom"     // a bill of materials
	KindTool     = "tool"     // kkbundle's own binaries
	KindGit      = "git"      // a Git repository, as an artifact of type ArtifactTypeGit
)

// Annotations of items and of index.json itself.
const (
	AnnotationKind      = "io.kkbundle.kind"      // item: one of the kinds
	AnnotationRef       = "io.kkbundle.ref"       // item: the upstream reference, exactly
	AnnotationAbsent    = "io.kkbundle.absent"    // item: unselected index children: digests, sorted, with commas
	AnnotationLacks     = "io.kkbundle.lacks"     // item: requested platforms that upstream lacks, with commas
	AnnotationReferrers = "io.kkbundle.referrers" // item: "unknown" if the lookup of referrers was incomplete
	AnnotationSignedBy  = "io.kkbundle.signed-by" // item: fingerprint of the public key that build verified it with
	AnnotationPackage   = "io.kkbundle.package"   // item: names of an OS package, its own first, with commas
	// item: names of its groups, sorted, with commas; index.json: the table of groups, JSON
	AnnotationGroups = "io.kkbundle.groups"
	// item: the source of its digest, as in the lock; "unsigned" without one
	AnnotationVerified  = "io.kkbundle.verified"
	AnnotationPlatforms = "io.kkbundle.platforms" // index.json: the bundle's platforms, sorted, with commas
	AnnotationFrom      = "io.kkbundle.from"      // index.json: identities of the source bundles, sorted, with commas
	AnnotationMode      = "io.kkbundle.mode"      // layer of a file: its permission bits in octal
	annotationTitle     = ocispec.AnnotationTitle
	annotationVersion   = ocispec.AnnotationVersion
	annotationRefName   = ocispec.AnnotationRefName
)

// Media types of content other than images.
const (
	ArtifactTypeFile         = "application/vnd.kkbundle.file.v1"
	MediaTypeFileContent     = "application/octet-stream"
	MediaTypeEmpty           = ocispec.MediaTypeEmptyJSON
	ArtifactTypeGit          = "application/vnd.kkbundle.git.v1"
	MediaTypeGitDocument     = "application/vnd.kkbundle.git.document.v1+json"
	MediaTypeGitPack         = "application/vnd.kkbundle.git.pack.v1"
	MediaTypeGitIndex        = "application/vnd.kkbundle.git.index.v1"
	MediaTypeChartConfig     = "application/vnd.cncf.helm.config.v1+json"
	MediaTypeChartContent    = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	MediaTypeChartProvenance = "application/vnd.cncf.helm.chart.provenance.v1.prov"
)

const (
	maxAnnotations = 1 << 10 // on one descriptor
	maxAbsent      = format.MaxString / (len("sha256:,") + 64)
)

// An Item is one entry of a bundle's index.
type Item struct {
	Kind    string // one of the Kind constants
	Ref     string // the upstream reference, exactly
	Name    string // the usual short name
	Version string // may be ""
	// Descriptor is the item's root: media type, digest, size, and platform and artifact type if any. Its Annotations
	// exclude those covered by the other fields.
	Descriptor ocispec.Descriptor
	Absent     []digest.Digest // unselected children of the item's indexes, not in the bundle
}

// String returns kind, reference and platform, for messages.
func (it Item) String() string {
	s := it.Kind + " " + it.Ref
	if p := PlatformString(it.Descriptor.Platform); p != "" {
		s += " (" + p + ")"
	}
	return s
}

// An Index lists the content of a bundle. Its canonical JSON is the bundle's index.json, whose sha256 is the bundle's
// identity.
type Index struct {
	Name, Version string
	Platforms     []string          // "linux/amd64", …
	Annotations   map[string]string // policies and other annotations of the whole bundle
	Items         []Item            // in any order; ParseIndex returns them sorted
}

// PlatformString returns "os/architecture[/variant]", or "" for nil.
func PlatformString(p *ocispec.Platform) string {
	if p == nil {
		return ""
	}
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// kindGrammar leaves room for kinds of later versions.
var kindGrammar = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// refNameGrammar is the grammar of org.opencontainers.image.ref.name in the image specification's annotations.md.
var refNameGrammar = regexp.MustCompile(
	`^[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*)*$`)

// Marshal returns the canonical JSON of x. The same content always gives the same bytes, whatever the order of Items,
// Platforms and Absent. The error lists every problem of every item.
func (x Index) Marshal() ([]byte, error) {
	items := slices.Clone(x.Items)
	slices.SortStableFunc(items, compareItems)
	if err := checkItems(items); err != nil {
		return nil, err
	}
	top, err := x.annotations()
	if err != nil {
		return nil, err
	}
	uses := make(map[string]int, len(items))
	for _, it := range items {
		uses[it.Ref]++
	}
	b := []byte(indexHead)
	for i, it := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendItem(b, it, uses[it.Ref] == 1)
	}
	b = appendAnnotations(append(b, ']'), top)
	b = append(b, '}')
	if len(b) > format.MaxIndexSize {
		return nil, fmt.Errorf("index.json would have %d bytes; at most %d are allowed: split the content into several bundles", len(b), format.MaxIndexSize)
	}
	return b, nil
}

const indexHead = `{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[`

func (x Index) annotations() (map[string]string, error) {
	top := make(map[string]string, len(x.Annotations)+3)
	for k, v := range x.Annotations {
		if k == annotationTitle || k == annotationVersion || k == AnnotationPlatforms {
			return nil, fmt.Errorf("annotation %s: set the field of the same meaning instead", k)
		}
		top[k] = v
	}
	platforms := slices.Compact(slices.Sorted(slices.Values(x.Platforms)))
	for k, v := range map[string]string{
		annotationTitle: x.Name, annotationVersion: x.Version,
		AnnotationPlatforms: strings.Join(platforms, ","),
	} {
		if v != "" {
			top[k] = v
		}
	}
	for _, p := range platforms {
		if p == "" || strings.Contains(p, ",") {
			return nil, fmt.Errorf("platform %q: want os/architecture", p)
		}
	}
	return top, checkAnnotations(top)
}

func compareItems(a, b Item) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Ref, b.Ref),
		cmp.Compare(PlatformString(a.Descriptor.Platform), PlatformString(b.Descriptor.Platform)),
		cmp.Compare(a.Descriptor.Digest, b.Descriptor.Digest),
	)
}

// checkItems takes sorted items and returns every problem.
func checkItems(items []Item) error {
	var problems []error
	for i, it := range items {
		if err := checkItem(it); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", it, err))
		}
		if i > 0 && compareItems(items[i-1], it) == 0 {
			problems = append(problems, fmt.Errorf("duplicate item %s with digest %s", it, it.Descriptor.Digest))
		}
	}
	return errors.Join(problems...)
}

func checkItem(it Item) error {
	if !kindGrammar.MatchString(it.Kind) {
		return fmt.Errorf("kind %q: want a lower-case word", it.Kind)
	}
	if it.Ref == "" {
		return errors.New("no reference")
	}
	d := it.Descriptor
	if _, err := format.ParseDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > format.MaxSize {
		return fmt.Errorf("size %d is out of range", d.Size)
	}
	if d.MediaType == "" {
		return errors.New("no media type")
	}
	if len(d.URLs) > 0 || len(d.Data) > 0 {
		return errors.New("the descriptor has urls or data, which index.json cannot hold")
	}
	for _, a := range it.Absent {
		if _, err := format.ParseDigest(a); err != nil {
			return fmt.Errorf("absent: %w", err)
		}
	}
	for k := range d.Annotations {
		if ownAnnotation(k) {
			return fmt.Errorf("annotation %s: set the field of the same meaning instead", k)
		}
	}
	if p := d.Platform; p != nil {
		texts := append([]string{p.Architecture, p.OS, p.OSVersion, p.Variant}, p.OSFeatures...)
		if p.Architecture == "" || p.OS == "" ||
			slices.ContainsFunc(texts, func(t string) bool { return format.CheckText(t) != nil }) {
			return errors.New("incomplete platform")
		}
	}
	for _, t := range []string{d.MediaType, d.ArtifactType, it.Ref, it.Name, it.Version} {
		if err := format.CheckText(t); err != nil {
			return fmt.Errorf("%.60q has %w", t, err)
		}
	}
	if len(it.Absent) > maxAbsent {
		return fmt.Errorf("%d absent children; at most %d can be listed", len(it.Absent), maxAbsent)
	}
	if len(d.Annotations)+6 > maxAnnotations {
		return fmt.Errorf("%d annotations; at most %d are allowed", len(d.Annotations), maxAnnotations-6)
	}
	return checkAnnotations(d.Annotations)
}

func ownAnnotation(key string) bool {
	switch key {
	case AnnotationKind, AnnotationRef, AnnotationAbsent, annotationTitle, annotationVersion, annotationRefName:
		return true
	}
	return false
}

func checkAnnotations(m map[string]string) error {
	if len(m) > maxAnnotations {
		return fmt.Errorf("%d annotations; at most %d are allowed", len(m), maxAnnotations)
	}
	for k, v := range m {
		if k == "" {
			return errors.New("an annotation without a name")
		}
		if err := errors.Join(format.CheckText(k), format.CheckText(v)); err != nil {
			return fmt.Errorf("annotation %.60q has %w", k, err)
		}
	}
	return nil
}

// itemAnnotations returns all annotations of the item's descriptor in index.json.
func itemAnnotations(it Item, uniqueRef bool) map[string]string {
	m := make(map[string]string, len(it.Descriptor.Annotations)+6)
	maps.Copy(m, it.Descriptor.Annotations)
	m[AnnotationKind], m[AnnotationRef] = it.Kind, it.Ref
	if it.Name != "" {
		m[annotationTitle] = it.Name
	}
	if it.Version != "" {
		m[annotationVersion] = it.Version
	}
	if len(it.Absent) > 0 {
		texts := make([]string, len(it.Absent))
		for i, d := range it.Absent {
			texts[i] = string(d)
		}
		slices.Sort(texts)
		m[AnnotationAbsent] = strings.Join(slices.Compact(texts), ",")
	}
	if uniqueRef && refNameGrammar.MatchString(it.Ref) {
		m[annotationRefName] = it.Ref
	}
	return m
}

func appendItem(b []byte, it Item, uniqueRef bool) []byte {
	d := it.Descriptor
	b = format.AppendText(append(b, `{"mediaType":`...), d.MediaType)
	b = append(append(append(b, `,"digest":"`...), d.Digest...), '"')
	b = strconv.AppendInt(append(b, `,"size":`...), d.Size, 10)
	b = appendAnnotations(b, itemAnnotations(it, uniqueRef))
	if d.Platform != nil {
		b = appendPlatform(b, d.Platform)
	}
	if d.ArtifactType != "" {
		b = format.AppendText(append(b, `,"artifactType":`...), d.ArtifactType)
	}
	return append(b, '}')
}

func appendAnnotations(b []byte, m map[string]string) []byte {
	if len(m) == 0 {
		return b
	}
	b = append(b, `,"annotations":{`...)
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = format.AppendText(append(format.AppendText(b, k), ':'), m[k])
	}
	return append(b, '}')
}

func appendPlatform(b []byte, p *ocispec.Platform) []byte {
	b = format.AppendText(append(b, `,"platform":{"architecture":`...), p.Architecture)
	b = format.AppendText(append(b, `,"os":`...), p.OS)
	if p.OSVersion != "" {
		b = format.AppendText(append(b, `,"os.version":`...), p.OSVersion)
	}
	if len(p.OSFeatures) > 0 {
		b = append(b, `,"os.features":[`...)
		for i, f := range p.OSFeatures {
			if i > 0 {
				b = append(b, ',')
			}
			b = format.AppendText(b, f)
		}
		b = append(b, ']')
	}
	if p.Variant != "" {
		b = format.AppendText(append(b, `,"variant":`...), p.Variant)
	}
	return append(b, '}')
}
