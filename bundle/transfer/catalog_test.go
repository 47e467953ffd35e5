package transfer_test

import (
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/transfer"
)

// source returns a bundle with these documents.
func source(t *testing.T, name string, documents map[string]string) transfer.Source {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for ref, text := range documents {
		it, err := bundle.Document{Kind: bundle.KindManifest, Ref: ref, Data: []byte(text)}.Put(t.Context(), b.Cache)
		if err != nil {
			t.Fatal(err)
		}
		b.Item(it)
	}
	return transfer.Source{Name: name, Catalog: &b.Bundle().Reader.Catalog}
}

// TestCatalogStaysWithItsCluster joins bundles of different releases of kkbundle, whose catalogs differ: the one
// beside the cluster file that install will take is kept, and no other.
func TestCatalogStaysWithItsCluster(t *testing.T) {
	t.Parallel()
	const cluster, catalog = bundle.DocumentCluster, bundle.DocumentCatalog
	first := source(t, "a.kkb", map[string]string{cluster: "one", catalog: "old"})
	second := source(t, "b.kkb", map[string]string{cluster: "two", catalog: "new"})
	plain := source(t, "c.kkb", map[string]string{cluster: "three"})
	charts := source(t, "d.kkb", map[string]string{"local.yaml": "x", catalog: "new"})
	for name, c := range map[string]struct {
		from   []transfer.Source
		prefer transfer.Prefer
		want   int // the source of the catalog; -1 for none
	}{
		"the first cluster counts":         {[]transfer.Source{first, second}, transfer.PreferFirst, 0},
		"the last cluster counts":          {[]transfer.Source{first, second}, transfer.PreferLast, 1},
		"only one has a cluster":           {[]transfer.Source{charts, first}, transfer.PreferNone, 1},
		"the cluster's bundle has none":    {[]transfer.Source{charts, plain}, transfer.PreferNone, -1},
		"no bundle has the usual cluster":  {[]transfer.Source{charts}, transfer.PreferNone, 0},
		"the last cluster's bundle has it": {[]transfer.Source{plain, second}, transfer.PreferLast, 1},
	} {
		p, err := transfer.Selection{Name: "x", Version: "1", Prefer: c.prefer}.Plan(t.Context(), c.from)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var want bundle.Item
		if c.want >= 0 {
			want, _ = c.from[c.want].Find(bundle.KindManifest, catalog, "")
		}
		var got bundle.Item
		for _, it := range p.Index.Items {
			if it.Ref == catalog {
				got = it
			}
		}
		if got.Descriptor.Digest != want.Descriptor.Digest {
			t.Errorf("%s: the catalog is %q, want %q", name, got.Descriptor.Digest, want.Descriptor.Digest)
		}
	}
}
