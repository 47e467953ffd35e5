package builder

import (
	"errors"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestFirstUseIsSaid: files that are downloaded before there is a lock are counted, and do not fill the disk.
func TestFirstUseIsSaid(t *testing.T) {
	t.Parallel()
	var notes []string
	s := newSession(&Project{Manifest: &manifest.Bundle{}}, Options{
		Cache: t.TempDir(), Level: bundle.LevelFast, Events: func(e Event) { notes = append(notes, e.Text) },
	})
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cache.Close() })
	if err := s.announceFirstUse(fetch.FirstUse{Sizes: []int64{3 << 20, 1 << 20}, Unknown: 1}); err != nil {
		t.Error(err)
	}
	const want = "3 files without a checksum, to be downloaded first for the digests: 4.0 MiB, 1 file of unknown size; "
	if len(notes) != 1 || !strings.HasPrefix(notes[0], want) || !strings.Contains(notes[0], " at most for the cache in ") {
		t.Errorf("notes %q", notes)
	}
	if err := s.announceFirstUse(fetch.FirstUse{Sizes: []int64{1 << 60}}); err == nil ||
		!strings.Contains(err.Error(), "no space for the cache") {
		t.Errorf("more than the disk has: %v", err)
	}
}

// TestGitSearchRoom: a search without room says how much it needs, before it fills the disk.
func TestGitSearchRoom(t *testing.T) {
	t.Parallel()
	f := &finder{session: newSession(&Project{}, Options{Cache: t.TempDir()})}
	f.cacheDir = t.TempDir()
	parts := bundle.GitParts{Pack: ocispec.Descriptor{Size: 1 << 10}, Index: ocispec.Descriptor{Size: 1}}
	if err := f.roomFor(parts); err != nil {
		t.Error(err)
	}
	parts.Pack.Size = 1 << 60
	if err := f.roomFor(parts); !errors.As(err, new(roomError)) || !strings.Contains(err.Error(), "no space for the search in a Git repository in "+f.cacheDir) {
		t.Errorf("got %v", err)
	}
}
