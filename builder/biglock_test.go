package builder_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
)

// lockOf returns the text of a lock of n images, with the length of real names.
func lockOf(t *testing.T, n int) []byte {
	t.Helper()
	l := manifest.Lock{
		Metadata: manifest.Metadata{Name: "big", Version: "1.0.0"},
		Manifest: digest.FromString("x").String(),
	}
	for i := range n {
		name := fmt.Sprintf("registry.example.com/team/product/component-%06d", i)
		l.Items = append(l.Items, manifest.Pin{
			Kind: manifest.ItemImage, Ref: name + ":v1.30.2-rev.4", Name: name, Version: "v1.30.2-rev.4",
			Digest: digest.FromString(name), Size: 4711,
			MediaType: "application/vnd.oci.image.index.v1+json", Platforms: []string{"linux/amd64", "linux/arm64"},
			Verified: manifest.VerifiedUpstream,
		})
	}
	data, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestLockAbove4MiB: what lock writes, every command reads: the lock beside a manifest, the one given to outdated and
// cache gc --keep, and the one in a bundle.
func TestLockAbove4MiB(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a lock of 12,000 items is written and read several times")
	}
	const pins = 12_000
	data := lockOf(t, pins)
	dir := t.TempDir()
	file := filepath.Join(dir, "manifest.yaml")
	for name, text := range map[string][]byte{
		file: []byte(
			"apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: big, version: 1.0.0}\nplatforms: [linux/amd64]\nfiles: [{name: a, url: \"https://a.example/a\"}]\n"),
		builder.LockFile(file): data,
	} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := builder.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.Lock()
	if err != nil || len(l.Items) != pins {
		t.Errorf("beside the manifest: %v", err)
	}
	q, err := builder.NewQuestion(builder.LockFile(file))
	if err != nil || len(q.Pins) != pins {
		t.Errorf("outdated: %v", err)
	}
	cacheDir := filepath.Join(dir, "cache")
	c, err := cache.Open(cacheDir, bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	it, err := bundle.Document{Kind: bundle.KindLock, Ref: bundle.DocumentLock, Data: data}.Put(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "big.kkb")
	x := bundle.Index{Name: "big", Version: "1.0.0", Platforms: []string{"linux/amd64"}, Items: []bundle.Item{it}}
	if _, err := bundle.Create(t.Context(), path, c, x, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if q, err := builder.BundleQuestion(t.Context(), r); err != nil || len(q.Pins) != pins {
		t.Errorf("in a bundle: %v", err)
	}
	keep := func() error {
		_, err := builder.Keeper(context.Background(), cache.At(cacheDir), []string{builder.LockFile(file)}, nil)
		return err
	}
	if err := keep(); err != nil {
		t.Errorf("cache gc --keep: %v", err)
	}
}

// TestLockTooLarge: a lock that could not be read again is not written.
func TestLockTooLarge(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a lock of 70 MB is written")
	}
	l := manifest.Lock{
		Metadata: manifest.Metadata{Name: "big", Version: "1.0.0"},
		Manifest: digest.FromString("x").String(),
	}
	pin := manifest.Pin{
		Kind: manifest.ItemFile, Ref: "https://a.example/" + strings.Repeat("b", 9_000), Name: "b",
		Digest: digest.FromString("x"), Verified: manifest.VerifiedUpstream,
	}
	for range 8_000 {
		l.Items = append(l.Items, pin)
	}
	var large *manifest.TooLargeError
	if data, err := l.Marshal(); !errors.As(err, &large) {
		t.Errorf("%d bytes were written: %v", len(data), err)
	}
}
