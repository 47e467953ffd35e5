package sbom_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/sbom"
)

// Write a CycloneDX bill of materials for one file, whose source the lock says.
func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cache, err := cache.Open(dir, bundle.LevelDefault)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	item, err := bundle.Document{
		Kind: bundle.KindFile, Ref: "https://files.example/tool",
		Data: []byte("#!/bin/sh\n"),
	}.Put(ctx, cache)
	if err != nil {
		log.Fatal(err)
	}

	data, err := sbom.New(ctx, bundle.Index{Name: "shop", Version: "1.0.0", Items: []bundle.Item{item}},
		&manifest.Lock{}, cache.ReadBlob)
	if err != nil {
		log.Fatal(err)
	}
	var bill struct {
		BomFormat  string
		Components []struct{ Type, Name string }
	}
	if err := json.Unmarshal(data, &bill); err != nil {
		log.Fatal(err)
	}
	fmt.Println(bill.BomFormat, bill.Components)
	// Output:
	// CycloneDX [{file https://files.example/tool}]
}
