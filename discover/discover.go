// Package discover finds the container images that Kubernetes objects will run: in the pod specs of every kind of
// workload, in custom resources by rules, in environment variables and arguments of operators, and in annotations of
// charts. It is pure: it opens no file and no connection, and all its input is bounded.
//
// An Image is certain: its place can hold nothing but an image. Everything else that looks like an image is a Doubt,
// with its place, for a person to decide.
package discover

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Bounds of one result. They are far above real charts; a source that exceeds them is refused, not truncated.
const (
	maxImages = 10_000
	maxDoubts = 2_000
	maxText   = 300 // bytes of a displayed text
)

// A Place is the location of a finding.
type Place struct {
	// Source is the searched chart, "chart web 1.2.3", or "" if File is enough.
	Source string `json:"source,omitempty"`
	// File is a template in a chart, or a path beside the manifest.
	File string `json:"file,omitempty"`
	// Line is the line of a doubt's value in a file beside the manifest, 0 if it is not known.
	Line int `json:"line,omitempty"`
	// Object is kind and name, "Deployment shop/web".
	Object string `json:"object,omitempty"`
	// Path leads to the value in the object, "spec.template.spec.containers[0].image".
	Path string `json:"path,omitempty"`
}

// String joins the known parts, from the outside in.
func (p Place) String() string {
	file := p.File
	if p.Line > 0 {
		file = fmt.Sprintf("%s:%d", file, p.Line)
	}
	parts := slices.DeleteFunc([]string{p.Source, file, p.Object, p.Path}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// An Image is a fully qualified reference and one place that names it.
type Image struct {
	Ref string `json:"ref"`
	Place
}

// A Doubt is a text that may be an image reference, or stand for one.
type Doubt struct {
	Text string `json:"text"`
	// Why is a short reason for the doubt.
	Why string `json:"why"`
	Place
}

// String returns the text, the reason for the doubt, the place, and the remedy where there is only one.
func (d Doubt) String() string {
	text := fmt.Sprintf("%q (%s) in %s", d.Text, d.Why, d.Place)
	if d.Invalid() {
		text += "; correct it, or name it under excludeImages"
	}
	return text
}

// Result holds the findings in one source. Images and doubts may repeat with different places.
type Result struct {
	Images []Image `json:"images"`
	Doubts []Doubt `json:"doubts"`
}

// Finder finds images by its rules. It is safe for concurrent use.
type Finder struct{ rules []rule }

// NewFinder returns a Finder with the built-in rules and a user's own.
func NewFinder(own []manifest.ImageRule) (*Finder, error) {
	known, err := builtin()
	if err != nil {
		return nil, err
	}
	more, err := compile(own)
	if err != nil {
		return nil, err
	}
	return &Finder{slices.Concat(known, more)}, nil
}

// CheckRules checks a user's rules. The error has a line for each problem.
func CheckRules(own []manifest.ImageRule) error {
	_, err := compile(own)
	return err
}

// Invalid reports whether the text stands where only an image can be, and is no reference of one.
func (d Doubt) Invalid() bool { return d.Why == whyInvalid || d.Why == whyBlanks }

// Problem says what is wrong with a text that Invalid is true for.
func (d Doubt) Problem() string {
	if d.Why == whyBlanks {
		return fmt.Sprintf("%q has blanks or a line break around it, which Kubernetes refuses", d.Text)
	}
	return fmt.Sprintf("%q is not an image reference", d.Text)
}

// Merge joins results, sorts their content and removes duplicates.
func Merge(results ...Result) Result {
	var all Result
	for _, r := range results {
		all.Images = append(all.Images, r.Images...)
		all.Doubts = append(all.Doubts, r.Doubts...)
	}
	slices.SortFunc(all.Images, func(a, b Image) int { return cmp.Or(cmp.Compare(a.Ref, b.Ref), a.compare(b.Place)) })
	slices.SortFunc(all.Doubts, func(a, b Doubt) int {
		return cmp.Or(a.compare(b.Place), cmp.Compare(a.Text, b.Text), cmp.Compare(a.Why, b.Why))
	})
	all.Images = slices.Compact(all.Images)
	// The same text in one object is one question, however often it occurs.
	asked := map[Doubt]bool{}
	all.Doubts = slices.DeleteFunc(all.Doubts, func(d Doubt) bool {
		d.Path, d.Why, d.Line = "", "", 0
		again := asked[d]
		asked[d] = true
		return again
	})
	return all
}

// Either joins two results about one source, of which each may have what the other and the common findings lack. The
// sources of the images and doubts of one of them get its name. What both have keeps the places of a.
func Either(common, a Result, nameA string, b Result, nameB string) Result {
	found := func(r ...Result) map[string]bool {
		texts := map[string]bool{}
		for _, one := range r {
			for _, image := range one.Images {
				texts["image "+image.Ref] = true
			}
			for _, d := range one.Doubts {
				texts["doubt "+d.Text] = true
			}
		}
		return texts
	}
	inA, inB := found(common, a), found(common, b)
	var all Result
	for _, image := range a.Images {
		all.Images = append(all.Images, Image{image.Ref, image.only(!inB["image "+image.Ref], nameA)})
	}
	for _, d := range a.Doubts {
		d.Place = d.only(!inB["doubt "+d.Text], nameA)
		all.Doubts = append(all.Doubts, d)
	}
	for _, image := range b.Images {
		if !inA["image "+image.Ref] {
			all.Images = append(all.Images, Image{image.Ref, image.only(true, nameB)})
		}
	}
	for _, d := range b.Doubts {
		if !inA["doubt "+d.Text] {
			d.Place = d.only(true, nameB)
			all.Doubts = append(all.Doubts, d)
		}
	}
	return all
}

// only returns the place with a name after its source.
func (p Place) only(is bool, name string) Place {
	if is {
		p.Source += " (" + name + ")"
	}
	return p
}

// NoUpgrade returns the doubt about a chart that can be rendered for an installation and not for an upgrade.
func NoUpgrade(reason, source string) Doubt {
	return Doubt{
		Text:  "upgrade of " + source,
		Why:   "the templates cannot be rendered for an upgrade, which may need other images: " + shorten(reason),
		Place: Place{Source: source},
	}
}

// Unfit returns the doubt about a chart whose values its own schema refuses.
func Unfit(reason, source string) Doubt {
	return Doubt{
		Text:  "values of " + source,
		Why:   "Helm installs no release with them: " + shorten(strings.Join(strings.Fields(reason), " ")),
		Place: Place{Source: source},
	}
}

func (p Place) compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Source, q.Source), cmp.Compare(p.File, q.File), cmp.Compare(p.Object, q.Object),
		cmp.Compare(p.Path, q.Path))
}

