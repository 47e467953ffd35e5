package document

import (
	"fmt"
	"maps"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Layer is the origin of a value outside of the cluster file.
type Layer struct {
	// Name is the origin's display name: group kube_worker, host node1, --set.
	Name string
	// File is as in Problem.
	File string
}

const setLayer = "--set"

// stack merges trees without changing any of them.
type stack struct {
	src *Tree
	// budget bounds the visited nodes: aliases can repeat them.
	budget int
}

// Over returns src overridden by more nodes: mappings key by key, everything else as a whole.
func (s *Tree) Over(more *yaml.Node, from Layer) (*Tree, error) {
	merged := &Tree{File: s.File, Foreign: s.Foreign, layers: maps.Clone(s.layers)}
	if merged.layers == nil {
		merged.layers = map[*yaml.Node]Layer{}
	}
	st := stack{src: merged, budget: FileLimits().Values}
	st.mark(more, from)
	merged.Root = st.merge(s.Root, more)
	if st.budget <= 0 {
		return nil, Problems{{
			File: from.File, Line: more.Line, Column: more.Column,
			Message: fmt.Sprintf("more than %d values", FileLimits().Values),
		}}
	}
	return merged, nil
}

// Beside returns the tree of another file. Its nodes keep their places where they become part of this tree.
func (s *Tree) Beside(file string, root *yaml.Node) *Tree {
	if s.layers == nil {
		s.layers = map[*yaml.Node]Layer{}
	}
	var mark func(n *yaml.Node)
	mark = func(n *yaml.Node) {
		s.layers[n] = Layer{fileLayer, file}
		for _, one := range n.Content { // the target of an alias is among them
			mark(one)
		}
	}
	mark(root)
	return &Tree{File: s.File, Root: root, layers: s.layers}
}

// Inherit gives a node that was made of another one the origin of that.
func (s *Tree) Inherit(n, from *yaml.Node) {
	if origin, ok := s.layers[from]; ok {
		s.layers[n] = origin
	}
}

// mark records the origin of a tree's nodes. Entries of a list that a setting leaves unchanged keep their line in the
// file.
func (st *stack) mark(n *yaml.Node, from Layer) {
	if st.budget--; st.budget <= 0 {
		return
	}
	if from.Name != setLayer || n.Line == 0 {
		st.src.layers[n] = from
	}
	if n.Kind == yaml.AliasNode {
		st.mark(n.Alias, from)
	}
	for _, one := range n.Content {
		st.mark(one, from)
	}
}

func (st *stack) merge(under, over *yaml.Node) *yaml.Node {
	if st.budget--; st.budget <= 0 {
		return over
	}
	under, over = Resolved(under), Resolved(over)
	if under.Kind != yaml.MappingNode || over.Kind != yaml.MappingNode {
		return over
	}
	n := *under
	n.Content = append([]*yaml.Node(nil), under.Content...)
	if from, ok := st.src.layers[under]; ok {
		st.src.layers[&n] = from
	}
	for i := 0; i+1 < len(over.Content); i += 2 {
		k, v := over.Content[i], over.Content[i+1]
		at := keyIndex(&n, k.Value)
		if at < 0 {
			n.Content = append(n.Content, k, v)
			continue
		}
		n.Content[at], n.Content[at+1] = k, st.merge(n.Content[at+1], v)
	}
	return &n
}

// maxSettings bounds --set: a command line has no more.
const maxSettings = 1000

// With applies each setting over the file.
func (s *Tree) With(settings []string) (*Tree, error) {
	if len(settings) > maxSettings {
		return nil, Problems{{Message: fmt.Sprintf("more than %d settings; write a cluster file", maxSettings)}}
	}
	for _, one := range settings {
		name := setName(one)
		path, text, ok := strings.Cut(one, "=")
		if !ok || path == "" {
			return nil, Problems{{File: name, Message: "want PATH=VALUE, as in kubernetes.maxPods=200"}}
		}
		more, err := s.setting(path, text)
		if err != nil {
			return nil, Problems{{File: name, Message: err.Error()}}
		}
		if s, err = s.Over(more, Layer{setLayer, name}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// setName returns a setting's name for messages; its value may be a secret.
func setName(setting string) string {
	path, _, _ := strings.Cut(setting, "=")
	return setLayer + " " + Shorten(path)
}

// setting builds the tree of one setting: mappings from the top of the file down to the value.
func (s *Tree) setting(path, text string) (*yaml.Node, error) {
	steps, err := pathSteps(path)
	if err != nil {
		return nil, err
	}
	value, err := settingValue(text)
	if err != nil {
		return nil, err
	}
	for i := len(steps) - 1; i >= 0; i-- {
		at := strings.Join(steps[:i], "")
		here := s.Node(strings.TrimPrefix(at, "."))
		name := strings.Trim(steps[i], ".[]")
		if here != nil && Resolved(here).Kind == yaml.SequenceNode {
			if value, err = replaced(Resolved(here), steps[i], value); err != nil {
				return nil, fmt.Errorf("%s: %w", strings.TrimPrefix(at, "."), err)
			}
			continue
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name}
		value = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, value}}
	}
	return value, nil
}

// replaced returns a list with one entry replaced.
func replaced(list *yaml.Node, step string, value *yaml.Node) (*yaml.Node, error) {
	for i, entry := range list.Content {
		if step != Index("", i) {
			continue
		}
		n := *list
		n.Content = append([]*yaml.Node(nil), list.Content...)
		st := stack{src: &Tree{layers: map[*yaml.Node]Layer{}}, budget: FileLimits().Values}
		n.Content[i] = st.merge(entry, value)
		return &n, nil
	}
	return nil, fmt.Errorf("the list has %d entries, from [0] on, and none is %s", len(list.Content), Shorten(step))
}

// pathSteps splits a path: .kubernetes .maxPods, .components [odd.name] .version.
func pathSteps(path string) ([]string, error) {
	given := path
	if path[0] != '[' {
		path = "." + path
	}
	var steps []string
	for path != "" {
		end := strings.IndexAny(path[1:], ".[") + 1
		if path[0] == '[' {
			end = strings.IndexByte(path, ']') + 1
		}
		if path[0] != '[' && end == 0 {
			end = len(path)
		}
		if end < 2 || path[0] != '.' && path[0] != '[' || strings.Trim(path[:end], ".[]") == "" {
			return nil, fmt.Errorf("%q is not a path; write one as in kubernetes.maxPods or addons[0].namespace",
				Shorten(given))
		}
		steps = append(steps, path[:end])
		path = path[end:]
	}
	if len(steps) > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	return steps, nil
}

// settingValue reads a value: YAML if it is a list or mapping in brackets or a plain scalar, else text.
func settingValue(text string) (*yaml.Node, error) {
	plain := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if text == "" {
		return plain, nil
	}
	n, problems := parse("", []byte(text), FileLimits())
	switch bracket := text[0] == '[' || text[0] == '{'; {
	case bracket && problems != nil:
		return nil, fmt.Errorf("the value is %s", problems[0].Message)
	case problems != nil, !bracket && n.Kind != yaml.ScalarNode:
		return plain, nil
	}
	return n, unplaced(n, 0)
}

// unplaced removes the lines of a value that is in no file, and refuses features of YAML that are useless on a command
// line.
func unplaced(n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("the value is nested more than %d levels deep", maxDepth)
	}
	if n.Kind == yaml.AliasNode {
		return fmt.Errorf("the value has an alias; write it out")
	}
	n.Line, n.Column = 0, 0
	for _, one := range n.Content {
		if err := unplaced(one, depth+1); err != nil {
			return err
		}
	}
	return nil
}
