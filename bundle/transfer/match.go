// Package transfer selects items of bundles and copies them into another bundle.
package transfer

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Matching returns the items that a name or pattern means. If no item has the name, it is read as a short image name
// of Docker: nginx:1.29 is docker.io/library/nginx:1.29. If there is no such image either, it is the end of an
// image's name after a slash (nginx, or team/app:1), or the first digits of a digest, at least 7.
func Matching(items []bundle.Item, pattern string) []bundle.Item {
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
	if full, err := scalar.ImageName(text); err == nil {
		name, untagged := strings.CutSuffix(full, ":latest")
		found = find(func(it bundle.Item) bool {
			return it.Kind == bundle.KindImage && (it.Ref == full || untagged && imageName(it) == name)
		})
	}
	if len(found) > 0 {
		return found
	}
	return find(func(it bundle.Item) bool {
		return it.Kind == bundle.KindImage && (strings.HasSuffix(it.Ref, "/"+text) ||
			strings.HasSuffix(imageName(it), "/"+text)) || startsDigest(text, it.Descriptor.Digest)
	})
}

// imageName returns an image's name without tag and digest. The index's Name may be the whole reference, or missing.
func imageName(it bundle.Item) string {
	name, _, _ := strings.Cut(it.Ref, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// startsDigest reports whether text is the beginning of the digest's digits, as inspect prints them.
func startsDigest(text string, d digest.Digest) bool {
	const least = 7 // as git's
	text = strings.TrimPrefix(text, d.Algorithm().String()+":")
	return len(text) >= least && strings.HasPrefix(d.Encoded(), text)
}

// splitKind cuts the kind from the front of a pattern: chart/NAME or chart:NAME.
func splitKind(pattern string) (kind, rest string) {
	i := strings.IndexAny(pattern, "/:")
	if i >= 0 && slices.Contains(kinds(), pattern[:i]) {
		return pattern[:i], pattern[i+1:]
	}
	return "", pattern
}

func kinds() []string {
	return []string{
		bundle.KindImage, bundle.KindChart, bundle.KindFile, bundle.KindReferrer, bundle.KindManifest, bundle.KindLock,
		bundle.KindClosure, bundle.KindSBOM, bundle.KindTool, bundle.KindGit,
	}
}

// named reports whether a pattern without kind means the item.
func named(it bundle.Item, pattern string) bool {
	names := []string{it.Ref, it.Name, it.Descriptor.Digest.String()}
	if it.Version != "" {
		names = append(names, it.Name+":"+it.Version)
	}
	return slices.ContainsFunc(names, func(name string) bool { return name != "" && glob(pattern, name) })
}

// glob matches with * for any characters, slashes too, and ? for one byte.
func glob(pattern, name string) bool {
	star, again := -1, 0 // the last star, and where its rest is tried next
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, again = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			again++
			p, n = star+1, again
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// A NoItemError is a pattern that means no item, with the nearest names.
type NoItemError struct {
	Pattern string
	near    []string
}

// NewNoItemError returns the error of a pattern that means none of the items.
func NewNoItemError(items []bundle.Item, pattern string) *NoItemError {
	return &NoItemError{pattern, near(items, pattern)}
}

// Error names the pattern and the nearest names.
func (e *NoItemError) Error() string {
	text := "the bundle has no " + e.Pattern
	if len(e.near) > 0 {
		return text + "; did you mean " + strings.Join(e.near, " or ") + "?"
	}
	return text + "; `kkbundle inspect` lists its items"
}

// near returns at most three names of items that a mistyped pattern may mean, the nearest first.
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

// Platforms is a set of platforms. The empty set has all of them.
type Platforms []scalar.Platform

// ParsePlatforms reads platforms such as linux/amd64.
func ParsePlatforms(texts []string) (Platforms, error) {
	var set Platforms
	for _, text := range texts {
		p, err := scalar.PlatformString(text)
		if err != nil {
			return nil, err
		}
		set = append(set, p)
	}
	return set, nil
}

// Has reports whether the set has a platform of a bundle.
func (s Platforms) Has(platform string) bool {
	if normal, err := scalar.PlatformString(platform); err == nil {
		platform = normal
	}
	return len(s) == 0 || slices.Contains(s, platform)
}

// String lists the platforms.
func (s Platforms) String() string { return strings.Join(s, ", ") }
