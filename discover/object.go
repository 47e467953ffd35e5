package discover

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// YAML finds the images in a stream of Kubernetes YAML, such as a file or a rendered template. in is the prefix of the
// objects' places. An unreadable document does not stop the search of the others; the error has a line for each.
func (f *Finder) YAML(text []byte, in Place) (Result, error) {
	w := &walk{rules: f.rules, place: in, left: maxObjects}
	var errs []error
	number := 0
	for doc := range document.SplitObjects(text) {
		number++
		failed := func(err error) { errs = append(errs, fmt.Errorf("%s: document %d: %w", in, number, err)) }
		if doc.Err != nil {
			failed(fmt.Errorf("line %d: %w", doc.Line, doc.Err))
		}
		w.doc, w.line = doc.Text, doc.Line
		objects, err := parse(doc)
		if err != nil && doc.Err == nil {
			failed(err)
		}
		for _, v := range objects {
			if err := w.document(v); err != nil {
				failed(err)
			}
		}
		if errors.Is(w.err, ErrTooLarge) {
			break
		}
	}
	if w.err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", in, w.err))
	}
	return Merge(w.found), errors.Join(errs...)
}

// Annotation finds the images in the value of a chart's annotation artifacthub.io/images: a list of mappings with
// image.
func (f *Finder) Annotation(text string, in Place) Result {
	return annotated(text, in, "annotations['artifacthub.io/images']")
}

// Listed returns doubts about the images in the value of a chart's annotation images, of the same form: Bitnami's
// charts list there what some values need. The images that were found resolve theirs. A text of another form is
// another use of the key.
func (*Finder) Listed(text string, in Place) []Doubt {
	var doubts []Doubt
	for _, image := range annotated(text, in, "annotations.images").Images {
		doubts = append(doubts, Doubt{image.Ref, whyListed, image.Place})
	}
	return doubts
}

func annotated(text string, in Place, path string) Result {
	in.Path = path
	w := &walk{place: in, left: maxObjects}
	all, err := parse(document.ObjectText{Text: []byte(text)})
	var list []any
	ok := len(all) == 1
	if ok {
		list, ok = all[0].([]any)
	}
	if err != nil || !ok {
		w.doubt("", text, whyInvalid)
		return w.found
	}
	for i, one := range list {
		m, _ := one.(map[string]any)
		image, ok := m["image"].(string)
		if !ok {
			w.doubt(indexPath("", i), fmt.Sprint(one), whyInvalid)
			continue
		}
		w.field(indexPath("", i)+".image", image)
	}
	return Merge(w.found)
}

// walk is the state of searching one source.
type walk struct {
	rules    []rule
	place    Place // of the current object
	doc      []byte
	line     int // of the source, where doc begins
	seen     map[string]bool
	found    Result
	left     int // objects
	patterns *patterns
	err      error
}

// errNoObject means a document is not a Kubernetes object.
var errNoObject = errors.New("apiVersion and kind are missing: not a Kubernetes object")

func (w *walk) document(v any) error {
	m, ok := v.(map[string]any)
	if !ok || textOf(m["kind"]) == "" || textOf(m["apiVersion"]) == "" {
		return errNoObject
	}
	w.object(m, 0)
	return nil
}

// object searches an object, or the objects of a list.
func (w *walk) object(m map[string]any, depth int) {
	if w.left--; w.left < 0 || depth > maxNesting {
		w.err = fmt.Errorf("%w: more than %d objects", ErrTooLarge, maxObjects)
		return
	}
	kind, apiVersion := textOf(m["kind"]), textOf(m["apiVersion"])
	if items, ok := m["items"].([]any); ok && strings.HasSuffix(kind, "List") {
		for _, one := range items {
			if inner, ok := one.(map[string]any); ok {
				w.object(inner, depth+1)
			}
		}
		return
	}
	switch kind {
	case "CustomResourceDefinition": // a definition; it runs nothing
		return
	case "Secret": // its content must not get into a report
		return
	}
	before := w.place.Object
	w.place.Object, w.seen = objectName(m, kind), map[string]bool{}
	w.ruled(m, kind, apiVersion)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key != "status" {
			w.value(joinPath("", key), key, m[key])
		}
	}
	w.place.Object = before
}

func objectName(m map[string]any, kind string) string {
	meta, _ := m["metadata"].(map[string]any)
	name := textOf(meta["name"])
	if name == "" {
		name = textOf(meta["generateName"])
	}
	if ns := textOf(meta["namespace"]); ns != "" {
		name = ns + "/" + name
	}
	return strings.TrimSpace(shorten(kind + " " + name))
}

