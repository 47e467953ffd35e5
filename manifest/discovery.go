package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Target is the Kubernetes that charts are rendered for.
type Target struct {
	// Version is vMAJOR.MINOR.PATCH; the newest that the catalog knows by default.
	Version string `yaml:"version,omitempty" doc:"Version of Kubernetes, such as v1.34.3. Default the newest in the catalog."`
	// APIVersions are known besides those of Kubernetes and of each chart's own CRDs: what other charts bring.
	APIVersions []string `yaml:"apiVersions,omitempty" doc:"API versions in addition to those of Kubernetes, such as monitoring.coreos.com/v1."`
}

// ImageRule says where objects of a kind name the images that their controller will run.
type ImageRule struct {
	Kind string `yaml:"kind" kk:"required" doc:"Kind of the objects."`
	// APIVersion is a group, with or without a version; every group if it is empty.
	APIVersion string `yaml:"apiVersion,omitempty" doc:"Group, or group/version, such as postgresql.cnpg.io. Default any."`
	// Paths are JSONPaths of image references: names, [0], [*], .* and ..name.
	Paths []string `yaml:"paths,omitempty" doc:"JSONPaths of image references, such as .spec.image or .spec.nodes[*].image."`
	// Images are references with paths in braces, for when no path has a value.
	Images []string `yaml:"images,omitempty" doc:"References with paths in braces, such as docker.io/acme/db:{.spec.version}, for objects without a value at paths."`
	// Required says that the controller chooses an image where the object names none.
	Required bool `yaml:"required,omitempty" doc:"An object without a value at any path is listed as undecided."`
}

// ChartUse is one way in which a cluster installs a chart of the bundle.
type ChartUse struct {
	Chart, Release, Namespace string
	// Values are paths, relative to the manifest; later ones win.
	Values []string `yaml:",omitempty"`
	// Version is the Kubernetes that it is rendered for, where that is not the manifest's.
	Version string `yaml:",omitempty"`
	// Set are values that install makes itself. What they decide is in the cluster's needs.
	Set map[string]any `yaml:"-"`
}

// findSettings are what the manifest says about how images are found.
type findSettings struct {
	Kubernetes Target
	Manifests  []string    `yaml:",omitempty"`
	Rules      []ImageRule `yaml:",omitempty"`
	Exclude    []string    `yaml:",omitempty"`
	Uses       []ChartUse  `yaml:",omitempty"`
}

// findSettings returns nil where there is nothing to look into, or nothing is said about it.
func (b *Bundle) findSettings() *findSettings {
	if len(b.Charts) == 0 && len(b.Manifests) == 0 {
		return nil
	}
	s := findSettings{Kubernetes: b.Kubernetes, Manifests: b.Manifests, Rules: b.ImageRules, Exclude: b.ExcludeImages, Uses: b.Uses}
	if canonical(s) == canonical(findSettings{}) {
		return nil
	}
	return &s
}

// ExcludesImage tells whether excludeImages has a pattern for a found image or an undecided text: with or without its tag,
// and with or without what goes without saying of Docker Hub's names.
func (b *Bundle) ExcludesImage(text string) bool {
	names := []string{text}
	if named, err := reference.ParseNormalizedNamed(text); err == nil {
		names = append(names, named.String(), named.Name(), reference.FamiliarString(named), reference.FamiliarName(named))
		if digested, ok := named.(reference.Digested); ok {
			names = append(names, strings.TrimSuffix(named.String(), "@"+digested.Digest().String()))
		}
	}
	return slices.ContainsFunc(b.ExcludeImages, func(pattern string) bool {
		expr := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
		re, err := regexp.Compile("^(?s:" + expr + ")$")
		return err == nil && slices.ContainsFunc(names, re.MatchString)
	})
}

// CheckInputs compares the files that images were found with to what they are now. now returns a file's digest, "" if it
// cannot be read; present are the files that would be looked at today. The error is a *StaleError.
func (l *Lock) CheckInputs(present []string, now func(path string) digest.Digest) error {
	var stale StaleError
	known := map[string]bool{}
	for _, in := range l.Inputs {
		known[in.Path] = true
		if now(in.Path) != in.Digest {
			stale.Changed = append(stale.Changed, in.Path)
		}
	}
	for _, p := range present {
		if !known[p] {
			stale.Missing = append(stale.Missing, p)
		}
	}
	if len(stale.Changed)+len(stale.Missing) == 0 {
		return nil
	}
	return &stale
}

// discovery checks what is said about how images are found.
func (c *checker) discovery(b *Bundle) {
	for i, p := range b.Manifests {
		at := index("manifests", i)
		if _, err := path.Match(p, ""); err != nil {
			c.add(at, "%q is no pattern: %v", shorten(p), err)
		}
		if path.IsAbs(p) || slices.Contains(strings.Split(p, "/"), "..") {
			c.add(at, "%q leads out of the manifest's directory; put the files below it", shorten(p))
		}
	}
	if v := b.Kubernetes.Version; v != "" {
		c.kubernetesTarget(b, v)
	}
	for i, rule := range b.ImageRules {
		if len(rule.Paths)+len(rule.Images) == 0 {
			c.add(index("imageRules", i), "names no image; write paths")
		}
	}
	for i, p := range b.ExcludeImages {
		if strings.Trim(p, "*") == "" {
			c.add(index("excludeImages", i), "%q leaves every image out", shorten(p))
		}
	}
}

func (c *checker) kubernetesTarget(b *Bundle, version string) {
	const at = "kubernetes.version"
	if !regexp.MustCompile(`^v1\.\d+\.\d+$`).MatchString(version) {
		c.add(at, "%q is no version of Kubernetes; write one such as v1.34.3", shorten(version))
	}
	if len(b.ClusterFiles()) > 0 {
		c.add(at, "the cluster file says the version; leave it out here")
	}
}
