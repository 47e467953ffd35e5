package bundle_test

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// TestBytes holds the bytes of a bundle of each level. They depend on the content and on the encoder in its name, and
// on nothing else: no release of Go, no processor (the same with -tags noasm). Where the compression library changes
// them, zstdVersion in package format changes with it, and these digests.
func TestBytes(t *testing.T) {
	t.Parallel()
	random := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(random)
	text := bytes.Repeat([]byte("the same line again\n"), 300_000)
	for i := range len(text) / 1000 {
		text[i*1000] = random[i]
	}
	for level, want := range map[bundle.Level]digest.Digest{
		bundle.LevelFast:    "sha256:b207ef72c4ad3ded10d96a7e774844611e2f68680af74ad903568fb04b57c39c",
		bundle.LevelDefault: "sha256:75d09fedfa8003d7dd036d4997afa9b63d715c0e1dadc7cd6c770fef5e420af4",
		bundle.LevelBetter:  "sha256:68157cdce8683eaec6882544a9fa6e6974c945da0e5f62e3287544a4dff613ca",
		bundle.LevelBest:    "sha256:eaad462712f5dfe9bb365ffe1fe6c923d04bb8f46204b95298f4a2f5be400f09",
	} {
		b := bundletest.NewBuilder(t)
		cache, err := cache.Open(t.TempDir(), level)
		if err != nil {
			t.Fatal(err)
		}
		b.Cache = cache
		b.File("https://files.example/empty", "empty", nil, nil)
		b.File("https://files.example/small", "small", nil, random[:1000])
		b.File("https://files.example/random", "random", nil, random)
		b.File("https://files.example/hex", "hex", nil, []byte(hex.EncodeToString(random[:2<<20])))
		b.File("https://files.example/text", "text", nil, text)
		var out bytes.Buffer
		if _, err := bundle.Write(t.Context(), &out, b.Cache, b.Index, bundle.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := digest.FromBytes(out.Bytes()); got != want {
			t.Errorf("level %s: %s, want %s", level, got, want)
		}
	}
}
