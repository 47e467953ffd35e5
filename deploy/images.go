package deploy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/registry"
)

// images leads image references to a registry. It changes the pod templates of Kubernetes' own workloads, and the
// paths in custom resources that the manifest's imageRules name.
type images struct {
	pull     string            // HOST[/PREFIX]/ of all destinations
	byRef    map[string]string // fully qualified reference: destination with digest
	byDigest map[string]string // REPOSITORY@DIGEST and REPOSITORY:TAG@DIGEST: the same
	byPull   map[string]string // the destination without its digest, as values of the site may name it: the same
	secret   string            // name of the pull secret that pods get; "" for none

	finder   *discover.Finder
	replacer *discover.Replacer
	excluded func(ref string) bool
}

// newImages returns the images of a bundle. digests has the digests in the registry, where they differ from the
// bundle's.
func newImages(items []bundle.Item, b *manifest.Bundle, at Endpoint,
	digests map[string]digest.Digest,
) (*images, error) {
	m := &images{
		pull: strings.TrimSuffix(at.Pull, "/") + "/", byRef: map[string]string{},
		byDigest: map[string]string{}, byPull: map[string]string{}, excluded: b.ExcludesImage,
	}
	var err error
	if m.finder, err = discover.NewFinder(b.ImageRules); err != nil {
		return nil, err
	}
	if m.replacer, err = discover.NewReplacer(b.ImageRules); err != nil {
		return nil, err
	}
	for _, it := range items {
		if it.Kind != bundle.KindImage {
			continue
		}
		to, err := registry.Destination(at.Pull, it, at.Options.Rename...)
		if err != nil {
			return nil, err
		}
		repository, _, _ := strings.Cut(it.Ref, "@")
		at := it.Descriptor.Digest
		if other, ok := digests[it.Ref]; ok {
			at = other
		}
		where := to.Name()
		if _, tagged := to.(name.Tag); tagged {
			where += "@" + at.String()
			m.byPull[to.Name()] = where
		}
		m.byRef[it.Ref] = where
		m.byDigest[withoutTag(repository)+"@"+it.Descriptor.Digest.String()] = where
		if repository == it.Ref {
			m.byDigest[it.Ref+"@"+it.Descriptor.Digest.String()] = where
		}
	}
	return m, nil
}

// destination returns where nodes pull an image from. ok is false if the bundle lacks the image. Images that the site
// has put into the registry itself stay as they are.
func (m *images) destination(text string) (to string, ok bool) {
	ref, err := scalar.ImageName(text)
	if err != nil {
		return "", false
	}
	if to, ok = m.byPull[ref]; ok {
		return to, true
	}
	if strings.HasPrefix(text, m.pull) {
		return text, true
	}
	if to, ok = m.byRef[ref]; ok {
		return to, true
	}
	if repository, d, pinned := strings.Cut(ref, "@"); pinned {
		to, ok = m.byDigest[withoutTag(repository)+"@"+d]
	}
	return to, ok
}

