package transfer_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/transfer"
)

// Copy one item of a bundle to another bundle, as `kkbundle copy --item` does.
func ExampleCopy() {
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
	x := bundle.Index{Name: "shop", Version: "1.0.0", Platforms: []string{"linux/amd64"}}
	for _, name := range []string{"notes.txt", "plan.txt"} {
		it, err := bundle.Document{Kind: bundle.KindFile, Ref: "local/" + name, Data: []byte(name)}.Put(ctx, cache)
		if err != nil {
			log.Fatal(err)
		}
		x.Items = append(x.Items, it)
	}
	whole := filepath.Join(dir, "shop.kkb")
	if _, err := bundle.Create(ctx, whole, cache, x, bundle.WriteOptions{}); err != nil {
		log.Fatal(err)
	}
	r, err := bundle.Open(whole)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()

	part, err := transfer.Copy(ctx, []bundle.From{{Name: whole, Reader: r}}, transfer.CopyOptions{
		Selection: transfer.Selection{Items: []string{"*notes*"}},
		Output:    filepath.Join(dir, "part.kkb"),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, it := range part.Index.Items {
		fmt.Println(it)
	}
	// Output:
	// file local/notes.txt
}
