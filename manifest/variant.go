package manifest

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/merge"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// A Variant says how one of several bundles of a manifest differs from it. Its settings replace those of the manifest,
// an item with the identity of one of the manifest replaces that, other items are added, and Without leaves items out.
type Variant struct {
	Platforms      []string       `yaml:"platforms,omitempty" doc:"The platforms, instead of the manifest's."`
	PlatformPolicy PlatformPolicy `yaml:"platformPolicy,omitempty" enum:"strict,warn" doc:"Instead of the manifest's."`
	Referrers      ReferrerPolicy `yaml:"referrers,omitempty" enum:"all,signatures,none" doc:"Instead of the manifest's."`
	Indexes        IndexPolicy    `yaml:"indexes,omitempty" enum:"pinned,complete,selected" doc:"Instead of the manifest's."`
	Cluster        string         `yaml:"cluster,omitempty" local:"machine" doc:"Instead of the manifest's."`
	Clusters       []string       `yaml:"clusters,omitempty" local:"machine" doc:"Further cluster files."`
	// Values are those of the manifest's table.
	Values        map[string]document.Scalar `yaml:"values,omitempty" doc:"Values of the manifest's table, as their defaults in this variant."`
	Images        []Image                    `yaml:"images,omitempty" doc:"Images to add, or to replace by name with tag."`
	Charts        []Chart                    `yaml:"charts,omitempty" doc:"Charts to add, or to replace by name; without a name by url or path."`
	Manifests     []YAML                     `yaml:"manifests,omitempty" doc:"YAML to add, or to replace by path."`
	Files         []File                     `yaml:"files,omitempty" doc:"Files to add, or to replace by name."`
	Git           []GitRepository            `yaml:"git,omitempty" doc:"Repositories to add, or to replace by name."`
	Deploy        []Addon                    `yaml:"deploy,omitempty" doc:"Entries to add at the end, or to replace by namespace and release."`
	Packages      []PackageSet               `yaml:"packages,omitempty" doc:"Packages to add, or to replace by distribution."`
	Groups        map[string]Group           `yaml:"groups,omitempty" doc:"Groups to add, or to replace by name."`
	Sources       []sources.Source           `yaml:"sources,omitempty" doc:"Sources to add, or to replace by host or directory."`
	Overrides     []Override                 `yaml:"overrides,omitempty" doc:"Overrides to add, or to replace by url, or by host and path."`
	Trust         ImageTrust                 `yaml:"trust,omitempty" doc:"Instead of the manifest's."`
	Zone          string                     `yaml:"zone,omitempty" doc:"Instead of the manifest's."`
	Kubernetes    Target                     `yaml:"kubernetes,omitempty" doc:"Instead of the manifest's."`
	ImageRules    []ImageRule                `yaml:"imageRules,omitempty" doc:"Rules to add, or to replace by kind and apiVersion."`
	ExcludeImages []string                   `yaml:"excludeImages,omitempty" doc:"Patterns to add."`
	Without       Without                    `yaml:"without,omitempty" doc:"What the variant leaves out."`
}

// Without names items that a variant leaves out of a manifest, or a manifest of the files that it includes.
type Without struct {
	Images    []string `yaml:"images,omitempty" doc:"References."`
	Charts    []string `yaml:"charts,omitempty" doc:"Names; url or path of a chart without a name."`
	Manifests []string `yaml:"manifests,omitempty" local:"machine" doc:"Patterns, as the manifest writes them."`
	Files     []string `yaml:"files,omitempty" doc:"Names."`
	Git       []string `yaml:"git,omitempty" doc:"Names."`
	Deploy    []string `yaml:"deploy,omitempty" doc:"NAMESPACE/RELEASE; RELEASE alone is in namespace default."`
	Packages  []string `yaml:"packages,omitempty" doc:"Distributions."`
	Groups    []string `yaml:"groups,omitempty" doc:"Names."`
	Clusters  []string `yaml:"clusters,omitempty" local:"machine" doc:"Paths of cluster files, also of that under cluster."`
	Sources   []string `yaml:"sources,omitempty" doc:"Hosts or directories."`
}

