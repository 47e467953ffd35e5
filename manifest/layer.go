package manifest

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// layer is the origin of a value outside of the cluster file.
type layer struct {
	// name is the origin's display name: group kube_worker, host node1, --set.
	name string
	// file is as in Problem.
	file string
}

const setLayer = "--set"

// stack merges trees without changing any of them.
type stack struct {
	src *source
	// budget bounds the visited nodes: aliases can repeat them.
	budget int
}

// over returns src overridden by more nodes: mappings key by key, everything else as a whole.
func (s *source) over(more *yaml.Node, from layer) (*source, error) {
	merged := &source{file: s.file, foreign: s.foreign, layers: maps.Clone(s.layers)}
	if merged.layers == nil {
		merged.layers = map[*yaml.Node]layer{}
	}
	st := stack{src: merged, budget: fileLimits().values}
	st.mark(more, from)
	merged.root = st.merge(s.root, more)
	if st.budget <= 0 {
		return nil, Problems{{File: from.file, Line: more.Line, Column: more.Column, Message: fmt.Sprintf("more than %d values", fileLimits().values)}}
	}
	return merged, nil
}

// mark records the origin of a tree's nodes. Entries of a list that a setting leaves unchanged keep their line in the
// file.
func (st *stack) mark(n *yaml.Node, from layer) {
	if st.budget--; st.budget <= 0 {
		return
	}
	if from.name != setLayer || n.Line == 0 {
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
	under, over = resolved(under), resolved(over)
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

// keyIndex returns the index of the key in a mapping's Content, -1 if it is missing.
func keyIndex(n *yaml.Node, name string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return i
		}
	}
	return -1
}

// maxSettings bounds --set: a command line has no more.
const maxSettings = 1000

// with applies each setting over the file.
func (s *source) with(settings []string) (*source, error) {
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
		if s, err = s.over(more, layer{setLayer, name}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// setName returns a setting's name for messages; its value may be a secret.
func setName(setting string) string {
	path, _, _ := strings.Cut(setting, "=")
	return setLayer + " " + shorten(path)
}

// setting builds the tree of one setting: mappings from the top of the file down to the value.
func (s *source) setting(path, text string) (*yaml.Node, error) {
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
		here := s.node(strings.TrimPrefix(at, "."))
		name := strings.Trim(steps[i], ".[]")
		if here != nil && resolved(here).Kind == yaml.SequenceNode {
			if value, err = replaced(resolved(here), steps[i], value); err != nil {
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
		if step != index("", i) {
			continue
		}
		n := *list
		n.Content = append([]*yaml.Node(nil), list.Content...)
		st := stack{src: &source{layers: map[*yaml.Node]layer{}}, budget: fileLimits().values}
		n.Content[i] = st.merge(entry, value)
		return &n, nil
	}
	return nil, fmt.Errorf("the list has %d entries, from [0] on, and none is %s", len(list.Content), shorten(step))
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
			return nil, fmt.Errorf("%q is not a path; write one as in kubernetes.maxPods or addons[0].namespace", shorten(given))
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
	n, problems := parse("", []byte(text), fileLimits())
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

// ForHost returns the cluster as configured on one host of an inventory: the cluster settings in the inventory's vars,
// groupVars and the host's own entry override the cluster file, and the command line's settings override both. It
// returns c itself for a host without settings. The error is Problems.
func (c *Cluster) ForHost(inv *Inventory, h Host) (*Cluster, error) {
	if len(h.settings) == 0 || c.file == nil {
		return c, nil
	}
	src := c.file
	for _, one := range h.settings {
		n := inv.src.node(one.path)
		if n == nil {
			continue
		}
		laid, err := src.over(n, layer{one.name, inv.src.file})
		if err != nil {
			return nil, err
		}
		src = laid
	}
	own, err := parseCluster(src, c.sets)
	if err != nil {
		return nil, err
	}
	own.Catalogs, own.Base = c.Catalogs, c.Base // read from separate files
	return own, nil
}

// ForHosts returns ForHost for many hosts of one inventory, with defaults filled in; equal results are computed once.
// Hosts without settings of their own share one cluster, as do all hosts without an inventory. The function is safe for
// concurrent use.
func (c *Cluster) ForHosts(inv *Inventory) func(Host) (*Cluster, error) {
	type answer struct {
		cluster *Cluster
		err     error
	}
	var mu sync.Mutex
	known := map[string]answer{}
	shared := c.WithDefaults()
	return func(h Host) (*Cluster, error) {
		if inv == nil || len(h.settings) == 0 || c.file == nil {
			return shared, nil
		}
		var paths strings.Builder
		for _, one := range h.settings {
			paths.WriteString(one.path + "\n")
		}
		mu.Lock()
		defer mu.Unlock()
		a, ok := known[paths.String()]
		if !ok {
			if a.cluster, a.err = c.ForHost(inv, h); a.err == nil {
				a.cluster = a.cluster.WithDefaults()
			}
			known[paths.String()] = a
		}
		return a.cluster, a.err
	}
}
