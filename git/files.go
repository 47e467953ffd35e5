package git

import (
	"context"
	"fmt"
)

// maxTrees bounds the directories that one search of a repository enters.
const maxTrees = 1 << 20

// A TreeFile is a file of a repository, at the first place that has its content.
type TreeFile struct {
	Ref  string // whole name
	Path string
	id   ID
}

// A Walk says which files EachFile visits.
type Walk struct {
	// Enter decides about a directory by its path, before it is read. The root is /.
	Enter func(dir string) bool
	// Takes decides about a directory by the names in it, wherever it is.
	Takes func(names []string) bool
	// Wants decides about a file.
	Wants func(name string) bool
}

// EachFile calls visit for files in the trees of all refs. A directory or file that several refs have is visited once.
func (r *Repository) EachFile(ctx context.Context, w Walk, visit func(TreeFile) error) error {
	t := treeWalk{Repository: r, Walk: w, visit: visit, seen: map[ID]bool{}}
	for _, ref := range r.Refs {
		id, kind, err := r.peel(ref.ID, func(ID, int64) {})
		if err != nil {
			return err
		}
		if kind == Commit {
			data, err := r.object(id, Commit)
			if err != nil {
				return err
			}
			c, err := parseCommit(data)
			if err != nil {
				return fmt.Errorf("commit %s: %w", id, err)
			}
			id, kind = c.tree, Tree
		}
		if kind != Tree {
			continue // a tag of a file
		}
		t.ref = ref.Name
		if err := t.tree(ctx, id, "/", 0); err != nil {
			return err
		}
	}
	return nil
}

// ReadFile returns the content of a file. ok is false for one of more than limit bytes.
func (r *Repository) ReadFile(f TreeFile, limit int64) (data []byte, ok bool, err error) {
	at, found, err := r.find(f.id)
	if err != nil || !found {
		return nil, false, cmpErr(err, &MissingError{f.id})
	}
	if e, err := r.entry(at); err != nil || e.kind == Blob && e.size > limit {
		return nil, false, err
	}
	data, err = r.object(f.id, Blob)
	return data, int64(len(data)) <= limit, err
}

// A treeWalk is one EachFile.
type treeWalk struct {
	*Repository
	Walk
	visit func(TreeFile) error
	ref   string
	seen  map[ID]bool // directories that were read, and files that were visited
}

func (w *treeWalk) tree(ctx context.Context, id ID, dir string, depth int) error {
	switch {
	case w.seen[id]:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(w.seen) >= maxTrees || depth > deepest:
		return fmt.Errorf("the repository has more than %d directories and files, or more than %d in one another", maxTrees, deepest)
	}
	if !w.Enter(dir) {
		return nil
	}
	w.seen[id] = true
	data, err := w.object(id, Tree)
	if err != nil {
		return err
	}
	var entries []treeEntry
	var names []string
	err = eachEntry(data, func(e treeEntry) error {
		entries, names = append(entries, e), append(names, string(e.name))
		return nil
	})
	if err != nil {
		return fmt.Errorf("tree %s: %w", id, err)
	}
	if !w.Takes(names) {
		return nil
	}
	for _, e := range entries {
		path := dir + string(e.name)
		switch {
		case e.kind == Tree:
			err = w.tree(ctx, e.id, path+"/", depth+1)
		case e.kind == Blob && w.Wants(string(e.name)) && !w.seen[e.id]:
			w.seen[e.id] = true
			err = w.visit(TreeFile{w.ref, path[1:], e.id})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
