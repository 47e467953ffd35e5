package cli

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/plain"
)

// itemsHelp says how --item and NAME name items.
const itemsHelp = `An item is named by its reference as inspect shows it, by its short name, by name:version, or by its digest, with its kind
and a slash before it where that is needed (file/tool). * stands for any characters.`

// matching returns the items that a name or pattern means. Where it fits nothing as it is written, it is tried as docker
// users write images: nginx:1.29 is docker.io/library/nginx:1.29.
func matching(items []bundle.Item, pattern string) []bundle.Item {
	kind, text := splitKind(pattern)
	find := func(fits func(bundle.Item) bool) (found []bundle.Item) {
		for _, it := range items {
			if fits(it) {
				found = append(found, it)
			}
		}
		return found
	}
	found := find(func(it bundle.Item) bool {
		return it.Ref == pattern || named(it, pattern) || it.Kind == kind && named(it, text)
	})
	if len(found) > 0 || kind != "" && kind != bundle.KindImage {
		return found
	}
	full, err := manifest.ImageName(text)
	if err != nil {
		return nil
	}
	name, untagged := strings.CutSuffix(full, ":latest")
	return find(func(it bundle.Item) bool {
		return it.Kind == bundle.KindImage && (it.Ref == full || untagged && it.Name == name)
	})
}

// splitKind takes a kind off the front of a pattern.
func splitKind(pattern string) (kind, rest string) {
	before, after, ok := strings.Cut(pattern, "/")
	if ok && slices.Contains(kinds(), before) {
		return before, after
	}
	return "", pattern
}

func kinds() []string {
	return []string{
		bundle.KindImage, bundle.KindChart, bundle.KindFile, bundle.KindReferrer, bundle.KindManifest, bundle.KindLock,
		bundle.KindClosure, bundle.KindSBOM, bundle.KindTool,
	}
}

// named tells whether a pattern without kind means the item.
func named(it bundle.Item, pattern string) bool {
	names := []string{it.Ref, it.Name, it.Descriptor.Digest.String()}
	if it.Version != "" {
		names = append(names, it.Name+":"+it.Version)
	}
	return slices.ContainsFunc(names, func(name string) bool { return name != "" && glob(pattern, name) })
}

// glob matches with * for any characters, slashes too.
func glob(pattern, name string) bool {
	first, rest, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return strings.HasSuffix(name, last)
}

// A noItemError says that nothing is called so, and what is called nearly so.
type noItemError struct {
	pattern, platform string
	near              []string
}

func (e *noItemError) Error() string {
	text := "the bundle has no " + e.pattern
	if e.platform != "" {
		text += " for " + e.platform
	}
	if len(e.near) > 0 {
		return text + "; did you mean " + strings.Join(e.near, " or ") + "?"
	}
	return text + "; `kkbundle inspect` lists what it has"
}

// near returns the names of items that a mistyped one may have meant, at most three, the nearest first.
func near(items []bundle.Item, pattern string) []string {
	const most = 3
	_, text := splitKind(pattern)
	text = strings.ToLower(strings.Trim(text, "*"))
	type candidate struct {
		name     string
		distance int
	}
	best := map[string]int{}
	for _, it := range items {
		for _, name := range []string{it.Name, it.Ref, path.Base(it.Ref), it.Name + ":" + it.Version} {
			shown := it.Name
			if shown == "" || it.Kind == bundle.KindImage || it.Kind == bundle.KindChart {
				shown = it.Ref
			}
			far := max(1, len(text)/3) + 1
			d := plain.Distance(text, strings.ToLower(name), far)
			if d == far {
				if len(text) < 3 || !strings.Contains(strings.ToLower(name), text) {
					continue
				}
				d = len(name)
			}
			if old, ok := best[shown]; !ok || d < old {
				best[shown] = d
			}
		}
	}
	var all []candidate
	for name, d := range best {
		all = append(all, candidate{name, d})
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, c := range all[:min(len(all), most)] {
		names = append(names, c.name)
	}
	return names
}

// A platformSet is what --platform chose; an empty one is all of them.
type platformSet []string

func parsePlatforms(texts []string) (platformSet, error) {
	var set platformSet
	for _, text := range texts {
		p, err := manifest.PlatformString(text)
		if err != nil {
			return nil, &usageError{fmt.Errorf("--platform: %w", err)}
		}
		set = append(set, p)
	}
	return set, nil
}

// has tells whether a platform of a bundle was chosen.
func (s platformSet) has(platform string) bool {
	if normal, err := manifest.PlatformString(platform); err == nil {
		platform = normal
	}
	return len(s) == 0 || slices.Contains(s, platform)
}

func (s platformSet) String() string { return strings.Join(s, ", ") }
