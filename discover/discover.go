// Package discover finds the container images that Kubernetes objects will run: in the pod specs of every kind of
// workload, in custom resources by rules, in environment variables and arguments of operators, and in annotations of
// charts. It is pure: it opens no file and no connection, and everything it reads is bounded.
//
// An Image is certain: it stands where only an image can stand. Everything else that looks like one is a Doubt, with its
// place, for a person to decide.
package discover

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// Bounds of one result. They are far above what charts have; beyond them a source is refused, not cut off.
const (
	maxImages = 10_000
	maxDoubts = 2_000
	maxText   = 300 // bytes of a text that is shown
)

// A Place says where something was found.
type Place struct {
	// Source is what was looked into: "chart web 1.2.3", or "" where the file says it all.
	Source string `json:"source,omitempty"`
	// File is a template in a chart, or a path beside the manifest.
	File string `json:"file,omitempty"`
	// Object is kind and name, "Deployment shop/web".
	Object string `json:"object,omitempty"`
	// Path leads to the value in the object, "spec.template.spec.containers[0].image".
	Path string `json:"path,omitempty"`
}

// String has the parts that are known, from the outside in.
func (p Place) String() string {
	parts := slices.DeleteFunc([]string{p.Source, p.File, p.Object, p.Path}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// An Image is a fully qualified reference and one place that names it.
type Image struct {
	Ref string `json:"ref"`
	Place
}

// A Doubt is a text that may be an image, or stand for one.
type Doubt struct {
	Text string `json:"text"`
	// Why says in a few words what keeps it from being certain.
	Why string `json:"why"`
	Place
}

// Result is what was found in one source. Images and doubts may repeat with different places.
type Result struct {
	Images []Image `json:"images"`
	Doubts []Doubt `json:"doubts"`
}

// Finder finds images by its rules. It may be used by several goroutines.
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

// CheckRules tells what is wrong with a user's rules: its errors have a line for each.
func CheckRules(own []manifest.ImageRule) error {
	_, err := compile(own)
	return err
}

// Merge joins results, sorts what is in them and leaves out repeats.
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
	// One text is one question, however often an object has it.
	asked := map[Doubt]bool{}
	all.Doubts = slices.DeleteFunc(all.Doubts, func(d Doubt) bool {
		d.Path, d.Why = "", ""
		again := asked[d]
		asked[d] = true
		return again
	})
	return all
}

func (p Place) compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Source, q.Source), cmp.Compare(p.File, q.File), cmp.Compare(p.Object, q.Object), cmp.Compare(p.Path, q.Path))
}

// Undecided returns the doubts that the known references do not answer: a text that is one of them is carried, and a name
// without a tag is answered by any of its versions.
func Undecided(doubts []Doubt, known []string) []Doubt {
	answered := map[string]bool{}
	for _, ref := range known {
		answered[ref] = true
		name, _, _ := strings.Cut(ref, "@")
		answered[name] = true
		answered[withoutTag(name)+" "] = true
	}
	return slices.DeleteFunc(slices.Clone(doubts), func(d Doubt) bool {
		ref, err := manifest.ImageName(d.Text)
		if err != nil {
			return false
		}
		return answered[ref] || !versioned(d.Text) && answered[withoutTag(ref)+" "]
	})
}

// shorten keeps a text fit for a line of a report.
func shorten(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "�")
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// Lookup returns the doubt that remains where a template asked the cluster for objects of a kind, "apps/v1 Deployment", and
// found none. Kinds that hold no images leave none: most charts ask for their own secrets, so as to keep passwords.
func Lookup(kind string) (Doubt, bool) {
	if strings.HasPrefix(kind, "rbac.authorization.k8s.io/") {
		return Doubt{}, false
	}
	switch kind {
	case "v1 Secret", "v1 Namespace", "v1 Node", "v1 Service", "v1 ServiceAccount", "v1 PersistentVolume", "v1 PersistentVolumeClaim",
		"storage.k8s.io/v1 StorageClass", "networking.k8s.io/v1 IngressClass", "apiextensions.k8s.io/v1 CustomResourceDefinition":
		return Doubt{}, false
	}
	return Doubt{Text: "lookup " + kind, Why: "a template asks the cluster"}, true
}
