package provision

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// valueOf returns the value of a key, nil if there is none.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// entriesOf returns the entries of a list under a key.
func entriesOf(n *yaml.Node, key string) []*yaml.Node {
	if list := valueOf(n, key); list != nil && list.Kind == yaml.SequenceNode {
		return list.Content
	}
	return nil
}

// without removes a key and returns its value, nil if there is none.
func without(n *yaml.Node, key string) *yaml.Node {
	v := valueOf(n, key)
	if v != nil {
		at := slices.Index(n.Content, v) - 1
		n.Content = slices.Delete(n.Content, at, at+2)
	}
	return v
}

// with adds a key at the place of another node.
func with(n *yaml.Node, key string, v *yaml.Node) {
	n.Content = append(n.Content, &yaml.Node{
		Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: v.Line,
		Column: v.Column,
	}, v)
}

// upgrade turns a configuration of spec 2 into one of spec 3, in place. Spec 2 names a filesystem for each path, has
// filesystems below mount, replaces existing files by default, and appends by a truth.
// https://github.com/coreos/ignition/blob/main/docs/migrating-configs.md
func (r *ignitionReader) upgrade(root *yaml.Node) {
	storage := valueOf(root, "storage")
	for _, kind := range []string{"files", "directories", "links"} {
		for _, n := range entriesOf(storage, kind) {
			if on := without(n, "filesystem"); on != nil && on.Value != "root" {
				r.fail(on, "filesystem %q: paths on root are supported; write the path below the mount point", on.Value)
			}
		}
	}
	for _, n := range entriesOf(storage, "files") {
		r.upgradeFile(n)
	}
	for _, n := range entriesOf(storage, "filesystems") {
		without(n, "name")
		if mount := without(n, "mount"); mount != nil && mount.Kind == yaml.MappingNode {
			n.Content = append(n.Content, mount.Content...)
		}
	}
	for _, n := range entriesOf(valueOf(root, "systemd"), "units") {
		if old := without(n, "enable"); old != nil && old.Value == "true" && valueOf(n, "enabled") == nil {
			with(n, "enabled", old)
		}
	}
}

func (r *ignitionReader) upgradeFile(n *yaml.Node) {
	var more bool
	if old := without(n, "append"); old != nil {
		r.truth(&more)(old)
	}
	contents := valueOf(n, "contents")
	switch {
	case more && contents != nil:
		without(n, "contents")
		with(n, "append", &yaml.Node{
			Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{contents},
			Line: contents.Line, Column: contents.Column,
		})
	case !more && n.Kind == yaml.MappingNode && valueOf(n, "overwrite") == nil:
		with(n, "overwrite", &yaml.Node{
			Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true", Line: n.Line,
			Column: n.Column,
		})
	}
}
