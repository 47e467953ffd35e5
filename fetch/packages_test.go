package fetch_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// diskImage unpacks one of testdata into a directory. Each has the packages kk-app, which depends on kk-lib, and
// kk-more; genisoimage -R wrote them: suite as an archive of apt, flat with a list alone as dpkg-scanpackages writes
// it, rpm with createrepo_c's repodata.
func diskImage(t *testing.T, name, to string) (sha string) {
	t.Helper()
	packed, err := os.ReadFile("testdata/" + name + ".iso.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func TestPackagesInImage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"suite", "flat", "rpm"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			sum := diskImage(t, name, filepath.Join(dir, "os.iso"))
			o := fetch.Options{Store: newStore(t), Dir: dir}
			b := &manifest.Bundle{
				Metadata: manifest.Metadata{Name: "site", Version: "1"}, Platforms: []string{"linux/amd64"},
				Packages: []manifest.PackageSet{{
					Distribution: "kylin/v10", ISO: "os.iso", SHA256: sum,
					Install: []string{"kk-app"},
				}},
			}
			lock := resolved(t, b, o, 2)
			if pin := lock.Items[0]; pin.Verified != manifest.VerifiedManifest ||
				!strings.HasPrefix(pin.Ref, "packages/kylin/v10/kk-app") {
				t.Errorf("pin %+v", pin)
			}
			if items, err := fetch.All(t.Context(), lock, o); err != nil || len(items) != 2 {
				t.Errorf("%d items, %v", len(items), err)
			}
			b.Packages[0].Install, b.Packages[0].SHA256 = nil, ""
			all := resolved(t, b, o, 3)
			if all.Items[0].Verified != manifest.VerifiedFirstUse {
				t.Errorf("pin %+v", all.Items[0])
			}
			b.Packages[0].SHA256 = strings.Repeat("0", 64)
			if _, err := fetch.Resolve(t.Context(), b, o); err == nil || !strings.Contains(err.Error(), sum) {
				t.Errorf("an image with another sha256: %v", err)
			}
			if err := os.WriteFile(filepath.Join(dir, "os.iso"), []byte("another"), 0o600); err != nil {
				t.Fatal(err)
			}
			o.Store = newStore(t)
			if _, err := fetch.All(t.Context(), lock, o); err == nil ||
				!strings.Contains(err.Error(), "not an ISO 9660 image") {
				t.Errorf("an image that is none: %v", err)
			}
		})
	}
}

func resolved(t *testing.T, b *manifest.Bundle, o fetch.Options, want int) *manifest.Lock {
	t.Helper()
	lock, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(lock.Items) != want {
		t.Fatalf("%d items, want %d: %+v", len(lock.Items), want, lock.Items)
	}
	if err := lock.Covers(b); err != nil {
		t.Error(err)
	}
	return lock
}
