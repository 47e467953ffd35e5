package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest/sources"
)

func TestLockMarshal(t *testing.T) {
	l := sampleLock(20)
	first, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(l.Items)
	second, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("the order of the items changes the bytes")
	}
	if !bytes.HasPrefix(first, []byte("# Written by kkbundle lock")) {
		t.Errorf("no header: %.80q", first)
	}
	got, err := ParseLock("lock", first)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(l.Items, comparePins)
	l.APIVersion, l.Kind = APIVersion, KindLock
	if diff := cmp.Diff(got, l); diff != "" {
		t.Errorf("written and read (-got +want):\n%s", diff)
	}
}

// A lock of 20,000 pins is read.
func TestLockLarge(t *testing.T) {
	data, err := sampleLock(1).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	head, item, _ := strings.Cut(string(data), "items:\n")
	var text strings.Builder
	text.WriteString(head + "items:\n")
	for i := range 20_000 {
		text.WriteString(strings.Replace(item, "file-00000-", fmt.Sprintf("file-%05d-", i), 1))
	}
	l, err := ParseLock("lock", []byte(text.String()))
	if err != nil {
		t.Fatalf("%.500s", err)
	}
	if len(l.Items) != 20_000 {
		t.Errorf("%d items", len(l.Items))
	}
}

func BenchmarkParseLock(b *testing.B) {
	data, err := sampleLock(2_000).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseLock("lock", data); err != nil {
			b.Fatal(err)
		}
	}
}

func sampleLock(n int) *Lock {
	l := &Lock{Metadata: Metadata{Name: "site", Version: "1.0.0"}, Manifest: digest.FromString("").String()}
	for i := range n {
		l.Items = append(l.Items, Pin{
			Kind: ItemFile, Ref: fmt.Sprintf("https://example.com/release/v1.34.3/file-%05d-linux-amd64", i),
			Name:    fmt.Sprintf("file-%05d", i),
			Version: "v1.34.3", Platform: "linux/amd64",
			URL:    fmt.Sprintf("https://mirror.example.com/release/file-%05d", i),
			Digest: digest.FromString(fmt.Sprint(i)), Size: int64(i), MediaType: "application/octet-stream",
			Platforms: []string{"linux/amd64", "linux/arm64"}, Mode: 0o755, Verified: VerifiedFirstUse,
		})
	}
	return l
}

