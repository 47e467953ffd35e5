package manifest

import (
	"slices"
	"testing"
)

func TestAddPackages(t *testing.T) {
	t.Parallel()
	b := &Bundle{Packages: []PackageSet{
		{Distribution: "debian/12", Install: []string{"socat", "conntrack"}, Roles: true},
		{Distribution: "rocky/9"},
		{Distribution: "debian/13", Install: []string{"vim"}},
		{Distribution: "kylin/v10", ISO: "os.iso"},
	}}
	b.AddPackages(func(distribution string) []string { return []string{"conntrack", "for-" + distribution} })
	for i, want := range [][]string{{"conntrack", "for-debian/12", "socat"}, {"conntrack", "for-rocky/9"}, {"vim"}, nil} {
		if set := b.Packages[i]; !slices.Equal(set.Install, want) || set.Roles {
			t.Errorf("%s: %q, want %q", set.Distribution, set.Install, want)
		}
	}
}

func TestPackageInImage(t *testing.T) {
	t.Parallel()
	for _, image := range []string{"os.iso", "a b/c%2F.iso", "/abs/x!.iso"} {
		got, file, ok := ImageOfPackage(PackageInImage(image, "/pool/x y.deb"))
		if !ok || got != image || file != "pool/x y.deb" {
			t.Errorf("%s became %s, %s, %v", image, got, file, ok)
		}
	}
	for _, other := range []string{"https://deb.example/x.deb", "iso:x", "iso:%zz/x", ""} {
		if _, _, ok := ImageOfPackage(other); ok {
			t.Errorf("%q is no file in an image", other)
		}
	}
}

// A set that changed is another manifest; a lock knows the sets that it has nothing of.
func TestLockCoversPackages(t *testing.T) {
	t.Parallel()
	b := &Bundle{Platforms: []string{"linux/amd64"}, Packages: []PackageSet{{Distribution: "debian/12", Install: []string{"socat"}}}}
	fingerprint, err := b.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lock{Manifest: fingerprint.String(), Items: []Pin{{Kind: ItemFile, Ref: PackageRef("debian/12", "socat_1_amd64.deb"), Platform: "linux/amd64"}}}
	if err := l.Covers(b); err != nil {
		t.Error(err)
	}
	b.Packages[0].Install = []string{"conntrack"}
	if err := l.Covers(b); err == nil {
		t.Error("a lock of other packages was taken")
	}
	b.Packages[0].Distribution = "debian/13"
	if err := l.Covers(b); err == nil || err.Error() != "the lock does not fit the manifest; not in the lock: packages debian/13; no longer in the manifest: file packages/debian/12/socat_1_amd64.deb" {
		t.Error(err)
	}
}
