package cli_test

import (
	"math/rand"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/rogpeppe/go-internal/testscript"
)

// release publishes newer versions upstream: tags of the image app, one of which moves, and of the chart web.
func release(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: release")
	}
	u := of(ts)
	img, err := randomImage(rand.New(rand.NewSource(7)), "linux/amd64")
	ts.Check(err)
	for _, tag := range []string{"1.0", "1.10", "1.9", "2.0", "2.1-rc1", "2.0-alpine", "2.0.1", "latest", "20240101"} {
		ref, err := name.ParseReference(u.source.Host + "/hub/library/app:" + tag)
		ts.Check(err)
		ts.Check(remote.Write(ref, img, remote.WithAuthFromKeychain(u.source.Keychain()),
			remote.WithTransport(u.source.Transport())))
	}
	index := "apiVersion: v1\nentries:\n  web:\n"
	for _, version := range []string{"1.2.3", "1.2.10", "1.2.9", "1.3.0", "2.0.0", "2.1.0-beta.1"} {
		index += "  - {apiVersion: v2, name: web, version: " + version + ", urls: [web-" + version + ".tgz]}\n"
	}
	u.files.put("/charts/index.yaml", []byte(index))
	u.forget()
}

// put PATH FILE publishes a file of the script upstream. One that begins with "Location: " is a redirect.
func put(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: put PATH FILE")
	}
	of(ts).files.put(args[0], []byte(ts.ReadFile(args[1])))
}

// tags IMAGE TAG... gives a new image these tags in the source registry, below hub.
func tags(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: tags IMAGE TAG...")
	}
	u := of(ts)
	img, err := randomImage(rand.New(rand.NewSource(8)), "linux/amd64")
	ts.Check(err)
	for _, tag := range args[1:] {
		ref, err := name.ParseReference(u.source.Host + "/hub/" + args[0] + ":" + tag)
		ts.Check(err)
		ts.Check(remote.Write(ref, img, remote.WithAuthFromKeychain(u.source.Keychain()),
			remote.WithTransport(u.source.Transport())))
	}
}

// layers IMAGE:TAG FILE... publishes an image in the source registry, below hub, that has these gzip layers.
func layers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: layers IMAGE:TAG FILE...")
	}
	u := of(ts)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, file := range args[1:] {
		var err error
		img, err = mutate.AppendLayers(img, static.NewLayer([]byte(ts.ReadFile(file)), types.OCILayer))
		ts.Check(err)
	}
	config, err := img.ConfigFile()
	ts.Check(err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	img, err = mutate.ConfigFile(img, config)
	ts.Check(err)
	ref, err := name.ParseReference(u.source.Host + "/hub/" + args[0])
	ts.Check(err)
	ts.Check(remote.Write(ref, img, remote.WithAuthFromKeychain(u.source.Keychain()),
		remote.WithTransport(u.source.Transport())))
}
