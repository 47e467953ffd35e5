package bundle_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// Write a bundle with one document, read it and check every byte.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	cache, err := cache.Open(filepath.Join(dir, "cache"), bundle.LevelDefault)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	item, err := bundle.Document{Kind: bundle.KindManifest, Ref: "notes.txt", Data: []byte("Ring the bell.\n")}.Put(ctx,
		cache)
	if err != nil {
		log.Fatal(err)
	}
	file := filepath.Join(dir, "shop.kkb")
	x := bundle.Index{Name: "shop", Version: "1.0.0", Platforms: []string{"linux/amd64"}, Items: []bundle.Item{item}}
	if _, err := bundle.Create(ctx, file, cache, x, bundle.WriteOptions{}); err != nil {
		log.Fatal(err)
	}

	r, err := bundle.Open(file)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	for _, it := range r.Index().Items {
		layer, err := r.ContentOf(ctx, it)
		if err != nil {
			log.Fatal(err)
		}
		content, err := r.Blob(ctx, layer.Digest, 0)
		if err != nil {
			log.Fatal(err)
		}
		data, err := io.ReadAll(content)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s", it, data)
		_ = content.Close()
	}
	report, err := r.Verify(ctx, bundle.VerifyOptions{})
	fmt.Println(report.Blobs, "blobs", err)
	// Output:
	// manifest notes.txt: Ring the bell.
	// 3 blobs <nil>
}
