package manifest

import (
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Group is a part of a bundle that push, copy, extract and the site select by its name.
type Group struct {
	Description string `yaml:"description,omitempty" doc:"For people who decide about the group."`
	// Optional groups are off until the site switches them on.
	Optional bool `yaml:"optional,omitempty" doc:"true: off until the site switches it on. Default false: on until the site switches it off."`
}

// YAML names files of Kubernetes YAML. In a manifest it is a pattern, or a mapping for a group.
type YAML struct {
	// Path is a pattern of files and kustomize directories below the manifest's directory, as in path.Match.
	Path  string `yaml:"path" kk:"required" local:"machine" doc:"Pattern of Kubernetes YAML files and kustomize directories."`
	Group string `yaml:"group,omitempty" doc:"Group of these files and of the images in them."`
}

// SetShort implements document.Shorthand.
func (y *YAML) SetShort(text string) { y.Path = text }

// MarshalYAML writes the short form if possible.
func (y YAML) MarshalYAML() (any, error) {
	if y.Group == "" {
		return y.Path, nil
	}
	type plain YAML
	return plain(y), nil
}

// A GroupUse is a place of a manifest or cluster file that names a group.
type GroupUse struct{ Path, Group string }

// groupUses returns the places of a manifest that name a group.
func (b *Bundle) groupUses() (uses []GroupUse) {
	add := func(list string, i int, group string) {
		if group != "" {
			uses = append(uses, GroupUse{document.Join(document.Index(list, i), "group"), group})
		}
	}
	for i, x := range b.Images {
		add("images", i, x.Group)
	}
	for i, x := range b.Charts {
		add("charts", i, x.Group)
	}
	for i, x := range b.Manifests {
		add("manifests", i, x.Group)
	}
	for i, x := range b.Files {
		add("files", i, x.Group)
	}
	for i, x := range b.Git {
		add("git", i, x.Group)
	}
	for i, x := range b.Deploy {
		add("deploy", i, x.Group)
	}
	for i, x := range b.Packages {
		add("packages", i, x.Group)
	}
	return uses
}

// GroupUses returns the places of a cluster file that name a group.
func (c *Cluster) GroupUses() (uses []GroupUse) {
	for i, a := range c.Addons {
		if a.Group != "" {
			uses = append(uses, GroupUse{document.Join(document.Index("addons", i), "group"), a.Group})
		}
	}
	return uses
}

// groups checks the names of groups, and that every item's group is one of them.
func (c bundleChecker) groups(b *Bundle) {
	for name := range b.Groups {
		if !document.IsName(name, false) {
			c.AddKey(document.Key("groups", name), "%q is not a name; use lower case letters, digits and hyphens",
				document.Shorten(name))
		}
	}
	for _, use := range b.groupUses() {
		if _, ok := b.Groups[use.Group]; !ok {
			c.Add(use.Path, "%s", NoGroup(use.Group, slices.Sorted(maps.Keys(b.Groups))))
		}
	}
}

// NoGroup is the problem of a group that is none of the known ones.
func NoGroup(name string, known []string) string {
	if len(known) == 0 {
		return "there is no group " + document.Shorten(name) + ", nor any other"
	}
	return "there is no group " + document.Shorten(name) + "; the groups are " + strings.Join(known, ", ")
}

// UnusedGroups returns a problem for each group of the manifest that no item has, and no addon of its clusters.
func (b *Bundle) UnusedGroups(clusters []*Cluster) document.Problems {
	used := map[string]bool{}
	for _, use := range b.groupUses() {
		used[use.Group] = true
	}
	for _, k := range clusters {
		for _, use := range k.GroupUses() {
			used[use.Group] = true
		}
	}
	c := checkerOf(b.src)
	for _, name := range slices.Sorted(maps.Keys(b.Groups)) {
		if !used[name] {
			c.AddKey(document.Key("groups", name),
				"no item has this group; write group: %s at its items, or remove it", document.Shorten(name))
		}
	}
	return c.Found
}

// UnknownGroups returns a problem for each place of the cluster file that names none of the known groups.
func (c *Cluster) UnknownGroups(known []string) error {
	check := checkerOf(c.src)
	for _, use := range c.GroupUses() {
		if !slices.Contains(known, use.Group) {
			check.Add(use.Path, "%s", NoGroup(use.Group, known))
		}
	}
	return check.Found.Err()
}
