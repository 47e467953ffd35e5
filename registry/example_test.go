package registry_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// writeBundle writes a bundle with one file to a directory.
func writeBundle(ctx context.Context, dir string) *bundle.Reader {
	cache, err := cache.Open(filepath.Join(dir, "cache"), bundle.LevelDefault)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	item, err := bundle.Document{
		Kind: bundle.KindFile, Ref: "local/notes.txt",
		Data: []byte("Ring the bell.\n"),
	}.Put(ctx, cache)
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
	return r
}

// Seed a registry from a bundle, as `kkbundle push` does.
func ExamplePush() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	server, err := registrytest.New(registrytest.Options{}) // stands for the site's registry
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	b := writeBundle(ctx, dir)
	defer b.Close()

	sum, err := registry.Push(ctx, b, registry.PushOptions{Registry: server.Host, PlainHTTP: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, it := range sum.Items {
		fmt.Println(it.Kind, it.Ref, it.State)
	}
	// Output:
	// file local/notes.txt pushed
}
