package discover

import (
	"strconv"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Replacer changes the images of custom resources at the paths of a user's rules. Built-in rules are for finding
// only: their paths may hold what a controller compares.
type Replacer struct{ rules []rule }

// NewReplacer returns a Replacer for a user's rules.
func NewReplacer(own []manifest.ImageRule) (*Replacer, error) {
	rules, err := compile(own)
	if err != nil {
		return nil, err
	}
	return &Replacer{rules}, nil
}

// Object replaces the texts in an object that the rules name by the result of to.
func (r *Replacer) Object(object map[string]any, to func(ref string) string) {
	for _, one := range r.rules {
		if !one.fits(textOf(object["kind"]), textOf(object["apiVersion"])) {
			continue
		}
		for _, p := range one.paths {
			p.replace(object, to)
		}
	}
}

// replace changes the texts that the path selects below v, and returns v or its replacement.
func (p jsonPath) replace(v any, to func(string) string) any {
	if len(p) == 0 {
		if s, ok := v.(string); ok {
			return to(s)
		}
		return v
	}
	s, rest := p[0], p[1:]
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			if s.name == key || s.name == "" && s.index < 0 {
				v[key] = rest.replace(v[key], to)
			}
			if s.deep {
				v[key] = p.replace(v[key], to)
			}
		}
	case []any:
		for i := range v {
			if s.name == "" && (s.index < 0 || s.index == i) {
				v[i] = rest.replace(v[i], to)
			}
			if s.deep {
				v[i] = p.replace(v[i], to)
			}
		}
	}
	return v
}

// An ImageField is a text in a pod spec that can only be an image.
type ImageField struct {
	// Path leads to the text in the pod spec, "containers[0].image".
	Path string
	Text string
	set  func(string)
}

// Set replaces the text.
func (f ImageField) Set(text string) { f.set(text) }

// PodImages returns the images of a pod spec: of all its containers, and of its volumes (Kubernetes 1.31).
func PodImages(spec map[string]any) []ImageField {
	var fields []ImageField
	add := func(path, key string, m map[string]any) {
		if text, ok := m[key].(string); ok && text != "" {
			fields = append(fields, ImageField{path + "." + key, text, func(s string) { m[key] = s }})
		}
	}
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers", "volumes"} {
		entries, _ := spec[list].([]any)
		for i, entry := range entries {
			m, _ := entry.(map[string]any)
			at := list + "[" + strconv.Itoa(i) + "]"
			if list != "volumes" {
				add(at, "image", m)
			} else if image, ok := m["image"].(map[string]any); ok {
				add(at+".image", "reference", image)
			}
		}
	}
	return fields
}
