//go:build linux

package scale

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestBytesOnce counts what a build reads and writes of content that nothing shrinks: it comes over the network once,
// is written into the cache and from there into the bundle, and that is all. Without a cache it goes into the bundle
// only.
func TestBytesOnce(t *testing.T) {
	const size = 64 * mib
	p := newPlace(t, upstream(t, source{name: "random", seed: 7, size: size, known: true, random: true}))
	p.counted(t, "nothing cached", 2*size, 2*size)
	p.counted(t, "unchanged", size, size)
	p.cache = ""
	p.counted(t, "without a cache", size, size)
}

// counted builds and compares what passed through system calls, with a little for everything beside content.
func (p place) counted(t *testing.T, name string, read, wrote int64) {
	t.Helper()
	const beside = 3 * mib // the program's own files, responses' headers, certificates
	u := must(t, "", p.command(t)...)
	if u.Read > read+beside || u.Wrote > wrote+beside {
		t.Errorf("%s: read %d bytes, written %d; at most %d and %d", name, u.Read, u.Wrote, read, wrote)
	}
	if u.Wrote < wrote {
		t.Errorf("%s: %d bytes written are too few: they are not counted", name, u.Wrote)
	}
	t.Logf("%s: read %.2f times, written %.2f times", name, float64(u.Read)/(64*mib), float64(u.Wrote)/(64*mib))
}

// TestManyImages builds from 2,000 images that share 20,000 layers.
func TestManyImages(t *testing.T) {
	images, layers := 100, 1000
	if big {
		images, layers = 2000, 20_000
	}
	p := newPlace(t, manyImages(t, images, layers))
	for _, name := range []string{"nothing cached", "unchanged"} {
		u := must(t, "", p.command(t)...)
		t.Logf("%d images, %d layers, %s: %.1f s, CPU %.1f s, %d MiB at most", images, layers, name, u.Wall.Seconds(),
			u.CPU.Seconds(), u.Peak/mib)
		if u.Peak >= 400*mib {
			t.Errorf("%d MiB in memory; at most 400 are allowed", u.Peak/mib)
		}
	}
	must(t, "", program(t), "verify", "--quiet", p.output)
}

// manyImages serves images of 30 layers each, and returns a manifest that asks for all.
func manyImages(t *testing.T, images, layers int) (manifest string) {
	t.Helper()
	blobs, tagged := map[string][]byte{}, map[string][]byte{}
	put := func(mediaType string, data []byte) ocispec.Descriptor {
		sum := sha256.Sum256(data)
		name := "sha256:" + hex.EncodeToString(sum[:])
		blobs[name] = data
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.Digest(name), Size: int64(len(data))}
	}
	random := rand.New(rand.NewPCG(5, 6))
	all := make([]ocispec.Descriptor, layers)
	for i := range all {
		all[i] = put(ocispec.MediaTypeImageLayerGzip, fmt.Appendf(nil, "layer %d of many", i))
	}
	var list strings.Builder
	for i := range images {
		name := fmt.Sprintf("image-%d", i)
		config, err := json.Marshal(ocispec.Image{
			Author:   name,
			Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		})
		if err != nil {
			t.Fatal(err)
		}
		m := ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: put(ocispec.MediaTypeImageConfig, config),
		}
		for _, at := range random.Perm(layers)[:20] {
			m.Layers = append(m.Layers, all[at])
		}
		for at := i * layers / images; at < (i+1)*layers/images; at++ { // so that every layer is somebody's
			m.Layers = append(m.Layers, all[at])
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		tagged[name] = data
		tagged[name+"@"+put(m.MediaType, data).Digest.String()] = data
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
		if len(parts) != 3 {
			return // the ping
		}
		data, ok := blobs[parts[2]]
		if parts[1] == "manifests" {
			if parts[2] == "1" {
				data, ok = tagged[parts[0]]
			} else {
				data, ok = tagged[parts[0]+"@"+parts[2]]
			}
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data) // who hangs up early notices itself
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	fmt.Fprintf(&list, "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: many, version: 1}\nplatforms: [linux/amd64]\n")
	fmt.Fprintf(&list, "sources:\n  - {host: %q, plainHTTP: true}\nimages:\n", host)
	for i := range images {
		fmt.Fprintf(&list, "  - %s/image-%d:1\n", host, i)
	}
	manifest = filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(manifest, []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return manifest
}