func TestLockCovers(t *testing.T) {
	zeros, ones := strings.Repeat("0", 64), strings.Repeat("1", 64)
	b := &Bundle{
		Metadata: Metadata{Name: "site", Version: "1"}, Platforms: []string{"linux/amd64", "linux/arm64"},
		Images: []Image{{Name: "nginx"}, {Name: "busybox:1", Digest: "sha256:" + zeros}},
		Charts: []Chart{
			{Name: "app", Repo: "https://charts.example", Version: "1.x"},
			{Path: "charts/own"},
			{URL: "https://example.com/f.tgz"},
		},
		Files: []File{
			{Name: "yq", URL: "https://example.com/yq_{arch}", SHA256: Sums{"linux/amd64": zeros}},
			{Name: "iso", URL: "https://example.com/iso"},
		},
	}
	fingerprint, err := b.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	pin := func(kind, ref, version, platform, hex string) Pin {
		return Pin{Kind: kind, Ref: ref, Version: version, Platform: platform, Digest: digest.Digest("sha256:" + hex)}
	}
	l := &Lock{Manifest: fingerprint.String(), Items: []Pin{
		pin(ItemImage, "docker.io/library/nginx:latest", "latest", "", ones),
		pin(ItemImage, "docker.io/library/busybox:1@sha256:"+zeros, "1", "", zeros),
		pin(ItemChart, "https://charts.example/app:1.4.0", "1.4.0", "", ones),
		pin(ItemChart, "local/own:0.1.0", "0.1.0", "", ones),
		pin(ItemChart, "https://example.com/f.tgz", "v1", "", ones),
		pin(ItemFile, "https://example.com/yq_amd64", "", "linux/amd64", zeros),
		pin(ItemFile, "https://example.com/yq_arm64", "", "linux/arm64", ones),
		pin(ItemFile, "https://example.com/iso", "", "", ones),
		pin(ItemReferrer, "docker.io/library/nginx@sha256:"+zeros, "", "", zeros),
	}}
	for _, tc := range []struct {
		name           string
		change         func(*Bundle)
		missing, stale []string
		fits           bool
	}{
		{name: "unchanged", change: func(*Bundle) {}, fits: true},
		{name: "order, version, sources", change: func(b *Bundle) {
			slices.Reverse(b.Images)
			b.Metadata.Version = "2"
			b.Sources = []sources.Source{{Host: "docker.io"}}
		}, fits: true},
		{name: "policy", change: func(b *Bundle) { b.PlatformPolicy = PolicyWarn }},
		{
			name: "new image", change: func(b *Bundle) { b.Images = append(b.Images, Image{Name: "redis:8"}) },
			missing: []string{"image docker.io/library/redis:8"},
		},
		{
			name: "other tag", change: func(b *Bundle) { b.Images[0].Name = "nginx:1.29" },
			missing: []string{"image docker.io/library/nginx:1.29"},
			stale:   []string{"image docker.io/library/nginx:latest"},
		},
		{
			name: "other range", change: func(b *Bundle) { b.Charts[0].Version = "2.x" },
			missing: []string{"chart https://charts.example/app:2.x"},
			stale:   []string{"chart https://charts.example/app:1.4.0"},
		},
		{
			name: "other hash", change: func(b *Bundle) { b.Files[0].SHA256 = Sums{"linux/amd64": ones} },
			missing: []string{"file https://example.com/yq_amd64"},
			stale:   []string{"file https://example.com/yq_amd64"},
		},
		{
			name: "fewer platforms", change: func(b *Bundle) { b.Platforms = b.Platforms[:1] },
			stale: []string{"file https://example.com/yq_arm64"},
		},
		{
			name: "a file's platforms", change: func(b *Bundle) { b.Files[0].Platforms = []string{"linux/amd64"} },
			stale: []string{"file https://example.com/yq_arm64"},
		},
		{name: "an image's platforms", change: func(b *Bundle) { b.Images[0].Platforms = []string{"linux/amd64"} }},
		{name: "an image's key", change: func(b *Bundle) { b.Images[0].Verify = &Verify{Key: "key.pub"} }},
		{name: "an image's referrers", change: func(b *Bundle) { b.Images[0].Referrers = ReferrersAll }},
		{name: "an image's index", change: func(b *Bundle) { b.Images[0].Indexes = IndexesSelected }},
		{name: "indexes", change: func(b *Bundle) { b.Indexes = IndexesSelected }},
		{name: "indexes as they are by default", change: func(b *Bundle) { b.Indexes = IndexesPinned }, fits: true},
		{name: "referrers", change: func(b *Bundle) { b.Referrers = ReferrersNone }},
		{name: "referrers as they are by default", change: func(b *Bundle) { b.Referrers = ReferrersAll }, fits: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := *b
			changed.Images, changed.Charts, changed.Files = slices.Clone(b.Images), slices.Clone(b.Charts),
				slices.Clone(b.Files)
			tc.change(&changed)
			err := l.Covers(&changed)
			var stale *StaleError
			if tc.fits != (err == nil) || err != nil && !errors.As(err, &stale) {
				t.Fatalf("got %v", err)
			}
			if tc.fits {
				return
			}
			if diff := cmp.Diff([][]string{stale.Missing, stale.Stale}, [][]string{tc.missing, tc.stale}); diff != "" {
				t.Errorf("missing and stale (-got +want):\n%s", diff)
			}
			if stale.Hint() == "" || !strings.HasPrefix(err.Error(), "the lock does not fit the manifest") {
				t.Errorf("message %q", err)
			}
		})
	}
}

// A key that was taken out of the lock is still in the manifest.
func TestLockCoversKeys(t *testing.T) {
	b := &Bundle{Platforms: []string{"linux/amd64"}, Images: []Image{{Name: "nginx", Verify: &Verify{Key: "key.pub"}}}}
	fingerprint, err := b.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lock{Manifest: fingerprint.String(), Items: []Pin{{
		Kind: ItemImage, Ref: "docker.io/library/nginx:latest",
		Key: "key.pub",
	}}}
	if err := l.Covers(b); err != nil {
		t.Error(err)
	}
	l.Items[0].Key = ""
	var stale *StaleError
	if err := l.Covers(b); !errors.As(err, &stale) ||
		!strings.Contains(err.Error(), "nginx:latest with its key key.pub") {
		t.Errorf("without the key: %v", err)
	}
}
