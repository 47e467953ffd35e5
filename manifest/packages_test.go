package manifest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest/document"
)

func TestAddPackages(t *testing.T) {
	t.Parallel()
	b := &Bundle{Packages: []PackageSet{
		{Distribution: "debian/12", Install: []string{"socat", "conntrack"}, Roles: true},
		{Distribution: "rocky/9"},
		{Distribution: "debian/13", Install: []string{"vim"}},
		{Distribution: "kylin/v10", ISO: "os.iso"},
	}}
	err := b.AddPackages(func(distribution string) ([]string, error) {
		return []string{"conntrack", "for-" +
			distribution}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"conntrack", "for-debian/12", "socat"},
		{"conntrack", "for-rocky/9"},
		{"vim"},
		nil,
	} {
		if set := b.Packages[i]; !slices.Equal(set.Install, want) || set.Roles {
			t.Errorf("%s: %q, want %q", set.Distribution, set.Install, want)
		}
	}
}

// What cannot be named is said of every set that wants it, with its line, and the others get theirs.
func TestAddPackagesUnknown(t *testing.T) {
	t.Parallel()
	b, err := ParseBundle("manifest.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: site, version: 1.0.0}
platforms: [linux/amd64]
packages:
  - {distribution: beos/5, roles: true}
  - {distribution: debian/12, roles: true}
  - {distribution: plan9/4}
`))
	if err != nil {
		t.Fatal(err)
	}
	err = b.AddPackages(func(distribution string) ([]string, error) {
		if distribution == "debian/12" {
			return []string{"socat"}, nil
		}
		return nil, errors.New("nobody knows")
	})
	var problems document.Problems
	if !errors.As(err, &problems) || len(problems) != 2 || problems[0].Line != 6 || problems[1].Line != 8 ||
		!strings.Contains(problems[0].Message, "beos/5 is not known: nobody knows; name packages under install") {
		t.Errorf("%v", err)
	}
	if !slices.Equal(b.Packages[1].Install, []string{"socat"}) {
		t.Errorf("%+v", b.Packages[1])
	}
}

// What only dnf understands is refused with what to write.
func TestRepositoryAddress(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"https://mirrors.example/mirrorlist?repo=epel-9&arch=x86_64": "list of mirrors",
		"https://mirrors.example/metalink":                           "list of mirrors",
		"https://rpm.example/9/$basearch/os":                         "{x86arch} for $basearch",
		"https://rpm.example/9/{x86arch}/os":                         "",
	} {
		_, err := ParseBundle("manifest.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: site, version: 1.0.0}
platforms: [linux/amd64]
packages:
  - distribution: rocky/9
    install: [socat]
    repositories:
      - {url: "`+address+`", keyring: key.asc}
`))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestPackageDistribution(t *testing.T) {
	t.Parallel()
	if got, ok := PackageDistribution(PackageRef("debian/12", "socat_1_amd64.deb")); got != "debian/12" || !ok {
		t.Error(got, ok)
	}
	if _, ok := PackageDistribution("local/packages/x"); ok {
		t.Error("a file is a package")
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
	b := &Bundle{
		Platforms: []string{"linux/amd64"},
		Packages:  []PackageSet{{Distribution: "debian/12", Install: []string{"socat"}}},
	}
	fingerprint, err := b.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lock{
		Manifest: fingerprint.String(),
		Items:    []Pin{{Kind: ItemFile, Ref: PackageRef("debian/12", "socat_1_amd64.deb"), Platform: "linux/amd64"}},
	}
	if err := l.Covers(b); err != nil {
		t.Error(err)
	}
	old := *l
	old.Items = []Pin{l.Items[0]}
	old.Items[0].Package, old.Items[0].Verified = "socat", VerifiedUpstream
	if err := old.Covers(b); err == nil || !strings.Contains(err.Error(), "signatures") {
		t.Errorf("a lock without checked signatures: %v", err)
	}
	b.Packages[0].Install = []string{"conntrack"}
	if err := l.Covers(b); err == nil {
		t.Error("a lock of other packages was taken")
	}
	b.Packages[0].Distribution = "debian/13"
	if err := l.Covers(b); err == nil ||
		err.Error() != "the lock does not fit the manifest; not in the lock: packages debian/13; no longer in the manifest: file packages/debian/12/socat_1_amd64.deb" {
		t.Error(err)
	}
}

// Names of packages are separated by commas in a bundle, and are nothing that other files have.
func TestLockPackageNames(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		"ref: packages/rocky/9/a.rpm, package: iptables-nft, provides: [iptables]": true,
		"ref: packages/rocky/9/a.rpm, package: a, provides: ['b,c']":               false,
		"ref: packages/rocky/9/a.rpm, provides: [iptables]":                        false,
		"ref: local/a.rpm, package: a":                                             false,
	} {
		l := "apiVersion: kkbundle.io/v1\nkind: Lock\nmetadata: {name: a, version: 1.0.0}\nmanifest: sha256:" +
			strings.Repeat("0", 64) +
			"\nitems: [{kind: file, name: a.rpm, digest: 'sha256:" + strings.Repeat("0", 64) +
			"', size: 1, verified: upstream, " + text + "}]\n"
		if _, err := ParseLock("lock.yaml", []byte(l)); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}