const variantsKey = "variants"

// VariantNames returns the names of a manifest's variants, in its order; none without variants. dir is as of
// ParseVariant. The error is Problems.
func VariantNames(file string, data []byte, dir fs.FS) ([]string, error) {
	src, err := document.Parse(file, data, formatOf(KindBundle).Limits)
	if err != nil {
		return nil, err
	}
	if _, err := mergeIncluded(src, dir); err != nil {
		return nil, err
	}
	var names []string
	for key := range document.Pairs(variantsOf(src)) {
		names = append(names, key.Value)
	}
	return names, nil
}

// variantsOf returns the variants of a manifest, nil without any.
func variantsOf(src *document.Tree) *yaml.Node {
	if !isBundle(src) {
		return nil
	}
	return document.Resolved(src.Node(variantsKey))
}

// chooseVariant replaces the tree of a manifest by that of a variant, "" for the first. The tree keeps the places of
// the file. It returns the chosen name, "" for a manifest without variants.
func chooseVariant(src *document.Tree, name string) (string, error) {
	all := variantsOf(src)
	if all == nil {
		if name != "" {
			return "", &VariantError{Name: name}
		}
		return "", nil
	}
	c := checkerOf(src)
	var names []string
	if all.Kind != yaml.MappingNode || len(all.Content) == 0 {
		c.Add(variantsKey, "want a mapping from names to what differs, such as slim: {without: {images: [nginx:1.29]}}")
	}
	for k := range document.Pairs(all) {
		if !document.IsName(k.Value, false) {
			c.AddKey(document.Join(variantsKey, k.Value), "%q is not a name; use lower case letters, digits and hyphens",
				document.Shorten(k.Value))
		}
		names = append(names, k.Value)
	}
	if err := c.Found.Err(); err != nil {
		return "", err
	}
	if name == "" {
		name = names[0]
	}
	chosen := document.ValueOf(all, name)
	if chosen == nil {
		return "", &VariantError{Name: name, Known: names}
	}
	root, err := merge.Variant(c.Checker, src.Root, chosen, name, merge.Keys{
		Variant: fieldNames(reflect.TypeFor[Variant]()), Without: fieldNames(reflect.TypeFor[Without]()),
	})
	if err != nil {
		return "", err
	}
	src.Root = root
	return name, nil
}

func fieldNames(t reflect.Type) (names []string) {
	for _, f := range document.Fields(t) {
		names = append(names, f.Name)
	}
	return names
}

// A VariantError means that a manifest lacks a variant.
type VariantError struct {
	Name  string
	Known []string
}

// Error lists the variants that there are.
func (e *VariantError) Error() string {
	if len(e.Known) == 0 {
		return "there is no variant " + document.Shorten(e.Name) + ": the manifest has no variants"
	}
	return "the manifest has no variant " + document.Shorten(e.Name) + "; its variants are " + strings.Join(e.Known, ", ")
}

// mergedText returns a manifest as text, for its bundle: without includes and, for a variant, without variants.
func mergedText(src *document.Tree, variant string) ([]byte, error) {
	head := "# A manifest with the files that it includes, merged by kkbundle.\n"
	if variant != "" {
		head = "# Variant " + variant + " of a manifest, merged by kkbundle.\n"
	}
	text, err := yaml.Marshal(src.Root)
	if err != nil {
		return nil, fmt.Errorf("%s: merge: %w", src.File, err)
	}
	text = append([]byte(head), text...)
	if most := formatOf(KindBundle).Limits.Size; len(text) > most {
		return nil, document.Problems{{File: src.File, Message: fmt.Sprintf(
			"the merged manifest has %d bytes, of which %d are read; make several bundles of it", len(text), most)}}
	}
	return text, nil
}
