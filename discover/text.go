package discover

import (
	"regexp"
	"slices"
	"strings"
)

// env examines an environment variable. RELATED_IMAGE_… is the convention of operators (Operator SDK), …_IMAGE and IMG
// are common habits.
func (w *walk) env(at string, m map[string]any) {
	name, value := textOf(m["name"]), textOf(m["value"])
	if value == "" {
		return // set from a field or a secret, or unset
	}
	at += ".value"
	words := strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool { return r == '_' || r == '.' || r == '-' })
	says := slices.Contains(words, "IMAGE") || slices.Contains(words, "IMG")
	if ref, ok := full(value); ok && says {
		w.image(at, ref)
		return
	}
	if slices.Contains(words, "IMAGES") {
		w.listed(at, value)
		return
	}
	if why, ok := couldBe(value); ok && says {
		w.doubt(at, value, why)
		return
	}
	w.text(at, "", value)
}

// listed examines the value of a variable for several images, as in "a/b:1,c/d:2".
func (w *walk) listed(at, value string) {
	for token := range strings.FieldsFuncSeq(value, isBetween) {
		if why, ok := couldBe(token); ok && versioned(token) {
			w.doubt(at, token, why)
		}
	}
}

// param examines a parameter with its value or default, as of Tekton, Argo Workflows and OpenShift's templates:
// {name: builder-image, value: a/b:1}.
func (w *walk) param(at string, m map[string]any) {
	name, _ := m["name"].(string)
	if !isImageKey(name) {
		return
	}
	for _, key := range []string{"value", "default"} {
		value, _ := m[key].(string)
		where := joinPath(at, key)
		if why, ok := couldBe(value); ok && !hasTemplate(value) && !w.seen[where] {
			w.seen[where] = true
			w.doubt(where, value, why)
		}
	}
}

// args examines a container's arguments: --flag=IMAGE, --flag IMAGE, and texts.
func (w *walk) args(at string, list []any) {
	flag := ""
	for i, one := range list {
		s := textOf(one)
		where := indexPath(at, i)
		before := flag
		flag = ""
		name, value, given := strings.Cut(s, "=")
		switch isFlag := strings.HasPrefix(name, "-") && !strings.ContainsAny(name, " \t\n"); {
		case isFlag && given:
			w.flag(where, name, value, true)
		case isFlag:
			flag = name
		default:
			w.flag(where, before, s, false)
		}
	}
}

// flag examines the value of a flag. joined marks the form --flag=value, in which the two certainly belong together.
func (w *walk) flag(at, name, value string, joined bool) {
	says := strings.Contains(strings.ToLower(name), "image")
	ref, ok := full(value)
	switch why, asks := couldBe(value); {
	case ok && (says || joined && !isPort(ref)):
		w.image(at, ref)
	case ok && isPort(ref):
		w.doubt(at, value, whyPort)
	case says && asks:
		w.doubt(at, value, why)
	default:
		w.text(at, "", value)
	}
}

const (
	// imageLine matches a line of embedded YAML, or similar text, with an image.
	imageLine = `(?m)^[ \t]*(?:- )?["']?image["']?[ \t]*[:=][ \t]*["']?([^"'\n]+)`
	// imageKey matches a key ending in image, anywhere in a text, with its value.
	imageKey = `["']?\b[A-Za-z_.-]*[iI]mage["']?[ \t]*[:=][ \t]*["']?([^\s"',;}]+)`
	// imageFlag matches a flag ending in image in a command line, with its value apart.
	imageFlag = `--[A-Za-z_.-]*image[ \t]+["']?([^\s"',;}]+)`
	maxScan   = 4 << 20 // bytes of one text; a ConfigMap has at most 1 MiB
)

// patterns are compiled once per walk that needs them.
type patterns struct{ line, key, flag *regexp.Regexp }

// text searches a text of unknown meaning. Nothing in it is certain.
func (w *walk) text(at, key, s string) {
	if w.seen[at] || len(s) > maxScan || !strings.ContainsAny(s, ":/@") && !isImageKey(key) {
		return
	}
	if isImageKey(key) && !strings.ContainsAny(s, " \n") {
		if hasTemplate(s) {
			w.doubt(at, s, whyTemplate)
			return
		}
		if why, ok := couldBe(s); ok {
			w.doubt(at, s, why)
			return
		}
	}
	if why, ok := couldBe(s); ok && versioned(s) && strings.HasSuffix(strings.ToLower(key), "images") {
		w.doubt(at, s, why)
		return
	}
	w.embeddedParts(at, s)
	for token := range strings.FieldsFuncSeq(s, isBetween) {
		token = strings.TrimPrefix(strings.TrimPrefix(token, "docker://"), "oci://")
		token = strings.TrimRight(token, ".:")
		if _, ok := full(token); ok {
			w.doubt(at, token, whyUnknown)
		}
	}
	if strings.Contains(strings.ToLower(s), "image") {
		w.keyed(at, s)
	}
}

// isBetween reports whether r separates words in scripts, lists and quoted texts.
func isBetween(r rune) bool { return strings.ContainsRune(" \t\r\n\"'`,;()[]{}<>|=", r) }

// isImageKey reports whether a key's name suggests that its value is an image, or one without its tag, such as
// image.repository of a ConfigMap and imageRepository of a custom resource.
func isImageKey(key string) bool {
	key = strings.NewReplacer(".", "", "_", "", "-", "").Replace(strings.ToLower(key))
	return slices.ContainsFunc([]string{"image", "imagename", "imagerepository", "imagerepo", "imageref", "imageuri"},
		func(end string) bool { return strings.HasSuffix(key, end) })
}

// keyed finds image: NAME in embedded YAML and similar text, for names that do not look like images by themselves.
func (w *walk) keyed(at, s string) {
	if w.patterns == nil {
		w.patterns = &patterns{
			regexp.MustCompile(imageLine), regexp.MustCompile(imageKey), regexp.MustCompile(imageFlag),
		}
	}
	for _, m := range w.patterns.line.FindAllStringSubmatch(s, -1) {
		value, _, _ := strings.Cut(m[1], " #")
		value = strings.TrimSpace(value)
		ref, why := field(value)
		_, certain := full(value)
		switch {
		case why == whyTemplate:
			w.doubt(at, value, why)
		case ref != "" && !certain:
			w.doubt(at, value, whyNoRegistry)
		}
	}
	for _, m := range slices.Concat(w.patterns.key.FindAllStringSubmatch(s, -1),
		w.patterns.flag.FindAllStringSubmatch(s, -1)) {
		if why, ok := couldBe(m[1]); ok && why != whyUnknown {
			w.doubt(at, m[1], why)
		}
	}
}
