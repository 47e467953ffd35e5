package builder_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/charts/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, builder.Tasks()) }

// writeProject writes a manifest with one file and one Deployment to a temporary directory.
func writeProject() (dir string) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range map[string]string{
		"manifest.yaml": `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: shop, version: 1.0.0}
platforms: [linux/amd64]
files: [{name: notes, path: notes.txt}]
`,
		"notes.txt": "Ring the bell.\n",
		"images.yaml": `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: shop, version: 1.0.0}
platforms: [linux/amd64]
images: [nginx:1.29]
manifests: [web.yaml]
`,
		"web.yaml": `apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: cache, image: "redis:8.2"}]}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	return dir
}

// Build a bundle, as `kkbundle build manifest.yaml` does.
func ExampleProject_Build() {
	dir := writeProject()
	defer os.RemoveAll(dir)

	p, err := builder.Load(filepath.Join(dir, "manifest.yaml"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := p.Build(context.Background(), builder.Options{
		Cache:  filepath.Join(dir, "cache"),
		Output: filepath.Join(dir, "shop.kkb"),
		Events: func(e builder.Event) {
			if e.Type == builder.EventBegan {
				fmt.Println("phase:", e.Phase)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, it := range r.Index.Items {
		fmt.Println(it)
	}
	fmt.Println(r.Parts, "parts,", r.Cached, "bytes cached")
	// Output:
	// phase: resolve
	// phase: fetch
	// phase: write
	// file local/notes
	// manifest manifest.yaml
	// lock manifest.lock.yaml
	// closure closure.json
	// sbom sbom.cdx.json
	// 0 parts, 15 bytes cached
}

// Make a lock, as `kkbundle lock manifest.yaml` does.
func ExampleProject_Resolve() {
	dir := writeProject()
	defer os.RemoveAll(dir)

	p, err := builder.Load(filepath.Join(dir, "manifest.yaml"))
	if err != nil {
		log.Fatal(err)
	}
	l, err := p.Resolve(context.Background(), builder.Options{Cache: filepath.Join(dir, "cache")})
	if err != nil {
		log.Fatal(err)
	}
	for _, pin := range l.Items {
		fmt.Println(pin.Kind, pin.Ref, pin.Digest)
	}
	// Output:
	// file local/notes sha256:d9042b0813a6797b349e9a12baf253081aa63d4c73ce64c8287caf44b043dfd8
}

// List the images that a bundle would have, as `kkbundle images images.yaml` does.
func ExampleProject_Images() {
	dir := writeProject()
	defer os.RemoveAll(dir)

	p, err := builder.Load(filepath.Join(dir, "images.yaml"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := p.Images(context.Background(), builder.Options{Cache: filepath.Join(dir, "cache")})
	if err != nil {
		log.Fatal(err)
	}
	for _, image := range r.Images {
		fmt.Println(image.Ref, "wanted by", image.WantedBy[0].By)
	}
	// Output:
	// docker.io/library/nginx:1.29 wanted by manifest
	// docker.io/library/redis:8.2 wanted by yaml
}
