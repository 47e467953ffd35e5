package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// ago makes every file in a cache as old as that.
func ago(t testing.TB, dir string, age time.Duration) {
	t.Helper()
	then := time.Now().Add(-age)
	blobs, parts := entries(t, dir)
	for _, path := range append(blobs, parts...) {
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
}

func blob(t testing.TB, c *cache.Cache, seed int64, n int) digest.Digest {
	t.Helper()
	data := bundletest.Random(seed, n)
	if err := bundletest.Put(t.Context(), c, data); err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(data)
}

func gc(t testing.TB, dir string, o cache.GCOptions) cache.GCResult {
	t.Helper()
	r, err := cache.At(dir).GC(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func there(t testing.TB, c *cache.Cache, d digest.Digest) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(cache.DirOf(c), "sha256", d.Encoded()[:2], d.Encoded()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestGCSparesWhatRuns removes nothing that a cache which is open was asked for or was given, whenever that began.
func TestGCSparesWhatRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := bundletest.OpenCache(t, dir)
	asked, idle := blob(t, before, 1, 1000), blob(t, before, 2, 1000)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, time.Hour)
	run := bundletest.OpenCache(t, dir)
	if _, ok, err := run.Stat(t.Context(), asked); !ok || err != nil {
		t.Fatal(ok, err)
	}
	fresh := blob(t, run, 3, 1000)
	w, _ := begin(t, run, digest.FromString("unfinished").String())
	write(t, w, bundletest.Random(4, frameSize+1))
	nothing := int64(0)
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing, DryRun: true}); r.Removed != 1 || !there(t, run, idle) {
		t.Errorf("a dry run: %+v", r)
	}
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Removed != 1 || r.InUse < 2 {
		t.Errorf("got %+v, want one removed", r)
	}
	if there(t, run, idle) || !there(t, run, asked) || !there(t, run, fresh) {
		t.Error("the wrong blob went")
	}
	if _, err := w.Commit(t.Context(), -1, ""); err != nil {
		t.Error(err)
	}
	if err := run.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, time.Second)
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Left != 0 || r.Removed != 3 {
		t.Errorf("after the run: %+v", r)
	}
}

// TestGCOrder removes what was not used for longest, and keeps what it is told to.
func TestGCOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	var all []digest.Digest
	for i := range 6 {
		all = append(all, blob(t, c, int64(i), 8000)) // two blocks each
	}
	for i, d := range all {
		then := time.Now().Add(-time.Duration(10-i) * 24 * time.Hour)
		if err := os.Chtimes(filepath.Join(cache.DirOf(c), "sha256", d.Encoded()[:2], d.Encoded()), then,
			then); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	age := 9*24*time.Hour + time.Hour
	var gone []digest.Digest
	removed := func(f cache.File) { gone = append(gone, f.Digest) }
	gc(t, dir, cache.GCOptions{OlderThan: &age, Removed: removed})
	if len(gone) != 1 || gone[0] != all[0] {
		t.Errorf("by age: %v", gone)
	}
	gone = nil
	most := int64(2 * 8192)
	r := gc(t, dir, cache.GCOptions{
		MaxSize: &most, Removed: removed,
		Keep: func(d digest.Digest) bool { return d == all[2] },
	})
	if len(gone) != 3 || gone[0] != all[1] || gone[1] != all[3] || gone[2] != all[4] || r.Kept != 2 {
		t.Errorf("by size: %v, %+v", gone, r)
	}
}

