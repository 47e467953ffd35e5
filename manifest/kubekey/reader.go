package kubekey

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
)

const (
	// maxNotes bounds the notes about one file.
	maxNotes = 200
	// maxNodes bounds the visited nodes of one file: aliases can repeat nodes. It is manifest's own bound of values.
	maxNodes = 300_000
)

// reader makes objects of a file's nodes, and collects notes and problems. Each format has a reader of its own on top.
type reader struct {
	file     string
	notes    Notes
	problems document.Problems
	secrets  int
	secret   *yaml.Node // the first one
	nodes    int
}

func (r *reader) note(n *yaml.Node, format string, args ...any) {
	if len(r.notes) < maxNotes {
		r.notes = append(r.notes, document.Problem{
			File: r.file, Line: n.Line, Column: n.Column,
			Message: fmt.Sprintf(format, args...),
		})
	}
}

func (r *reader) problem(n *yaml.Node, format string, args ...any) {
	if len(r.problems) < maxNotes {
		r.problems = append(r.problems, document.Problem{
			File: r.file, Line: n.Line, Column: n.Column,
			Message: fmt.Sprintf(format, args...),
		})
	}
}

// object is a mapping of a foreign file. Unread keys are noted by done.
type object struct {
	r     *reader
	path  string
	node  *yaml.Node // the node for messages
	names []string   // in the order of the file
	keys  map[string]*yaml.Node
	value map[string]*yaml.Node
	taken map[string]bool
	subs  map[string]*object // results of peekAt
}

// peek returns an object to read only some keys of.
func (r *reader) peek(n *yaml.Node) *object {
	o := &object{r: r, node: n, keys: map[string]*yaml.Node{}, value: map[string]*yaml.Node{}, taken: map[string]bool{}}
	n, merged := document.Merged(resolved(n))
	if r.nodes += merged; n.Kind != yaml.MappingNode {
		return o
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], resolved(n.Content[i+1])
		if r.nodes++; r.nodes > maxNodes {
			break
		}
		if k.Kind != yaml.ScalarNode || o.keys[k.Value] != nil {
			r.problem(k, "%sa key must be plain text and there once", prefix(o.path))
			continue
		}
		o.names = append(o.names, k.Value)
		o.keys[k.Value], o.value[k.Value] = k, v
	}
	return o
}

// object returns the mapping of a node; anything else is a problem.
func (r *reader) object(path string, n *yaml.Node) *object {
	if m := resolved(n); m.Kind != yaml.MappingNode && m.Tag != "!!null" {
		r.problem(n, "%swant a mapping", prefix(path))
	}
	o := r.peek(n)
	o.path = path
	return o
}

// entries returns the nodes of a list; anything else is a problem.
func (o *object) entries(name string) []*yaml.Node {
	n := o.take(name)
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.SequenceNode:
		o.r.problem(n, "%swant a list", prefix(o.at(name)))
		return nil
	}
	var list []*yaml.Node
	for _, one := range n.Content {
		if o.r.nodes++; o.r.nodes > maxNodes {
			o.r.problem(one, "more than %d values; aliases repeat too much", maxNodes)
			return nil
		}
		list = append(list, resolved(one))
	}
	return list
}

// take returns the value of a key, nil if it is missing, empty, or a template, which is noted.
func (o *object) take(name string) *yaml.Node {
	o.taken[name] = true
	n := o.value[name]
	switch {
	case n == nil || n.Tag == "!!null" || n.Kind == yaml.ScalarNode && n.Value == "":
		return nil
	case n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "{{"):
		o.r.note(n, "%s: a template is not evaluated; it is left out", o.at(name))
		return nil
	}
	return n
}

// whole returns a mapping or list unchanged, nil if it is empty or has a template, which is noted. More can be added to
// it.
func (o *object) whole(name string) *yaml.Node {
	n := o.take(name)
	if n == nil || n.Kind != yaml.ScalarNode && len(n.Content) == 0 {
		return nil
	}
	n, merged := document.Merged(n)
	o.r.nodes += merged
	if at := o.r.template(n, 0); at != nil {
		o.r.note(at, "%s: a template is not evaluated; %s is left out", o.at(name), shown(name))
		return nil
	}
	c := *n
	c.Content = append([]*yaml.Node(nil), n.Content...)
	return &c
}

// texts returns a mapping of names to texts; numbers and booleans count as text, as in KubeKey.
func (o *object) texts(name string) *yaml.Node {
	n := o.whole(name)
	if n == nil || n.Kind != yaml.MappingNode {
		return n
	}
	for i := 1; i < len(n.Content); i += 2 {
		if v := resolved(n.Content[i]); v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
			n.Content[i] = text(v, v.Value)
		}
	}
	return n
}