// Undecided returns the doubts that the known references do not resolve. A text that is a known reference is resolved;
// a name without a tag is resolved by any version.
func Undecided(doubts []Doubt, known []string) []Doubt {
	answered := map[string]bool{}
	for _, ref := range known {
		answered[ref] = true
		name, _, _ := strings.Cut(ref, "@")
		answered[name] = true
		answered[withoutTag(name)+" "] = true
	}
	return slices.DeleteFunc(slices.Clone(doubts), func(d Doubt) bool {
		ref, err := scalar.ImageName(d.Text)
		if err != nil {
			return false
		}
		return answered[ref] || !versioned(d.Text) && answered[withoutTag(ref)+" "]
	})
}

// shorten truncates a text to fit a line of a report.
func shorten(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "�")
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// Lookup returns the doubt about a template that asked the cluster for objects of a kind, "apps/v1 Deployment", and
// found none. Kinds without images leave no doubt: most charts look up their own secrets to keep passwords.
func Lookup(kind string) (Doubt, bool) {
	if strings.HasPrefix(kind, "rbac.authorization.k8s.io/") {
		return Doubt{}, false
	}
	switch kind {
	case "v1 Secret", "v1 Namespace", "v1 Node", "v1 Service", "v1 ServiceAccount", "v1 PersistentVolume",
		"v1 PersistentVolumeClaim",
		"storage.k8s.io/v1 StorageClass", "networking.k8s.io/v1 IngressClass",
		"apiextensions.k8s.io/v1 CustomResourceDefinition":
		return Doubt{}, false
	}
	return Doubt{Text: "lookup " + kind, Why: "a template asks the cluster"}, true
}