// value searches a value and everything below it.
func (w *walk) value(at, key string, v any) {
	switch v := v.(type) {
	case map[string]any:
		w.mapping(at, key, v)
	case []any:
		for i, one := range v {
			if m, ok := one.(map[string]any); ok && isContainerList(key) && w.container(indexPath(at, i), m) {
				continue
			}
			if m, ok := one.(map[string]any); ok && key == "env" {
				w.env(indexPath(at, i), m)
				continue
			}
			w.value(indexPath(at, i), key, one)
		}
	case string:
		w.text(at, key, v)
	}
}

func (w *walk) mapping(at, key string, m map[string]any) {
	w.param(at, m)
	w.parts(at, key, m)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch k {
		case "managedFields", "kubectl.kubernetes.io/last-applied-configuration": // copies of the object
			continue
		case "volumes":
			w.volumes(joinPath(at, k), m[k])
		}
		w.value(joinPath(at, k), k, m[k])
	}
}

// isContainerList reports whether a key is that of a pod spec's containers. Only pod specs, and their patches, have
// lists of that name.
func isContainerList(key string) bool {
	return key == "containers" || key == "initContainers" || key == "ephemeralContainers"
}

// container examines one entry of a pod spec's containers.
func (w *walk) container(at string, c map[string]any) bool {
	image, named := c["image"]
	if _, ok := c["name"].(string); !ok && !named {
		return false // another meaning of the name
	}
	switch s, isText := image.(string); {
	case isText && !w.seen[at+".image"]:
		w.seen[at+".image"] = true
		w.field(at+".image", s)
	case named && image == nil:
		w.field(at+".image", "")
	case textOf(image) != "" && !isText: // Kubernetes refuses a number
		w.doubt(at+".image", textOf(image), whyInvalid)
	default: // in a custom resource: in parts
		w.value(at+".image", "image", image)
	}
	for _, k := range slices.Sorted(maps.Keys(c)) {
		switch list, isList := c[k].([]any); {
		case k == "image":
		case (k == "args" || k == "command") && isList:
			w.args(joinPath(at, k), list)
		default:
			w.value(joinPath(at, k), k, c[k])
		}
	}
	return true
}

// volumes finds images that are mounted (Kubernetes 1.31, volumes[].image.reference).
func (w *walk) volumes(at string, v any) {
	list, _ := v.([]any)
	for i, one := range list {
		volume, _ := one.(map[string]any)
		image, _ := volume["image"].(map[string]any)
		if s, ok := image["reference"].(string); ok {
			where := indexPath(at, i) + ".image.reference"
			w.seen[where] = true
			w.field(where, s)
		}
	}
}

// field adds a value that can only be an image.
func (w *walk) field(at, s string) {
	ref, why := field(s)
	switch why {
	case "":
		w.image(at, ref)
	case whyEmpty:
		w.doubt(at, noImage, why)
	default:
		w.doubt(at, s, why)
	}
}

func (w *walk) image(at, ref string) {
	if len(w.found.Images) >= maxImages {
		w.err = fmt.Errorf("%w: more than %d images", ErrTooLarge, maxImages)
		return
	}
	place := w.place
	place.Path += at
	w.found.Images = append(w.found.Images, Image{ref, place})
}

func (w *walk) doubt(at, text, why string) {
	if len(w.found.Doubts) >= maxDoubts {
		w.err = fmt.Errorf("%w: more than %d texts look like images", ErrTooLarge, maxDoubts)
		return
	}
	place := w.place
	place.Path += at
	if place.Source == "" && (why == whyInvalid || why == whyBlanks) {
		place.Line = w.lineOf(text)
	}
	w.found.Doubts = append(w.found.Doubts, Doubt{shorten(text), why, place})
}

// lineOf returns the first line of the document that ends with a value, as in "image: VALUE", or 0. Large documents
// are not searched.
func (w *walk) lineOf(value string) int {
	const most = 1 << 20
	if len(w.doc) > most || value == "" || strings.Contains(value, "\n") {
		return 0
	}
	line := w.line
	for text := range bytes.Lines(w.doc) {
		key, rest, found := strings.Cut(string(text), ":")
		if rest, _, _ = strings.Cut(rest, " #"); found && !strings.HasPrefix(strings.TrimSpace(key), "#") &&
			strings.Trim(rest, " \t\r\n\"'") == strings.TrimSpace(value) {
			return line
		}
		line++
	}
	return 0
}
