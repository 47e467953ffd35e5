package cache_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// TestCacheOfOthersIsRefused: whoever writes in the cache's directory could put links into it, and blobs.
func TestCacheOfOthersIsRefused(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, dir string) error{
		"writable by a group": func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o775) },
		"writable by all":     func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
		"somebody's": func(t *testing.T, dir string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			return os.Chown(dir, 65534, 65534)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := bundletest.OpenCache(t, dir)
			d := blob(t, c, 1, 1000)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			damageEntry(t, c, d)
			if err := prepare(t, dir); err != nil {
				t.Fatal(err)
			}
			for use, run := range map[string]func() error{
				"build": func() error { _, err := cache.Open(dir, bundle.LevelFast); return err },
				"gc": func() error {
					_, err := cache.At(dir).GC(t.Context(), cache.GCOptions{MaxSize: new(int64)})
					return err
				},
				"verify": func() error {
					_, err := cache.At(dir).Verify(t.Context(), cache.VerifyOptions{})
					return err
				},
			} {
				err := run()
				var hinted interface{ Hint() string }
				if !errors.As(err, &hinted) || !strings.Contains(err.Error(), dir) ||
					!strings.Contains(hinted.Hint(), "--cache") {
					t.Errorf("%s: error %v", use, err)
				}
			}
			if !there(t, c, d) {
				t.Error("a file of the foreign cache was removed")
			}
		})
	}
}

// TestCacheWritesThroughNoLink has a link in place of each file and directory of a cache.
func TestCacheWritesThroughNoLink(t *testing.T) {
	t.Parallel()
	data := bundletest.Random(1, 2*frameSize+1)
	d := digest.FromBytes(data)
	fresh := func(t *testing.T) (dir, encoder string) {
		t.Helper()
		dir = t.TempDir()
		c := bundletest.OpenCache(t, dir)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		return dir, cache.DirOf(c)
	}
	for _, name := range []string{"lock", "run", "encoder", "part", "sha256", "shard", "part file", "entry"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, encoder := fresh(t)
			foreign := t.TempDir()
			file := filepath.Join(foreign, "file")
			if err := os.WriteFile(file, []byte("of another program"), 0o600); err != nil {
				t.Fatal(err)
			}
			ago := func(path string) fs.FileInfo {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				return info
			}
			before := ago(file)
			shard := filepath.Join(encoder, "sha256", d.Encoded()[:2])
			place, to := map[string]string{
				"lock": filepath.Join(dir, "lock"), "run": filepath.Join(dir, "run"), "encoder": encoder,
				"part":   filepath.Join(encoder, "part"),
				"sha256": filepath.Join(encoder, "sha256"), "shard": shard,
				"part file": filepath.Join(encoder, "part", d.Encoded()),
				"entry":     filepath.Join(shard, d.Encoded()),
			}[name], foreign
			switch name {
			case "lock", "part file":
				to = file
			case "entry":
				to = file
				if err := os.Mkdir(shard, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.RemoveAll(place), os.Symlink(to, place)); err != nil {
				t.Fatal(err)
			}
			err := use(t.Context(), dir, data)
			if replaced := name == "entry"; (err == nil) != replaced {
				t.Errorf("error %v", err)
			}
			_, gcErr := cache.At(dir).GC(t.Context(), cache.GCOptions{MaxSize: new(int64)})
			t.Log(err, gcErr)
			after := ago(file)
			if entries, _ := os.ReadDir(foreign); len(entries) != 1 || after.Size() != before.Size() ||
				!after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the foreign directory has %v now, and its file %d bytes of %v", entries, after.Size(),
					after.ModTime())
			}
		})
	}
}

// use puts a blob into a cache, and asks for it.
func use(ctx context.Context, dir string, data []byte) (err error) {
	c, err := cache.Open(dir, bundle.LevelFast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	d := digest.FromBytes(data)
	if _, _, err := c.Stat(ctx, d); err != nil {
		return err
	}
	w, _, err := c.Begin(ctx, d.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := w.Write(data); err != nil {
		return err
	}
	_, err = w.Commit(ctx, int64(len(data)), d)
	return err
}