// template finds a template in a tree, to the depth of reading.
func (r *reader) template(n *yaml.Node, depth int) *yaml.Node {
	const deepest = 48 // manifest's own limit
	if r.nodes++; r.nodes > maxNodes || depth > deepest {
		return nil
	}
	n = resolved(n)
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "{{") {
		return n
	}
	for _, one := range n.Content {
		if at := r.template(one, depth+1); at != nil {
			return at
		}
	}
	return nil
}

// sub returns the mapping under a key, empty if there is none.
func (o *object) sub(name string) *object {
	n := o.take(name)
	if n == nil {
		at := o.node
		if k := o.keys[name]; k != nil {
			at = k
		}
		n = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: at.Line, Column: at.Column}
	}
	return o.r.object(o.at(name), n)
}

// scalar returns the value of a key if it is a scalar.
func (o *object) scalar(name string) *yaml.Node {
	n := o.take(name)
	if n != nil && n.Kind != yaml.ScalarNode {
		o.r.problem(n, "%s: want one value", o.at(name))
		return nil
	}
	return n
}

// text returns the text of a scalar, "" if it is missing.
func (o *object) text(name string) string {
	if n := o.scalar(name); n != nil {
		return n.Value
	}
	return ""
}

// is reports whether a key is true; byDefault applies if it is missing.
func (o *object) is(name string, byDefault bool) bool {
	n := o.scalar(name)
	if n == nil {
		return byDefault
	}
	b, err := strconv.ParseBool(n.Value)
	if err != nil {
		o.r.problem(n, "%s: want true or false", o.at(name))
	}
	return b
}

// number returns a scalar that must be a whole number; older files quote some of them.
func (o *object) number(name string) *yaml.Node {
	n := o.scalar(name)
	if n == nil || n.Tag == "!!int" {
		return n
	}
	return placed(n, "!!int", n.Value)
}

// secretOf returns a secret scalar.
func (o *object) secretOf(name string) *yaml.Node {
	n := o.scalar(name)
	if n == nil {
		return nil
	}
	if o.r.secrets++; o.r.secret == nil {
		o.r.secret = n
	}
	return placed(n, "!!str", n.Value)
}

// nothing reports whether a value says no more than a missing key: an empty list or mapping, or one of such values.
func nothing(n *yaml.Node, depth int) bool {
	const deepest = 8 // of KubeKey's own mappings
	n = resolved(n)
	switch {
	case n.Tag == "!!null":
		return true
	case n.Kind == yaml.ScalarNode:
		return n.Value == ""
	case n.Kind == yaml.SequenceNode || depth > deepest:
		return len(n.Content) == 0
	}
	for i := 1; i < len(n.Content); i += 2 {
		if !nothing(n.Content[i], depth+1) {
			return false
		}
	}
	return true
}

// off reports whether a value turns something off that is off unless a file turns it on.
func off(n *yaml.Node) bool {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		return n.Value == "false" || nothing(n, 0)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		v := resolved(n.Content[i+1])
		if !nothing(v, 1) && (n.Content[i].Value != "enabled" || v.Value != "false") {
			return false
		}
	}
	return true
}

// drop notes keys that are understood but cannot be carried over, with the reason. A key that turns something off has
// none.
func (o *object) drop(why string, names ...string) {
	for _, name := range names {
		if n := o.take(name); n != nil && !off(n) {
			o.r.note(o.keys[name], "%s is not carried over: %s", o.at(name), why)
		}
	}
}

// dropUnless is drop for a key whose usual value needs no note.
func (o *object) dropUnless(usual, why, name string) {
	if v := o.text(name); v != "" && v != usual {
		o.drop(why, name)
	}
}

// ignore skips keys without a note: kkbundle detects their values itself.
func (o *object) ignore(names ...string) {
	for _, name := range names {
		o.taken[name] = true
	}
}

// done notes unread keys.
func (o *object) done() {
	for _, name := range o.names {
		if !o.taken[name] && !nothing(o.value[name], 0) {
			o.r.note(o.keys[name], "%s is not carried over: kkbundle has no equivalent", o.at(name))
		}
	}
}

func (o *object) at(name string) string {
	if o.path == "" {
		return shown(name)
	}
	return o.path + "." + shown(name)
}

func prefix(path string) string {
	if path == "" {
		return ""
	}
	return path + ": "
}

// shown bounds a file's own text in messages.
func shown(s string) string {
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// placed returns a scalar at the place of another node.
func placed(at *yaml.Node, tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value, Line: at.Line, Column: at.Column}
}

// text returns a placed string.
func text(at *yaml.Node, value string) *yaml.Node { return placed(at, "!!str", value) }

// yes returns a placed true.
func yes(at *yaml.Node) *yaml.Node { return placed(at, "!!bool", "true") }

// tree is a mapping built for the decoder.
type tree struct{ root *yaml.Node }

