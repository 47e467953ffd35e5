package builder_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// publishTags pushes one image under n tags, and returns the registry.
func publishTags(t *testing.T, n int) *registrytest.Server {
	t.Helper()
	s := registrytest.Start(t, registrytest.Options{})
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	first, err := name.NewTag(s.Host + "/team/app:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(first, img); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		if err := remote.Tag(first.Context().Tag(fmt.Sprint(i)), img); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// writeVariants writes a manifest of n images, a chart that needs one of them, and variants that add an image each.
func writeVariants(t *testing.T, s *registrytest.Server, n, variants int) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: many, version: \"1\"}\nplatforms: [linux/amd64]\nreferrers: none\n"+
		"sources: [{host: registry.example, mirror: %q, plainHTTP: true, mirrorOnly: true}]\n", s.Host)
	b.WriteString("charts: [{path: web}]\nimages:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - registry.example/team/app:%d\n", i+1)
	}
	b.WriteString("variants:\n")
	for i := range variants {
		fmt.Fprintf(&b, "  v%d: {images: [registry.example/team/app:%d]}\n", i, n+1+i)
	}
	for file, text := range map[string]string{
		"manifest.yaml":        b.String(),
		"web/Chart.yaml":       "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"web/templates/a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, image: \"registry.example/team/app:0\"}]}\n",
	} {
		at := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "manifest.yaml")
}

// lockVariants makes the lock of a family, and returns how often each item was looked up.
func lockVariants(t *testing.T, file string) (*manifest.Lock, map[string]int) {
	t.Helper()
	f, err := builder.LoadFamily(file, builder.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked := map[string]int{}
	l, err := f.Resolve(t.Context(), builder.Options{
		Cache: filepath.Join(filepath.Dir(file), "cache"),
		Events: func(e builder.Event) {
			if e.Type == builder.EventItemBegan {
				mu.Lock()
				defer mu.Unlock()
				asked[e.Kind+" "+e.Ref]++
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l, asked
}

// TestVariantsShareRequests looks up each item once, whatever the number of variants that have it, and each variant's
// part of the lock is what the variant alone resolves to.
func TestVariantsShareRequests(t *testing.T) {
	t.Parallel()
	s := publishTags(t, 20)
	file := writeVariants(t, s, 5, 4)
	l, asked := lockVariants(t, file)
	for item, n := range asked {
		if n != 1 {
			t.Errorf("%s was looked up %d times", item, n)
		}
	}
	if len(asked) != 1+1+5+4 || len(l.Items) != len(asked) {
		t.Errorf("%d items were looked up, and %d pinned, want 11: %v", len(asked), len(l.Items), asked)
	}
	for i := range 4 {
		variant := fmt.Sprintf("v%d", i)
		p, err := builder.LoadWith(file, builder.LoadOptions{Variant: variant})
		if err != nil {
			t.Fatal(err)
		}
		alone, err := p.Resolve(t.Context(), builder.Options{Cache: filepath.Join(t.TempDir(), "cache")})
		if err != nil {
			t.Fatal(err)
		}
		want, err := alone.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		own, _ := l.Of(variant)
		got, err := own.Marshal()
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", variant, err, got, want)
		}
	}
}

// TestManyVariants locks 2,000 images with one variant and with 30: what each adds is looked up, and nothing again.
func TestManyVariants(t *testing.T) {
	if testing.Short() {
		t.Skip("two locks of 2,000 images")
	}
	const images = 2000
	s := publishTags(t, images+40)
	var took [2]time.Duration
	var allocated [2]uint64
	for i, variants := range []int{1, 30} {
		file := writeVariants(t, s, images, variants)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		l, asked := lockVariants(t, file)
		took[i] = time.Since(begin)
		runtime.ReadMemStats(&after)
		allocated[i] = after.TotalAlloc - before.TotalAlloc
		if want := images + variants + 2; len(l.Items) != want || len(asked) != want {
			t.Errorf("%d pins and %d lookups, want %d", len(l.Items), len(asked), want)
		}
	}
	t.Logf("1 variant: %s, %d MB allocated; 30 variants: %s, %d MB", took[0], allocated[0]>>20, took[1], allocated[1]>>20)
	if allocated[1] > 10*allocated[0] {
		t.Errorf("30 variants allocated %d bytes, and one %d", allocated[1], allocated[0])
	}
}