// TestGCBesideBuilds runs builds and gcs of one cache at once: no build misses a blob that the cache reported as
// present. The unused blobs that a gc finds depend on timing, so every round ends with a gc alone.
func TestGCBesideBuilds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	contents := make([][]byte, 20)
	for i := range contents {
		contents[i] = bundletest.Random(int64(i), 100+i*9000)
	}
	nothing := int64(0)
	for range 8 {
		var builds, gcs sync.WaitGroup
		var built atomic.Bool
		for range 4 {
			builds.Go(func() {
				if err := pretendBuild(t.Context(), dir, contents); err != nil {
					t.Error(err)
				}
			})
		}
		for range 2 {
			gcs.Go(func() {
				for !built.Load() {
					if _, err := cache.At(dir).GC(t.Context(), cache.GCOptions{MaxSize: &nothing}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		builds.Wait()
		built.Store(true)
		gcs.Wait()
		ago(t, dir, time.Second)
		if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Left != 0 || r.InUse != 0 {
			t.Fatalf("after the builds: %+v", r)
		}
	}
}

// pretendBuild asks for blobs, brings those that are not there, and reads all of them afterwards.
func pretendBuild(ctx context.Context, dir string, contents [][]byte) error {
	c, err := cache.Open(dir, bundle.LevelFast)
	if err != nil {
		return err
	}
	for _, data := range contents {
		_, ok, err := c.Stat(ctx, digest.FromBytes(data))
		if err == nil && !ok {
			err = bundletest.Put(ctx, c, data)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
	}
	for i, data := range contents {
		r, err := c.Open(ctx, digest.FromBytes(data))
		if err != nil {
			return errors.Join(fmt.Errorf("blob %d: %w", i, err), c.Close())
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, data) {
			return errors.Join(fmt.Errorf("blob %d: read %d bytes", i, len(got)), err, c.Close())
		}
	}
	return c.Close()
}

// startAgain starts a test once more, in a process of its own with one more variable, which it waits to be killed in.
func startAgain(t *testing.T, variable string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// untilKilled waits in a process that startAgain started, and not longer than the test that did.
func untilKilled(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Fatal(err)
	}
}

// TestGCAfterKill takes what a killed process says that it uses for what it is.
func TestGCAfterKill(t *testing.T) {
	if dir := os.Getenv("KKBUNDLE_TEST_RUNNING"); dir != "" {
		c := bundletest.OpenCache(t, dir)
		if err := bundletest.Put(t.Context(), c, bundletest.Text(1, 1000)); err != nil {
			t.Fatal(err)
		}
		untilKilled(t)
		if err := c.Close(); err != nil { // until here it is in use
			t.Fatal(err)
		}
		return
	}
	dir := t.TempDir()
	cmd := startAgain(t, "KKBUNDLE_TEST_RUNNING="+dir)
	for blobs := 0; blobs == 0; {
		all, _ := entries(t, dir)
		blobs = len(all)
		time.Sleep(time.Millisecond)
	}
	nothing := int64(0)
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Removed != 0 || r.InUse != 1 {
		t.Errorf("while it runs: %+v", r)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it ended by itself")
	}
	ago(t, dir, time.Second)
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Removed != 1 || r.Left != 0 {
		t.Errorf("after it was killed: %+v", r)
	}
}

// TestDropDamaged must not remove what another run put in a damaged entry's place.
func TestDropDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	d := blob(t, c, 1, 1000)
	path := damageEntry(t, c, d)
	_, err := cached(t, c, d)
	var damaged *cache.EntryError
	if !errors.As(err, &damaged) {
		t.Fatalf("got %v", err)
	}
	if err := os.Rename(path, path+".old"); err != nil { // keeps the inode from being used again
		t.Fatal(err)
	}
	blob(t, c, 1, 1000)
	if err := c.DropDamaged(damaged); err != nil || !there(t, c, d) {
		t.Errorf("the new one is gone: %v", err)
	}
	damageEntry(t, c, d)
	if _, err = cached(t, c, d); !errors.As(err, &damaged) {
		t.Fatalf("got %v", err)
	}
	if err := c.DropDamaged(damaged); err != nil || there(t, c, d) {
		t.Errorf("the damaged one is still there: %v", err)
	}
}

// TestCacheStrangeThings has in an entry's place what is no file: it counts as damaged, and gives way.
func TestCacheStrangeThings(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(path string) error{
		"directory": func(p string) error { return os.MkdirAll(filepath.Join(p, "sub"), 0o700) },
		"pipe":      func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"loop":      func(p string) error { return os.Symlink(p, p) },
	} {
		dir := t.TempDir()
		c := bundletest.OpenCache(t, dir)
		d := blob(t, c, 1, 1000)
		path := filepath.Join(cache.DirOf(c), "sha256", d.Encoded()[:2], d.Encoded())
		if err := errors.Join(os.Remove(path), make(path)); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := c.Stat(t.Context(), d); ok || err != nil {
			t.Errorf("%s: stat says %v, %v", name, ok, err)
		}
		var damaged *cache.EntryError
		if _, err := c.Open(t.Context(), d); !errors.As(err, &damaged) {
			t.Errorf("%s: open says %v", name, err)
		}
		blob(t, c, 1, 1000)
		if data, err := cached(t, c, d); err != nil || len(data) != 1000 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}

// TestVerifyCache finds every kind of damage, drops it, and says so.
func TestVerifyCache(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	good, flipped, cut := blob(t, c, 1, 200_000), blob(t, c, 2, 200_000), blob(t, c, 3, 1000)
	damageEntry(t, c, flipped)
	if err := os.Truncate(filepath.Join(cache.DirOf(c), "sha256", cut.Encoded()[:2], cut.Encoded()), 9); err != nil {
		t.Fatal(err)
	}
	for _, o := range []cache.VerifyOptions{{DryRun: true}, {DryRun: true, Deep: true}, {}} {
		r, err := cache.At(dir).Verify(t.Context(), o)
		if err != nil || r.Checked != 3 || len(r.Damaged) != 2 {
			t.Errorf("%+v: %+v, %v", o, r, err)
		}
	}
	if !there(t, c, good) || there(t, c, flipped) || there(t, c, cut) {
		t.Error("the wrong blobs were dropped")
	}
	// A blob that is whole and another one: only the digest tells.
	path := filepath.Join(cache.DirOf(c), "sha256", cut.Encoded()[:2])
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Link(filepath.Join(cache.DirOf(c), "sha256", good.Encoded()[:2],
		good.Encoded()), filepath.Join(path, cut.Encoded()))); err != nil {
		t.Fatal(err)
	}
	for deep, want := range map[bool]int{false: 0, true: 1} {
		r, err := cache.At(dir).Verify(t.Context(), cache.VerifyOptions{DryRun: true, Deep: deep})
		if err != nil || len(r.Damaged) != want {
			t.Errorf("deep %v: %+v, %v", deep, r, err)
		}
	}
}

// TestGCRemovesEntriesOfTheFuture: a build ran while the clock was a year ahead. What such an entry's time says is
// not true: the entry is used from now on if a build asks for it, and otherwise it ages.
func TestGCRemovesEntriesOfTheFuture(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	nothing, half := int64(0), year/2
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	asked, idle := blob(t, c, 1, 1000), blob(t, c, 2, 1000)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, -year)
	run := bundletest.OpenCache(t, dir)
	if _, ok, err := run.Stat(t.Context(), asked); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Removed != 1 || there(t, run, idle) ||
		!there(t, run, asked) {
		t.Errorf("beside a build: %+v", r)
	}
	if err := run.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, -year)
	if r := gc(t, dir, cache.GCOptions{OlderThan: &half, DryRun: true}); r.Removed != 0 || r.Kept != 1 {
		t.Errorf("a dry run: %+v", r)
	}
	large := int64(1 << 30)
	for name, o := range map[string]cache.GCOptions{"by age": {OlderThan: &half}, "by size": {MaxSize: &large}} {
		ago(t, dir, -year)
		if r := gc(t, dir, o); r.Removed != 0 || r.Kept != 1 {
			t.Errorf("%s: %+v", name, r)
		}
		for f, err := range cache.At(dir).Files(t.Context()) {
			if err != nil || time.Until(f.Used) > time.Minute {
				t.Errorf("%s: the last use is still %v, %v", name, f.Used, err)
			}
		}
	}
}

// TestGCBesideABuildOfTheFuture: a build began while the clock was ahead, and it was set back. GC keeps everything
// until its end.
func TestGCBesideABuildOfTheFuture(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := bundletest.OpenCache(t, dir)
	d := blob(t, run, 1, 1000)
	runs, err := filepath.Glob(filepath.Join(dir, "run", "*"))
	if err != nil || len(runs) != 1 {
		t.Fatal(runs, err)
	}
	ahead := time.Now().Add(24 * time.Hour)
	if err := os.Chtimes(runs[0], ahead, ahead); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, time.Hour)
	nothing := int64(0)
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Removed != 0 || !there(t, run, d) {
		t.Errorf("beside the build: %+v", r)
	}
	if err := run.Close(); err != nil {
		t.Fatal(err)
	}
	if r := gc(t, dir, cache.GCOptions{MaxSize: &nothing}); r.Removed != 1 {
		t.Errorf("after the build: %+v", r)
	}
}

// TestGCCountsWhatItRemoves has a file removed by somebody else between its listing and its turn.
func TestGCCountsWhatItRemoves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := bundletest.OpenCache(t, dir)
	blob(t, c, 1, 1000)
	blob(t, c, 2, 1000)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ago(t, dir, time.Hour)
	nothing, freed := int64(0), int64(0)
	r := gc(t, dir, cache.GCOptions{MaxSize: &nothing, Removed: func(f cache.File) {
		freed += f.Disk
		blobs, _ := entries(t, dir)
		for _, path := range blobs {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}})
	if r.Removed != 1 || r.Freed != freed || r.Kept != 0 || r.Left != 0 || r.InUse != 0 {
		t.Errorf("%+v; one file of %d bytes was removed", r, freed)
	}
}