func mapping(at *yaml.Node) tree {
	return tree{&yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: at.Line, Column: at.Column}}
}

func newTree(at *yaml.Node, kind string) tree {
	t := mapping(at)
	t.set("apiVersion", text(at, manifest.APIVersion))
	t.set("kind", text(at, kind))
	return t
}

func (t tree) document(file string) manifest.Document {
	return manifest.Document{File: file, Root: t.root}
}

// set sets the value at a dotted path of keys, unless it is nil. The first value wins.
func (t tree) set(path string, v *yaml.Node) {
	if v != nil {
		t.put(v, strings.Split(path, ".")...)
	}
}

// settings carries the configuration of another program over: section is kubelet or kubeProxy. Settings with a place
// of their own in the cluster file go there, others that kkbundle decides itself are named in notes.
func (r *reader) settings(t tree, section string, n *yaml.Node, places map[string]string) {
	if n == nil || n.Kind != yaml.MappingNode {
		t.set("kubernetes."+section, n)
		return
	}
	kept := *n
	kept.Content = nil
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		instead := programs.Reserved(programs.Section(section), key.Value, value.Value)
		switch place := places[key.Value]; {
		case instead == "":
			kept.Content = append(kept.Content, key, value)
		case place != "":
			t.set(place, value)
		default:
			r.note(key, "%s of the configuration of %s is not carried over: %s", shown(key.Value), section, instead)
		}
	}
	if len(kept.Content) > 0 {
		t.set("kubernetes."+section, &kept)
	}
}

// kubeletPlaces and proxyPlaces return the places of settings in the cluster file.
func kubeletPlaces() map[string]string {
	return map[string]string{"maxPods": "kubernetes.maxPods", "clusterDomain": "dns.domain"}
}

func proxyPlaces() map[string]string { return map[string]string{"mode": "kubernetes.proxyMode"} }

// put is set for keys that may have dots.
func (t tree) put(v *yaml.Node, keys ...string) {
	n := t.root
	for i, name := range keys {
		last := i == len(keys)-1
		next := find(n, name)
		switch {
		case next == nil && last:
			n.Content = append(n.Content, text(v, name), v)
		case next == nil:
			next = mapping(v).root
			n.Content = append(n.Content, text(v, name), next)
		}
		n = next
	}
}

func find(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// remove removes a key.
func (t tree) remove(name string) {
	for i := 0; i+1 < len(t.root.Content); i += 2 {
		if t.root.Content[i].Value == name {
			t.root.Content = append(t.root.Content[:i], t.root.Content[i+2:]...)
			return
		}
	}
}

// list makes a list of nodes.
func list(at *yaml.Node, entries []*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: entries, Line: at.Line, Column: at.Column}
}

// defaults sets KubeKey's defaults that differ from kkbundle's.
func (r *reader) defaults(t tree, at *yaml.Node, values [][2]string) {
	var said []string
	for _, one := range values {
		path, value := one[0], one[1]
		if t.has(path) {
			continue
		}
		tag := "!!str"
		if value == "true" {
			tag = "!!bool"
		} else if _, err := strconv.Atoi(value); err == nil {
			tag = "!!int"
		}
		t.set(path, placed(at, tag, value))
		said = append(said, path+": "+value)
	}
	if said != nil {
		r.note(at, "KubeKey's defaults apply to missing settings: %s", strings.Join(said, ", "))
	}
}

func (t tree) has(path string) bool {
	n := t.root
	for _, name := range strings.Split(path, ".") {
		if n = find(n, name); n == nil {
			return false
		}
	}
	return true
}

// fitPods lowers the number of pods on a node where a file gives nodes a smaller network than the default needs:
// KubeKey lets pods wait for an address there.
func (r *reader) fitPods(t tree) {
	const byDefault = 110 // KubeKey's and kkbundle's
	if t.has("kubernetes.maxPods") {
		return
	}
	pods := cmp.Or(t.text("kubernetes", "podCIDR"), "10.233.64.0/18")
	most, at := byDefault, (*yaml.Node)(nil)
	for _, one := range []struct {
		sign, key string
		bits      int
	}{{".", "ipv4MaskSize", 32}, {":", "ipv6MaskSize", 128}} {
		size, err := strconv.Atoi(t.text("cni", one.key))
		spare := one.bits - size
		if err != nil || spare < 2 || spare > 7 || !strings.Contains(pods, one.sign) {
			continue
		}
		if holds := 1<<spare - 2; holds < most {
			most, at = holds, find(find(t.root, "cni"), one.key)
		}
	}
	if at == nil {
		return
	}
	t.set("kubernetes.maxPods", placed(at, "!!int", strconv.Itoa(most)))
	r.note(at, "a node's network holds %d addresses, fewer than KubeKey's default of %d pods on a node: kubernetes.maxPods is %d", most, byDefault, most)
}
