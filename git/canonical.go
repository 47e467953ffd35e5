package git

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	maxDiff  = 16 << 20 // bytes of an object that is written as a delta
	maxDepth = 50       // deltas above an object in a canonical pack
	deepest  = 1024     // directories above each other
)

// Wanted are refs, and how much of their history.
type Wanted struct {
	// Refs are sorted by name. Peeled is set by Canonical.
	Refs []Ref
	// Head is the ref that a clone checks out, "" for none.
	Head string
	// Depth is the number of commits of each history, 0 for all.
	Depth int
}

// A Summary counts the objects of a pack, and names content that the history mentions and the pack lacks.
type Summary struct {
	Objects, Commits int
	// Shallow are the commits whose parents are not in the pack, sorted.
	Shallow []ID
	// Submodules are the first few paths of submodules: their content is in other repositories.
	Submodules []string
	// LFS is the number of pointers to files that Git LFS keeps elsewhere.
	LFS int
}

const (
	mostNamed  = 5    // paths in a Summary
	maxPointer = 1024 // bytes of a pointer, by the specification of Git LFS
)

// Canonical writes the pack of the refs and what they reach to w, and sets Peeled. The pack's index can then be
// written.
func (p *Received) Canonical(ctx context.Context, want *Wanted, w io.Writer) (*Summary, *Index, error) {
	if err := checkRefs(want.Refs); err != nil {
		return nil, nil, err
	}
	p.watch(ctx)
	l := &layout{Received: p, seen: make([]bool, len(p.ids)), paths: map[uint64]int32{}}
	for i := range want.Refs {
		if err := l.ref(&want.Refs[i]); err != nil {
			return nil, nil, fmt.Errorf("ref %s: %w", want.Refs[i].Name, err)
		}
	}
	if err := l.history(ctx, want.Depth); err != nil {
		return nil, nil, err
	}
	for k, c := range l.commits {
		if k%256 == 0 && ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if err := l.tree(c.tree, "", 0); err != nil {
			return nil, nil, fmt.Errorf("commit %s: %w", p.ids[c.number], err)
		}
	}
	x, err := l.write(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	l.summary.Objects, l.summary.Commits = len(x.ids), len(l.commits)
	return &l.summary, x, nil
}

// A layout is the order of a canonical pack, while it is found.
type layout struct {
	*Received
	seen    []bool // by number
	starts  []ID   // commits that refs lead to
	tags    []int32
	commits []*node
	trees   []member
	blobs   []member
	paths   map[uint64]int32 // numbers of paths, by hash
	summary Summary
}

// A node is a commit in the graph.
type node struct {
	number   int32
	tree     int32
	time     int64
	parents  []ID
	children []*node
	waits    int // parents that come first
}

// A member is a tree or blob with the number of the path at which it was met.
type member struct{ number, path int32 }

// LeadsTo returns the type of the object to which an id leads, past tags.
func (p *Received) LeadsTo(id ID) (Type, error) {
	_, t, err := p.peel(id, func(ID, int64) {})
	return t, err
}

// ref adds the tags of a ref, and the commit that it leads to.
func (l *layout) ref(r *Ref) error {
	end, t, err := l.peel(r.ID, func(tag ID, _ int64) {
		if i, ok := l.number(tag); ok && !l.seen[i] {
			l.seen[i], l.tags = true, append(l.tags, i)
		}
	})
	if err != nil {
		return err
	}
	if t != Commit {
		return fmt.Errorf("it leads to a %s and not to a commit; leave it out of refs", t)
	}
	if r.Peeled = (ID{}); end != r.ID {
		r.Peeled = end
	}
	l.starts = append(l.starts, end)
	return nil
}

// history finds the commits and their order.
func (l *layout) history(ctx context.Context, depth int) error {
	nodes := map[int32]*node{}
	parents := maxParents + 2*len(l.ids) // more than any history has
	level := sortedIDs(l.starts)
	for d := 1; len(level) > 0; d++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var next []ID
		for _, id := range level {
			i, err := l.wanted(id, Commit)
			if err != nil {
				return err
			}
			if l.seen[i] {
				continue
			}
			l.seen[i] = true
			c, err := l.commit(i)
			if err != nil {
				return fmt.Errorf("commit %s: %w", id, err)
			}
			nodes[i] = c
			if parents -= len(c.parents); parents < 0 {
				return fmt.Errorf("its commits have more than %d parents in all", maxParents+2*len(l.ids))
			}
			if d == depth && len(c.parents) > 0 {
				l.summary.Shallow = append(l.summary.Shallow, id)
				c.parents = nil
			}
			next = append(next, c.parents...)
		}
		level = next
	}
	l.summary.Shallow = sortedIDs(l.summary.Shallow)
	return l.order(nodes)
}

// order sorts the commits.
func (l *layout) order(nodes map[int32]*node) error {
	var free nodeHeap
	free.ids = l.ids
	for _, c := range nodes {
		for _, parent := range c.parents {
			i, _ := l.number(parent)
			above := nodes[i]
			above.children = append(above.children, c)
			c.waits++
		}
		if c.waits == 0 {
			free.list = append(free.list, c)
		}
	}
	heap.Init(&free)
	for free.Len() > 0 {
		c := heap.Pop(&free).(*node)
		l.commits = append(l.commits, c)
		for _, child := range c.children {
			if child.waits--; child.waits == 0 {
				heap.Push(&free, child)
			}
		}
		c.parents, c.children = nil, nil
	}
	if len(l.commits) != len(nodes) {
		return errors.New("the history has a circle")
	}
	return nil
}

