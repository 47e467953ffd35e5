package transfer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/transfer"
)

// TestEncryptedCopy joins a plain and an encrypted bundle whose frames differ in size, so scratch space is needed:
// none of it is beside the encrypted result.
func TestEncryptedCopy(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	to := []age.Recipient{key.Recipient()}
	keys := func([]*age.Stanza) ([]age.Identity, error) { return []age.Identity{key}, nil }
	var from []bundle.From
	for name, level := range map[string]bundle.Level{"plain": bundle.LevelDefault, "encrypted": bundle.LevelBest} {
		cache, err := cache.Open(t.TempDir(), level)
		if err != nil {
			t.Fatal(err)
		}
		it, err := bundle.Document{
			Kind: bundle.KindFile, Ref: "local/" + name,
			Data: bytes.Repeat([]byte(name), 20_000),
		}.Put(t.Context(), cache)
		if err != nil {
			t.Fatal(err)
		}
		path, o := filepath.Join(t.TempDir(), name), bundle.WriteOptions{}
		if name == "encrypted" {
			o.Recipients = to
		}
		if _, err := bundle.Create(t.Context(), path, cache, bundle.Index{Name: "x", Items: []bundle.Item{it}},
			o); err != nil {
			t.Fatal(err)
		}
		r, err := bundle.OpenWith(path, keys)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		from = append(from, bundle.From{Name: path, Reader: r})
	}
	dir := t.TempDir()
	output := filepath.Join(dir, "both.kkb.age")
	phases := map[string]bool{}
	c, err := transfer.Copy(t.Context(), from, transfer.CopyOptions{
		Output: output, Recipients: to,
		Progress: func(phase string, _, _ int64) {
			phases[phase] = true
			entries, err := os.ReadDir(dir)
			for _, e := range entries {
				if err != nil || e.IsDir() || !strings.HasPrefix(e.Name(), ".both.kkb.age.") {
					t.Errorf("%s: %s lies beside the result, %v", phase, e.Name(), err)
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !phases["compress"] || c.Recompressed == 0 {
		t.Errorf("no scratch space was needed: %v, %d bytes compressed again", phases, c.Recompressed)
	}
	if _, err := bundle.Open(output); err == nil {
		t.Error("the copy is not encrypted")
	}
	r, err := bundle.OpenWith(output, keys)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); err != nil || r.Digest() != c.Digest {
		t.Errorf("%s, %v; want %s", r.Digest(), err, c.Digest)
	}
}