// withoutTag removes the tag of a reference without a digest.
func withoutTag(ref string) string {
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

// rewritten is YAML with its images led to the registry.
type rewritten struct {
	text []byte
	// used has the destinations that were written.
	used map[string]bool
	// pulls has the namespaces of objects whose pods pull images; "" is the release's.
	pulls map[string]bool
}

// mark identifies the changes.
func (r *rewritten) mark(secret string) string {
	sum := sha256.New()
	for _, to := range slices.Sorted(maps.Keys(r.used)) {
		sum.Write([]byte(to + "\n"))
	}
	if len(r.pulls) > 0 {
		sum.Write([]byte(secret))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// rewrite changes the objects in a stream of YAML. Documents without images stay byte for byte.
func (m *images) rewrite(text []byte) (*rewritten, error) {
	r := &rewritten{used: map[string]bool{}, pulls: map[string]bool{}}
	var out bytes.Buffer
	i := 0
	for doc := range document.SplitObjects(text) {
		i++
		changed, err := m.document(doc, r)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		out.WriteString("---\n")
		out.Write(changed)
		if !bytes.HasSuffix(changed, []byte("\n")) {
			out.WriteByte('\n')
		}
	}
	r.text = out.Bytes()
	return r, nil
}

func (m *images) document(doc document.ObjectText, r *rewritten) ([]byte, error) {
	if doc.Err != nil {
		return nil, fmt.Errorf("line %d: %w", doc.Line, doc.Err)
	}
	var object map[string]any
	asJSON, err := doc.Text, error(nil)
	if !doc.JSON {
		// JSON's numbers stay whole in between: yaml.Unmarshal would make them floating.
		asJSON, err = yaml.YAMLToJSON(doc.Text)
	}
	if err == nil {
		err = decodeJSON(asJSON, &object)
	}
	if err != nil {
		return nil, err
	}
	if !m.object(object, r) {
		return doc.Text, nil
	}
	head := comments(doc.Text)
	body, err := yaml.Marshal(object)
	return append(head, body...), err
}

// comments returns the comments at the beginning of a document, such as Helm's "# Source".
func comments(doc []byte) []byte {
	var head []byte
	for line := range bytes.Lines(doc) {
		if !bytes.HasPrefix(line, []byte("#")) {
			break
		}
		head = append(head, line...)
	}
	return head
}

// object changes an object, or the items of a List, and reports whether it did.
func (m *images) object(object map[string]any, r *rewritten) bool {
	changed := false
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(text(object["kind"]), "List") {
		for _, item := range items {
			if one, ok := item.(map[string]any); ok && m.object(one, r) {
				changed = true
			}
		}
		return changed
	}
	to := func(from string) string {
		where, ok := m.destination(from)
		if !ok {
			return from // missing reports it
		}
		r.used[where] = true
		changed = changed || where != from
		return where
	}
	m.replacer.Object(object, to)
	spec := podSpec(object)
	if spec == nil {
		return changed
	}
	led := false
	for _, field := range discover.PodImages(spec) {
		where := to(field.Text)
		led = led || strings.HasPrefix(where, m.pull)
		field.Set(where)
	}
	if led && m.secret != "" {
		metadata, _ := object["metadata"].(map[string]any)
		r.pulls[text(metadata["namespace"])] = true
		changed = addPullSecret(spec, m.secret) || changed
	}
	return changed
}

func addPullSecret(spec map[string]any, secret string) bool {
	list, _ := spec["imagePullSecrets"].([]any)
	for _, one := range list {
		if m, ok := one.(map[string]any); ok && m["name"] == secret {
			return false
		}
	}
	spec["imagePullSecrets"] = append(list, map[string]any{"name": secret})
	return true
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// podSpec returns the pod spec in an object of Kubernetes' own workloads, nil in any other.
func podSpec(object map[string]any) map[string]any {
	group, _, inGroup := strings.Cut(text(object["apiVersion"]), "/")
	if !inGroup {
		group = ""
	}
	paths := map[string][]string{
		"/Pod": {"spec"}, "/PodTemplate": {"template", "spec"}, "/ReplicationController": {"spec", "template", "spec"},
		"batch/Job": {"spec", "template", "spec"}, "batch/CronJob": {"spec", "jobTemplate", "spec", "template", "spec"},
		"apps/Deployment": {"spec", "template", "spec"}, "apps/StatefulSet": {"spec", "template", "spec"},
		"apps/DaemonSet": {"spec", "template", "spec"}, "apps/ReplicaSet": {"spec", "template", "spec"},
	}
	path, ok := paths[group+"/"+text(object["kind"])]
	if !ok {
		return nil
	}
	at := object
	for _, key := range path {
		at, _ = at[key].(map[string]any)
	}
	return at
}

// findings are the images in rewritten YAML that do not lead to the registry, each with its place.
type findings struct {
	lacking []string // images that the bundle lacks
	left    []string // images of the bundle that keep upstream's name: nothing says that their place may be changed
	unclear []string // texts that look like images, and that the bundle lacks
	loose   []string // images of the registry that the bundle lacks, without a digest
}

// unled searches rewritten YAML for images that do not lead to the registry: environment variables, arguments, custom
// resources without a rule, texts in ConfigMaps.
func (m *images) unled(text []byte) (f findings, err error) {
	found, err := m.finder.YAML(text, discover.Place{})
	if err != nil {
		return f, err
	}
	for _, image := range found.Images {
		if m.excluded(image.Ref) {
			continue
		}
		if strings.HasPrefix(image.Ref, m.pull) {
			if to, _ := m.destination(image.Ref); to == image.Ref && !strings.Contains(to, "@") {
				f.loose = append(f.loose, image.Ref+" in "+image.Place.String())
			}
			continue
		}
		if _, ok := m.destination(image.Ref); ok {
			f.left = append(f.left, image.Ref+" in "+image.Place.String())
		} else {
			f.lacking = append(f.lacking, image.Ref+" in "+image.Place.String())
		}
	}
	for _, doubt := range found.Doubts {
		if strings.HasPrefix(doubt.Text, m.pull) || m.excluded(doubt.Text) {
			continue
		}
		if _, ok := m.destination(doubt.Text); ok {
			f.left = append(f.left, doubt.Text+" in "+doubt.Place.String())
		} else {
			f.unclear = append(f.unclear, doubt.String())
		}
	}
	return f, nil
}

// unnamed returns the images that the manifest lists itself and that no object leads to the registry.
func (m *images) unnamed(listed []manifest.Image, used map[string]bool) []string {
	var list []string
	for _, image := range listed {
		ref, err := image.Ref()
		if err != nil || m.excluded(ref) {
			continue
		}
		if to, ok := m.destination(ref); ok && !used[to] {
			list = append(list, ref)
		}
	}
	return list
}
