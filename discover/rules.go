package discover

import (
	"bytes"
	_ "embed" // the data
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

//go:embed rules.yaml
var data []byte

// builtin parses the embedded rules once, at first use.
var builtin = sync.OnceValues(func() ([]rule, error) { //nolint:gochecknoglobals // what it holds does not change
	var list []struct {
		manifest.ImageRule `yaml:",inline"`
		Within             string   `yaml:"within"`
		Charts             []string `yaml:"charts"`
		Chooses            string   `yaml:"chooses"`
		Source             string   `yaml:"source"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&list); err != nil {
		return nil, fmt.Errorf("read the rules for images: %w", err)
	}
	var own []manifest.ImageRule
	for _, one := range list {
		if one.Source == "" {
			return nil, fmt.Errorf("read the rules for images: %s has no source", one.Kind)
		}
		own = append(own, one.ImageRule)
	}
	rules, err := compile(own)
	if err != nil {
		return nil, err
	}
	for i, one := range list {
		rules[i].chooses = one.Chooses
		for _, text := range one.Charts {
			p, err := parsePath(text)
			if err != nil {
				return nil, fmt.Errorf("read the rules for images: charts of %s: %w", one.Kind, err)
			}
			rules[i].charts = append(rules[i].charts, p)
		}
		if one.Within == "" {
			continue
		}
		if rules[i].within, err = parsePath(one.Within); err != nil {
			return nil, fmt.Errorf("read the rules for images: within of %s: %w", one.Kind, err)
		}
	}
	return rules, nil
})

// A rule names the paths of images in objects of a kind.
type rule struct {
	kind, apiVersion string
	paths            []jsonPath
	images           []imageTemplate
	required         bool
	// chooses is the image without a tag that stands for those that the controller chooses.
	chooses string
	// within leads to a text with the object that the paths are of; nil for the object itself.
	within jsonPath
	// charts lead to the names of charts that the object's controller fetches.
	charts []jsonPath
}

// An imageTemplate is a reference with paths in it: texts and paths alternate, and the first and the last are texts.
type imageTemplate struct {
	texts []string
	paths []jsonPath
}

// compile returns the rules, or an error with a line for each problem.
func compile(list []manifest.ImageRule) ([]rule, error) {
	var rules []rule
	var errs []error
	for i, r := range list {
		one := rule{kind: r.Kind, apiVersion: r.APIVersion, required: r.Required}
		for _, text := range r.Paths {
			p, err := parsePath(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("imageRules[%d]: %w", i, err))
			}
			one.paths = append(one.paths, p)
		}
		for _, text := range r.Images {
			t, err := parseTemplate(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("imageRules[%d]: image %q: %w", i, shorten(text), err))
			}
			one.images = append(one.images, t)
		}
		rules = append(rules, one)
	}
	return rules, errors.Join(errs...)
}

func parseTemplate(text string) (imageTemplate, error) {
	var t imageTemplate
	from := 0
	for _, m := range regexp.MustCompile(`\{([^{}]*)\}`).FindAllStringSubmatchIndex(text, -1) {
		p, err := parsePath(text[m[2]:m[3]])
		if err != nil {
			return t, err
		}
		t.texts, t.paths = append(t.texts, text[from:m[0]]), append(t.paths, p)
		from = m[1]
	}
	t.texts = append(t.texts, text[from:])
	if len(t.paths) == 0 {
		return t, errors.New("no path in braces")
	}
	return t, nil
}

// fits reports whether the rule applies to objects of this kind.
func (r rule) fits(kind, apiVersion string) bool {
	if r.kind != kind {
		return false
	}
	group, _, _ := strings.Cut(apiVersion, "/")
	return r.apiVersion == "" || r.apiVersion == apiVersion || r.apiVersion == group
}

// fill puts an object's values into a template; ok is false if one is missing.
func (t imageTemplate) fill(object map[string]any) (text, at string, ok bool) {
	text = t.texts[0]
	for i, p := range t.paths {
		var value string
		p.each("", object, func(where string, v any) {
			if s := textOf(v); s != "" && value == "" {
				value, at = s, where
			}
		})
		if value == "" {
			return "", "", false
		}
		text += value + t.texts[i+1]
	}
	return text, at, true
}

// textOf returns a text, or a number as written.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case number:
		return string(v)
	case int:
		return strconv.Itoa(v)
	}
	return ""
}

// ruled finds the images that the rules select in the object.
func (w *walk) ruled(object map[string]any, kind, apiVersion string) {
	var named, required bool
	var templates []imageTemplate
	for _, r := range w.rules {
		if !r.fits(kind, apiVersion) {
			continue
		}
		if r.within != nil {
			w.embedded(object, r)
			continue
		}
		w.charted(object, r)
		required = required || r.required
		if r.chooses != "" {
			w.doubt("", r.chooses, whyController)
		}
		templates = append(templates, r.images...)
		for _, p := range r.paths {
			p.each("", object, func(at string, v any) {
				s, ok := v.(string)
				if !ok || strings.TrimSpace(s) == "" || w.seen[at] || strings.HasPrefix(s, "oci-archive://") {
					named = named || w.seen[at]
					return
				}
				named = true
				w.seen[at] = true
				w.field(at, strings.TrimPrefix(s, "docker://")) // the schemes are CDI's own
			})
		}
	}
	if named {
		return
	}
	for _, t := range templates {
		if text, at, ok := t.fill(object); ok {
			named = true
			w.field(at, text)
		}
	}
	if required && !named {
		w.doubt("", "default image of "+kind, whyController)
	}
}

// charted asks about the charts that the object's controller fetches: nobody has searched them.
func (w *walk) charted(object map[string]any, r rule) {
	for _, p := range r.charts {
		p.each("", object, func(at string, v any) {
			if name := textOf(v); name != "" {
				w.seen[at] = true
				w.doubt(at, "chart "+name, whyChart)
			}
		})
	}
}

// embedded finds the images that a rule selects in an object within a text. A path's value without a slash is only a
// part of an image.
func (w *walk) embedded(object map[string]any, r rule) {
	r.within.each("", object, func(at string, v any) {
		text, ok := v.(string)
		if !ok || len(text) > maxScan {
			return
		}
		for doc := range document.SplitObjects([]byte(text)) {
			inner, err := parse(doc)
			if err != nil || len(inner) != 1 {
				return // of another form: searched as any text
			}
			values, _ := inner[0].(map[string]any)
			named := false
			for _, p := range r.paths {
				p.each("", values, func(where string, v any) {
					if s, ok := v.(string); ok && strings.Contains(s, "/") {
						named = true
						w.field(at+": "+where, s)
					}
				})
			}
			for _, t := range r.images {
				if text, where, ok := t.fill(values); ok && !named {
					w.field(at+": "+where, text)
				}
			}
		}
	})
}
