package fetch_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Pin the items of a manifest and bring their bytes into a cache.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("Ring the bell.\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	cache, err := cache.Open(filepath.Join(dir, "cache"), bundle.LevelDefault)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	b := &manifest.Bundle{
		Metadata:  manifest.Metadata{Name: "shop", Version: "1.0.0"},
		Platforms: []scalar.Platform{"linux/amd64"},
		Files:     []manifest.File{{Name: "notes", Path: "notes.txt"}},
	}
	o := fetch.Options{Store: cache, Dir: dir, Platforms: b.Platforms}
	lock, err := fetch.Resolve(ctx, b, o)
	if err != nil {
		log.Fatal(err)
	}
	items, err := fetch.All(ctx, lock, o)
	if err != nil {
		log.Fatal(err)
	}
	for _, it := range items {
		fmt.Println(bundle.Item(it), lock.Items[0].Digest)
	}
	// Output:
	// file local/notes sha256:d9042b0813a6797b349e9a12baf253081aa63d4c73ce64c8287caf44b043dfd8
}
