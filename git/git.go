// Package git reads what a Git server sends and writes packs of its own. It trusts nothing: each object is hashed,
// names and sizes are checked, and what the wanted commits do not reach is dropped.
//
// A canonical pack depends on the commits alone. Two servers, or one server on two days, send the same history in packs
// with different bytes; the canonical pack has the same digest each time, so a lock can pin it. Its form:
//
//   - Version 2, objects in the order commits, tags, trees, blobs. Commits: parents first; among those that are free
//     the one with the earliest committer's time, then the smallest id. Tags: in the order of the refs, a tag before
//     the tag that it points at.
//   - Trees and blobs by path. A walk of each commit's tree, in the order of commits, entry by entry, meets each object
//     first at some path, which is its path. Paths are in the order in which the walk meets them first, trees and blobs
//     apart; the objects of a path in the order of the walk.
//   - An object of at most 16 MiB is a delta of the object before it if that has the same path and at most 16 MiB, if
//     the chain has at most 50 deltas, and if the delta has less than half the object's bytes. Package git's own diff
//     makes deltas.
//   - zlib streams are stored, without compression: a bundle's frames compress better across objects, and no
//     compressor's version decides about the bytes.
//
// New commits mostly add objects behind those of the same path, so a later pack consists of ranges of the earlier one,
// which a delta between two bundles carries by reference.
package git

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the names of Git's objects
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// An ID is the name of an object, its SHA-1.
type ID [sha1.Size]byte

// ParseID reads 40 lower-case hexadecimal digits.
func ParseID(text string) (id ID, ok bool) {
	if len(text) != 2*len(id) || strings.ToLower(text) != text {
		return id, false
	}
	n, err := hex.Decode(id[:], []byte(text))
	return id, err == nil && n == len(id)
}

// String returns the hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether the id is that of no object.
func (id ID) IsZero() bool { return id == ID{} }

// A Type is the type of an object, with the numbers that packs use.
type Type uint8

// The types.
const (
	Commit Type = 1
	Tree   Type = 2
	Blob   Type = 3
	Tag    Type = 4
)

// The two forms of deltas in packs.
const (
	ofsDelta Type = 6
	refDelta Type = 7
)

// String returns the name in an object's header.
func (t Type) String() string {
	switch t {
	case Commit:
		return "commit"
	case Tree:
		return "tree"
	case Blob:
		return "blob"
	case Tag:
		return "tag"
	}
	return "type " + strconv.Itoa(int(t))
}

func typeNamed(name string) Type {
	for t := Commit; t <= Tag; t++ {
		if t.String() == name {
			return t
		}
	}
	return 0
}

// header is what is hashed before an object's content.
func header(t Type, size int64) []byte { return fmt.Appendf(nil, "%s %d\x00", t, size) }

// sum returns the id of an object.
func sum(t Type, content []byte) ID {
	h := sha1.New() //nolint:gosec // the names of Git's objects
	h.Write(header(t, int64(len(content))))
	h.Write(content)
	return ID(h.Sum(nil))
}

// A commit is what the walks need of one.
type commit struct {
	tree    ID
	parents []ID
	time    int64 // of the committer, in seconds
}

// maxParents bounds the parents of one commit.
const maxParents = 1 << 12

func parseCommit(data []byte) (c commit, err error) {
	line, rest := cutLine(data)
	name, ok := idAfter(line, "tree ")
	if !ok {
		return c, errors.New("a commit without a tree")
	}
	c.tree = name
	for {
		line, rest = cutLine(rest)
		parent, ok := idAfter(line, "parent ")
		if !ok {
			break
		}
		if c.parents = append(c.parents, parent); len(c.parents) > maxParents {
			return c, fmt.Errorf("a commit with more than %d parents", maxParents)
		}
	}
	for ; len(line) > 0; line, rest = cutLine(rest) {
		if who, ok := bytes.CutPrefix(line, []byte("committer ")); ok {
			c.time = timeOf(who)
			break
		}
	}
	return c, nil
}

// timeOf returns the seconds in "NAME <MAIL> SECONDS ZONE", 0 if there are none: old histories have odd lines.
func timeOf(who []byte) int64 {
	after := who[bytes.LastIndexByte(who, '>')+1:]
	fields := bytes.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func cutLine(data []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(data, []byte("\n"))
	return line, rest
}

func idAfter(line []byte, key string) (ID, bool) {
	text, ok := bytes.CutPrefix(line, []byte(key))
	if !ok {
		return ID{}, false
	}
	return ParseID(string(text))
}

// parseTag returns the object that an annotated tag points at.
func parseTag(data []byte) (target ID, of Type, err error) {
	line, rest := cutLine(data)
	target, ok := idAfter(line, "object ")
	line, _ = cutLine(rest)
	name, named := bytes.CutPrefix(line, []byte("type "))
	if of = typeNamed(string(name)); !ok || !named || of == 0 {
		return target, of, errors.New("a tag without an object")
	}
	return target, of, nil
}

// A treeEntry is a file, directory or submodule of a tree.
type treeEntry struct {
	name []byte
	id   ID
	kind Type // Commit for a submodule
}

// eachEntry calls visit for the entries of a tree, and refuses names that a checkout must not write.
func eachEntry(data []byte, visit func(treeEntry) error) error {
	for len(data) > 0 {
		head, rest, ok := bytes.Cut(data, []byte{0})
		mode, name, spaced := bytes.Cut(head, []byte(" "))
		if !ok || !spaced || len(rest) < len(ID{}) {
			return errors.New("a tree that is cut short")
		}
		e := treeEntry{name: name, id: ID(rest[:len(ID{})])}
		data = rest[len(ID{}):]
		switch strings.TrimLeft(string(mode), "0") {
		case "40000":
			e.kind = Tree
		case "100644", "100664", "100755", "120000":
			e.kind = Blob
		case "160000":
			e.kind = Commit
		default:
			return fmt.Errorf("a tree with an entry of mode %.20q", mode)
		}
		if !safeName(name) {
			return fmt.Errorf("a tree with an entry of the name %.60q, which a checkout must not write", name)
		}
		if err := visit(e); err != nil {
			return err
		}
	}
	return nil
}

func safeName(name []byte) bool {
	const longest = 4096
	if len(name) == 0 || len(name) > longest || bytes.IndexByte(name, '/') >= 0 {
		return false
	}
	switch strings.ToLower(string(name)) {
	case ".", "..", ".git", "git~1":
		return false
	}
	return true
}

// A MissingError means that a pack lacks an object that its commits need.
type MissingError struct{ ID ID }

// Error names the object.
func (e *MissingError) Error() string { return "object " + e.ID.String() + " is missing" }
