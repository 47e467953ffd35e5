package git_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/git"
	"github.com/kkbundle/kkbundle/git/gittest"
)

// received is a pack that git makes of a repository's refs.
func received(t testing.TB, r *gittest.Repo, args ...string) *git.Received {
	t.Helper()
	return gittest.Receive(t, strings.NewReader(r.Packed(args...)))
}

// bare makes a repository of a pack.
func bare(t testing.TB, p gittest.Packed) string {
	t.Helper()
	dir := t.TempDir()
	gittest.Run(t, dir, "init", "-q", "--bare", "-b", "main")
	for name, data := range map[string][]byte{"pack": p.Pack, "idx": p.Index} {
		if err := os.WriteFile(filepath.Join(dir, "objects/pack/pack-"+strings.Repeat("a", 40)+"."+name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.Summary.Shallow) > 0 {
		var text strings.Builder
		for _, id := range p.Summary.Shallow {
			text.WriteString(id.String() + "\n")
		}
		if err := os.WriteFile(filepath.Join(dir, "shallow"), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range p.Want.Refs {
		gittest.Run(t, dir, "update-ref", r.Name, r.ID.String())
	}
	return dir
}

// TestCanonical: packs of other bytes with the same history become the same pack, which git takes, with the index that
// git makes of it.
func TestCanonical(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	want := git.Wanted{Refs: r.Refs(), Head: "refs/heads/main"}
	first := gittest.Canonical(t, received(t, r), want)
	for _, args := range [][]string{
		{"--no-reuse-delta", "--window=0"},
		{"--no-reuse-delta", "--delta-base-offset", "--depth=200", "--window=50"},
		{"--no-reuse-delta", "--depth=3", "--compression=0"},
	} {
		if other := gittest.Canonical(t, received(t, r, args...), want); !bytes.Equal(first.Pack, other.Pack) ||
			!bytes.Equal(first.Index, other.Index) {
			t.Errorf("%v: another pack", args)
		}
	}
	dir := bare(t, first)
	gittest.Run(t, dir, "fsck", "--full", "--strict")
	objects := func(dir string) []string {
		return slices.Sorted(strings.Lines(gittest.Run(t, dir, "rev-list", "--all", "--objects", "--no-object-names")))
	}
	if got, want := objects(dir), objects(r.Dir); !slices.Equal(got, want) {
		t.Errorf("%d objects, want %d", len(got), len(want))
	}
	out := filepath.Join(t.TempDir(), "x.idx")
	if text, err := gittest.TryWith(t, dir, first.Pack, "index-pack", "--stdin", "-o", out, filepath.Join(dir, "x.pack")); err != nil {
		t.Fatal(err, text)
	}
	if theirs, err := os.ReadFile(out); err != nil || !bytes.Equal(theirs, first.Index) {
		t.Errorf("git makes another index: %v", err)
	}
	if len(first.Pack) > 3*len(r.Packed()) && len(first.Pack) > 400<<10 {
		t.Errorf("the pack has %d bytes, git's has %d", len(first.Pack), len(r.Packed()))
	}
}

// TestDepth: a pack of the newest commits only, with those whose parents are missing.
func TestDepth(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	id, _ := git.ParseID(r.Git("rev-parse", "main"))
	p := gittest.Canonical(t, received(t, r), git.Wanted{
		Refs: []git.Ref{{Name: "refs/heads/main", ID: id}}, Head: "refs/heads/main", Depth: 2,
	})
	dir := bare(t, p)
	gittest.Run(t, dir, "fsck", "--full", "--strict")
	if got, want := gittest.Run(t, dir, "rev-list", "--count", "main"), "2\n"; got != want {
		t.Errorf("%q commits, want %q", got, want)
	}
	if len(p.Summary.Shallow) != 1 || p.Summary.Commits != 2 {
		t.Errorf("%+v", p.Summary)
	}
}

// TestElsewhere: submodules and pointers of LFS are named.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	r := gittest.New(t)
	r.Write("big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
	r.Commit("lfs")
	head := r.Git("rev-parse", "HEAD")
	r.Git("update-index", "--add", "--cacheinfo", "160000,"+head+",vendor/lib")
	r.Git("commit", "-q", "-m", "submodule")
	p := gittest.Canonical(t, received(t, r), git.Wanted{Refs: r.Refs()})
	if p.Summary.LFS != 1 || !slices.Equal(p.Summary.Submodules, []string{"vendor/lib"}) {
		t.Errorf("%+v", p.Summary)
	}
}

// TestMissing: a pack that lacks what its commits need is refused.
func TestMissing(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	out, err := gittest.TryWith(t, r.Dir, nil, "pack-objects", "-q", "--all", "--stdout", "--filter=blob:none")
	if err != nil {
		t.Fatal(err, out)
	}
	p, err := git.Receive(t.Context(), strings.NewReader(out), gittest.Spool(t))
	if err != nil {
		t.Fatal(err)
	}
	want := git.Wanted{Refs: r.Refs()}
	_, _, err = p.Canonical(t.Context(), &want, io.Discard)
	var missing *git.MissingError
	if !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
}

// TestUnsafeNames: names that a checkout must not write are refused.
func TestUnsafeNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{".git", ".GIT", "..", "git~1"} {
		r := gittest.New(t)
		blob, err := gittest.TryWith(t, r.Dir, []byte("x"), "hash-object", "-w", "--stdin")
		if err != nil {
			t.Fatal(err)
		}
		tree, err := gittest.TryWith(t, r.Dir, []byte("100644 blob "+strings.TrimSpace(blob)+"\t"+name+"\n"), "mktree")
		if err != nil {
			t.Fatal(err, tree)
		}
		r.Git("update-ref", "refs/heads/main", r.Git("commit-tree", "-m", "x", strings.TrimSpace(tree)))
		want := git.Wanted{Refs: r.Refs()}
		_, _, err = received(t, r).Canonical(t.Context(), &want, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "must not write") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDamagedPack: no damaged pack is received.
func TestDamagedPack(t *testing.T) {
	t.Parallel()
	whole := gittest.Sample(t).Packed()
	damaged := map[string]string{
		"nothing": "", "cut": whole[:len(whole)/2], "without its checksum": whole[:len(whole)-20],
		"something behind": whole + "x", "another version": whole[:7] + "\x04" + whole[8:],
		"more objects": whole[:8] + "\x7f" + whole[9:], "no pack": "<html>" + whole,
	}
	for _, at := range []int{12, 13, 200, len(whole) / 3, len(whole) - 30, len(whole) - 1} {
		damaged["bit "+whole[at:at+1]] = whole[:at] + string(whole[at]^0x10) + whole[at+1:]
	}
	for name, data := range damaged {
		if _, err := git.Receive(t.Context(), strings.NewReader(data), gittest.Spool(t)); err == nil {
			t.Errorf("%s: received", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := git.Receive(ctx, strings.NewReader(whole), gittest.Spool(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestSelect: what is sent to somebody who has an older commit is small, and complete.
func TestSelect(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	p := gittest.Canonical(t, received(t, r), git.Wanted{Refs: r.Refs(), Head: "refs/heads/main"})
	repo := p.Open(t)
	tip, _ := git.ParseID(r.Git("rev-parse", "main"))
	old, _ := git.ParseID(r.Git("rev-parse", "main~3"))
	s, err := repo.Select(t.Context(), git.Request{Wants: []git.ID{tip}, Haves: []git.ID{old, {1}}})
	if err != nil {
		t.Fatal(err)
	}
	var pack bytes.Buffer
	if err := repo.WritePack(t.Context(), &pack, s); err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "c")
	gittest.Run(t, r.Dir, "clone", "-q", "--bare", "--single-branch", r.Dir, clone)
	gittest.Run(t, clone, "update-ref", "refs/heads/main", old.String())
	gittest.Run(t, clone, "update-ref", "-d", "refs/heads/release")
	gittest.Run(t, clone, "gc", "-q", "--prune=now")
	if out, err := gittest.TryWith(t, clone, pack.Bytes(), "unpack-objects", "-q", "--strict"); err != nil {
		t.Fatal(err, out)
	}
	gittest.Run(t, clone, "update-ref", "refs/heads/main", tip.String())
	gittest.Run(t, clone, "fsck", "--full", "--strict", "--connectivity-only")
	if pack.Len() > len(p.Pack)/4 {
		t.Errorf("%d bytes of %d are sent", pack.Len(), len(p.Pack))
	}
	if ok, err := repo.Reaches(t.Context(), tip, old); err != nil || !ok {
		t.Errorf("Reaches: %v %v", ok, err)
	}
	if ok, err := repo.Reaches(t.Context(), old, tip); err != nil || ok {
		t.Errorf("Reaches in reverse: %v %v", ok, err)
	}
}

// TestGolden: the digests of canonical packs are in locks, so their bytes must not change.
func TestGolden(t *testing.T) {
	t.Parallel()
	r := gittest.Sample(t)
	p := gittest.Canonical(t, received(t, r), git.Wanted{Refs: r.Refs(), Head: "refs/heads/main"})
	const want = "a2be8ceb9670e7ef4b01b3059ffffcb2ddebcc95c816cb75318a85c8b48c6af0"
	if got := fmt.Sprintf("%x", sha256.Sum256(p.Pack)); got != want {
		t.Errorf("the pack has the digest %s, want %s", got, want)
	}
}

// FuzzReceive reads any bytes as a pack, and what it takes as a repository.
func FuzzReceive(f *testing.F) {
	r := gittest.New(f)
	for i := range 3 {
		r.Write("a", strings.Repeat("some text\n", 30)+strings.Repeat("x", i))
		r.Commit("c")
	}
	f.Add([]byte(r.Packed()))
	f.Add([]byte(r.Packed("--delta-base-offset")))
	id, _ := git.ParseID(r.Git("rev-parse", "HEAD"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := git.Receive(t.Context(), bytes.NewReader(data), gittest.Spool(t))
		if err != nil {
			return
		}
		want := git.Wanted{Refs: []git.Ref{{Name: "refs/heads/main", ID: id}}}
		_, _, _ = p.Canonical(t.Context(), &want, io.Discard)
	})
}

// FuzzRepository reads any bytes as a pack, index and document.
func FuzzRepository(f *testing.F) {
	r := gittest.New(f)
	for i := range 3 {
		r.Write("a", strings.Repeat("some text\n", 30)+strings.Repeat("x", i))
		r.Commit("c")
	}
	p := gittest.Canonical(f, received(f, r), git.Wanted{Refs: r.Refs()})
	f.Add(p.Document, p.Pack, p.Index)
	id, _ := git.ParseID(r.Git("rev-parse", "HEAD"))
	f.Fuzz(func(t *testing.T, document, pack, index []byte) {
		repo, err := git.Open(document, bytes.NewReader(pack), int64(len(pack)), bytes.NewReader(index), int64(len(index)))
		if err != nil {
			return
		}
		for _, q := range []git.Request{{}, {Wants: []git.ID{id}, Depth: 1}, {Wants: []git.ID{id}, Haves: []git.ID{id}}} {
			if s, err := repo.Select(t.Context(), q); err == nil {
				_ = repo.WritePack(t.Context(), io.Discard, s)
			}
		}
		all := git.Walk{Enter: func(string) bool { return true }, Takes: func([]string) bool { return true }, Wants: func(string) bool { return true }}
		_ = repo.EachFile(t.Context(), all, func(f git.TreeFile) error {
			_, _, err := repo.ReadFile(f, 1<<20)
			return err
		})
	})
}

// FuzzDiff makes deltas of any two texts, and applies them.
func FuzzDiff(f *testing.F) {
	f.Add([]byte("a text that is the base, of some length"), []byte("another text that is the base, of some length"))
	f.Fuzz(func(t *testing.T, base, target []byte) {
		got, err := git.Patch(base, git.Diff(base, target))
		if err != nil || !bytes.Equal(got, target) {
			t.Fatalf("%v", err)
		}
	})
}

// TestDiff: deltas of long texts, with copies of each size and from far away.
func TestDiff(t *testing.T) {
	t.Parallel()
	base := make([]byte, 1<<20)
	for i := range base {
		base[i] = byte(i * i >> 7)
	}
	target := slices.Concat(base[300:70000], []byte("new"), base[:1<<16], base[900000:], base[:200], bytes.Repeat([]byte("x"), 1000))
	got, err := git.Patch(base, git.Diff(base, target))
	if err != nil || !bytes.Equal(got, target) {
		t.Errorf("%v, %d bytes of %d", err, len(got), len(target))
	}
}

// TestBounds: the canonical pack, the work with deltas and the parents of commits are bounded.
func TestBounds(t *testing.T) {
	t.Parallel()
	if git.PackFrom(git.MaxPack) == nil || git.PackFrom(git.MaxPack/2) != nil {
		t.Error("the size of a canonical pack is not bounded")
	}
	if !git.Large() {
		t.Error("a large object is not remembered")
	}
	r := gittest.New(t)
	r.Write("a", "b")
	parent, tree := r.Commit("c"), r.Git("rev-parse", "HEAD^{tree}")
	commit := "tree " + tree + "\n" + strings.Repeat("parent "+parent+"\n", 4000) + "author A <a> 1 +0000\ncommitter A <a> 1 +0000\n\nx\n"
	var id string
	for i := range 2 {
		out, err := gittest.TryWith(t, r.Dir, []byte(commit+strings.Repeat("y", i)), "hash-object", "-t", "commit", "-w", "--stdin", "--literally")
		if err != nil {
			t.Fatal(err, out)
		}
		id = strings.TrimSpace(out)
		r.Git("update-ref", fmt.Sprintf("refs/heads/%d", i), id)
	}
	p := received(t, r)
	want := git.Wanted{Refs: r.Refs()}
	if _, _, err := p.Canonical(t.Context(), &want, io.Discard); err == nil || !strings.Contains(err.Error(), "parents") {
		t.Errorf("8000 parents of 2 commits: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p, err := git.Receive(ctx, strings.NewReader(r.Packed()), gittest.Spool(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Work(16*git.MaxPack + 1); err == nil {
		t.Error("the work with deltas is not bounded")
	}
	cancel()
	if err := p.Work(-git.MaxPack); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestHostileDocument: a document that would make a push delete branches or change other refs is refused.
func TestHostileDocument(t *testing.T) {
	t.Parallel()
	const id = "1111111111111111111111111111111111111111"
	for _, c := range []struct {
		name, id string
		good     bool
	}{
		{"refs/heads/main", id, true},
		{"refs/heads/main", strings.Repeat("0", 40), false},
		{"refs/meta/config", id, false},
	} {
		document := fmt.Sprintf(`{"objects": 1, "refs": [{"name": %q, "id": %q}]}`, c.name, c.id)
		if _, _, err := git.ParseDocument([]byte(document)); (err == nil) != c.good {
			t.Errorf("%s %s: %v", c.name, c.id, err)
		}
	}
}
