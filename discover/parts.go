package discover

import (
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// parts asks about an image that is given in parts:
//
//	{registry: quay.io, repository: a/b, tag: v1}             most charts
//	{repository: nvcr.io/nvidia, image: driver, version: v1}  NVIDIA's operators
//	{registry: quay.io, name: a/b, digest: "sha256:…"}        and with image, or hub for registry
//	image: {name: a/b, tag: v1}                               where the key says that it is an image
//	{name: a, newName: quay.io/a/b, newTag: v1}               Kustomize, and Flux and Argo CD for it
//	{url: "oci://quay.io/a/b", ref: {tag: v1}}                Flux's artifacts
func (w *walk) parts(at, key string, m map[string]any) {
	text := joined(key, m)
	if text == "" {
		return
	}
	if ref, _ := field(text); ref == "" {
		return
	}
	for _, part := range []string{"repository", "image", "name", "url"} {
		if _, ok := m[part].(string); ok {
			where := joinPath(at, part)
			w.seen[where] = true // it is asked about as a whole
			w.doubt(where, text, whyUnknown)
			return
		}
	}
}

// joined returns the reference that the parts of an image make, "" if they are none. key is that of the mapping.
func joined(key string, m map[string]any) string {
	if text := replaced(m) + artifact(m); text != "" {
		return text
	}
	repository, _ := m["repository"].(string)
	image, _ := m["image"].(string)
	registry := first(m, "registry", "hub")
	tag, digest := textOf(m["tag"]), first(m, "digest", "sha")
	switch {
	case strings.Contains(repository, "://") || strings.Contains(image, "://"):
		return ""
	case repository != "" && image != "":
		repository += "/" + image
		tag = first(m, "tag", "version")
	case repository != "":
	case image == "" && textOf(m["name"]) == "":
		return ""
	case isImageKey(key) && image == "" && registry == "" && tag != "":
		repository = textOf(m["name"])
	default: // the registry says that the name is an image's
		host, _, _ := strings.Cut(registry, "/")
		if repository, tag = first(m, "image", "name"), first(m, "tag", "version"); !isRegistry(host) {
			return ""
		}
	}
	if strings.HasPrefix(tag, "sha256:") { // where a version may also be a digest
		tag, digest = "", tag
	}
	if tag == "" && digest == "" && (!isImageKey(key) || image != "") {
		return ""
	}
	if registry != "" {
		repository = registry + "/" + repository
	}
	if tag != "" {
		repository += ":" + tag
	}
	if digest != "" {
		repository += "@sha256:" + strings.TrimPrefix(digest, "sha256:")
	}
	return repository
}

// replaced returns the image that an entry of Kustomize's images sets, "" if m is none.
func replaced(m map[string]any) string {
	name, tag := first(m, "newName", "name"), first(m, "newTag")
	if name == "" || m["newName"] == nil && tag == "" {
		return ""
	}
	return versionOf(name, tag, first(m, "digest"))
}

// artifact returns the reference of an artifact that a controller fetches, "" if m names none.
func artifact(m map[string]any) string {
	url, _ := m["url"].(string)
	name, isArtifact := strings.CutPrefix(url, "oci://")
	ref, _ := m["ref"].(map[string]any)
	if !isArtifact || ref == nil {
		return ""
	}
	return versionOf(name, first(ref, "tag"), first(ref, "digest")) // a range of versions is no tag
}

// versionOf puts a tag or a digest, which counts more, behind a name.
func versionOf(name, tag, digest string) string {
	switch {
	case digest != "":
		return name + "@" + digest
	case tag != "":
		return name + ":" + tag
	}
	return name
}

// first returns the first of the keys' texts.
func first(m map[string]any, keys ...string) string {
	for _, key := range keys {
		if s := textOf(m[key]); s != "" {
			return s
		}
	}
	return ""
}

// embeddedParts asks about the images in parts of an object in YAML or JSON that a text holds, such as the values that
// an operator keeps in a ConfigMap.
func (w *walk) embeddedParts(at, s string) {
	has := func(key string) bool { return strings.Contains(s, key) }
	if !has("repository") && !has("registry") && (!has("image") || !has("tag")) || !strings.ContainsAny(s, "\n{") {
		return
	}
	for doc := range document.SplitObjects([]byte(s)) {
		inner, err := parse(doc)
		if err != nil {
			return // of another form: searched as any text
		}
		for _, v := range inner {
			w.partsBelow(at+": ", "", v)
		}
	}
}

func (w *walk) partsBelow(at, key string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			w.partsBelow(joinPath(at, k), k, v[k])
		}
		w.parts(at, key, v)
	case []any:
		for i, one := range v {
			w.partsBelow(indexPath(at, i), key, one)
		}
	}
}