func (l *layout) commit(i int32) (*node, error) {
	data, err := l.read(i)
	if err != nil {
		return nil, err
	}
	c, err := parseCommit(data)
	if err != nil {
		return nil, err
	}
	tree, err := l.wanted(c.tree, Tree)
	if err != nil {
		return nil, err
	}
	return &node{number: i, tree: tree, time: c.time, parents: c.parents}, nil
}

// A nodeHeap has the commits whose parents are all written.
type nodeHeap struct {
	list []*node
	ids  []ID
}

func (h *nodeHeap) Len() int      { return len(h.list) }
func (h *nodeHeap) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *nodeHeap) Push(x any)    { h.list = append(h.list, x.(*node)) }

func (h *nodeHeap) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	if a.time != b.time {
		return a.time < b.time
	}
	return compareIDs(h.ids[a.number], h.ids[b.number]) < 0
}

func (h *nodeHeap) Pop() any {
	last := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	return last
}

// pathNumber returns the number of a path: that of its first appearance.
func (l *layout) pathNumber(path string, t Type) int32 {
	h := uint64(14695981039346656037) ^ uint64(t)
	for i := range len(path) {
		h = (h ^ uint64(path[i])) * 1099511628211
	}
	n, ok := l.paths[h]
	if !ok {
		n = int32(len(l.paths)) //nolint:gosec // at most maxObjects
		l.paths[h] = n
	}
	return n
}

// tree adds a tree and the objects below it that are new.
func (l *layout) tree(i int32, path string, depth int) error {
	if l.seen[i] {
		return nil
	}
	if depth > deepest {
		return fmt.Errorf("there are more than %d directories above each other", deepest)
	}
	l.seen[i] = true
	l.trees = append(l.trees, member{i, l.pathNumber(path, Tree)})
	data, err := l.read(i)
	if err != nil {
		return err
	}
	err = eachEntry(data, func(e treeEntry) error {
		below := path + "/" + string(e.name)
		if e.kind == Commit {
			l.summary.Submodules = named(l.summary.Submodules, below)
			return nil
		}
		n, err := l.wanted(e.id, e.kind)
		if err != nil {
			return err
		}
		if e.kind == Tree {
			return l.tree(n, below, depth+1)
		}
		if l.seen[n] {
			return nil
		}
		l.seen[n] = true
		l.blobs = append(l.blobs, member{n, l.pathNumber(below, Blob)})
		return nil
	})
	if err != nil && depth == 0 {
		return fmt.Errorf("tree %s: %w", l.ids[i], err)
	}
	return err
}

// named adds a path to the first few.
func named(list []string, path string) []string {
	path = strings.TrimPrefix(path, "/")
	if len(list) < mostNamed && !slices.Contains(list, path) {
		list = append(list, path)
	}
	return list
}

// write writes the objects in their order.
func (l *layout) write(ctx context.Context, w io.Writer) (*Index, error) {
	for _, list := range [][]member{l.trees, l.blobs} {
		slices.SortStableFunc(list, func(a, b member) int { return int(a.path) - int(b.path) })
	}
	n := len(l.commits) + len(l.tags) + len(l.trees) + len(l.blobs)
	out := newPackWriter(w, n)
	put := func(i int32, before chain) (chain, error) {
		if out.count%1024 == 0 && ctx.Err() != nil {
			return chain{}, context.Cause(ctx)
		}
		next, err := l.put(out, i, before)
		if err != nil {
			return chain{}, fmt.Errorf("object %s: %w", l.ids[i], err)
		}
		return next, nil
	}
	for _, c := range l.commits {
		if _, err := put(c.number, chain{}); err != nil {
			return nil, err
		}
	}
	for _, i := range l.tags {
		if _, err := put(i, chain{}); err != nil {
			return nil, err
		}
	}
	for _, list := range [][]member{l.trees, l.blobs} {
		var before chain
		for k, m := range list {
			if k == 0 || list[k-1].path != m.path {
				before = chain{}
			}
			var err error
			if before, err = put(m.number, before); err != nil {
				return nil, err
			}
		}
	}
	return out.close()
}

// A chain is an object that the next one may be a delta of.
type chain struct {
	data  []byte // nil for none
	depth int    // deltas above it
}

// put writes an object, perhaps as a delta of the object before it.
func (l *layout) put(out *packWriter, i int32, before chain) (chain, error) {
	t, id := l.kinds[i], l.ids[i]
	e, err := l.entry(l.offsets[i])
	if err != nil {
		return chain{}, err
	}
	if e.kind <= Tag && e.size > maxDiff { // it may be very large
		return chain{}, out.stream(id, t, e.size, func(w io.Writer) error { return l.inflateTo(w, e.data) })
	}
	data, err := l.read(i)
	if err != nil {
		return chain{}, err
	}
	if t == Blob && len(data) <= maxPointer && bytes.HasPrefix(data, []byte("version https://git-lfs.github.com/spec/")) {
		l.summary.LFS++
	}
	if len(data) > maxDiff {
		return chain{}, out.object(id, t, data)
	}
	if before.data != nil && before.depth < maxDepth {
		if delta := diff(before.data, data); len(delta) < len(data)/2 {
			return chain{data, before.depth + 1}, out.delta(id, delta)
		}
	}
	return chain{data, 0}, out.object(id, t, data)
}
