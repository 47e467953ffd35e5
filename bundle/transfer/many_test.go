package transfer_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/manifest"
)

// many returns a bundle of n files with one content and their lock. In the index, the files of several bundles
// alternate.
func many(t testing.TB, name string, n int) transfer.Source {
	t.Helper()
	b := bundletest.NewBuilder(t)
	content := []byte("the content of every file")
	b.File("https://files.example/first", "file", nil, content)
	first := b.Index.Items[0]
	b.Index.Items = nil
	lock := manifest.Lock{
		Metadata: manifest.Metadata{Name: name, Version: "1"},
		Manifest: digest.FromString(name).String(),
	}
	for i := range n {
		it := first
		it.Ref = fmt.Sprintf("https://files.example/%06d/%s", i, name)
		b.Item(it)
		lock.Items = append(lock.Items, manifest.Pin{
			Kind: manifest.ItemFile, Ref: it.Ref, Name: it.Name, Digest: digest.FromBytes(content),
			Size:     int64(len(content)),
			Verified: manifest.VerifiedManifest,
		})
	}
	data, err := lock.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	it, err := bundle.Document{Kind: bundle.KindLock, Ref: bundle.DocumentLock, Data: data}.Put(t.Context(), b.Cache)
	if err != nil {
		t.Fatal(err)
	}
	b.Item(it)
	return transfer.Source{Name: name + ".kkb", Catalog: &b.Bundle().Reader.Catalog}
}

// TestJoinedLockHasEveryPin joins bundles whose items alternate in the order of an index.
func TestJoinedLockHasEveryPin(t *testing.T) {
	t.Parallel()
	const n = 50
	p, err := transfer.Selection{Name: "x", Version: "1"}.Plan(t.Context(),
		[]transfer.Source{many(t, "a", n), many(t, "b", n)})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Index.Items) != 2*n || !slices.IsSortedFunc(p.Index.Items, transfer.ByIndex) || len(p.LeftOut) > 0 ||
		len(p.Locks) != 1 {
		t.Fatalf("%d items, left out %v, %d locks", len(p.Index.Items), p.LeftOut, len(p.Locks))
	}
	l, err := manifest.ParseLock("joined", p.Locks[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	pins := map[string]bool{}
	for _, pin := range l.Items {
		pins[pin.Ref] = true
	}
	for _, it := range p.Index.Items {
		if !pins[it.Ref] {
			t.Errorf("the lock has no pin of %s", it.Ref)
		}
	}
}

// BenchmarkPlan joins two bundles of n items each. The time grows with n and not with its square.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1000, 5000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			from := []transfer.Source{many(b, "a", n), many(b, "b", n)}
			for b.Loop() {
				if _, err := (transfer.Selection{Name: "x", Version: "1"}).Plan(b.Context(), from); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
