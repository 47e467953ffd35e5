package fetch_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

const signedRPMs = "packages/rpm/testdata/" // built by rpmbuild and signed by rpmsign, see the tests there

// rpmRepository publishes a package of rpm's testdata as the package kk-s 1-1.
func rpmRepository(t *testing.T, s *site, dir, file string) (repomd []byte) {
	t.Helper()
	data, err := os.ReadFile(signedRPMs + file)
	if err != nil {
		t.Fatal(err)
	}
	s.put(dir+"/kk-s-1-1.noarch.rpm", data)
	primary := fmt.Appendf(nil,
		`<metadata><package type="rpm"><name>kk-s</name><arch>noarch</arch><version epoch="0" ver="1" rel="1"/>`+
			`<checksum type="sha256">%x</checksum><size package="%d"/><location href="kk-s-1-1.noarch.rpm"/><format/></package></metadata>`, sha256.Sum256(data), len(data))
	s.put(dir+"/repodata/primary.xml", primary)
	repomd = fmt.Appendf(nil,
		`<repomd><data type="primary"><checksum type="sha256">%x</checksum><location href="repodata/primary.xml"/><size>%d</size></data></repomd>`,
		sha256.Sum256(primary), len(primary))
	s.put(dir+"/repodata/repomd.xml", repomd)
	return repomd
}

// TestPackagesBySHA512: packages of a list that has no SHA256 are checked by its SHA512, and pinned by their SHA256.
func TestPackagesBySHA512(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	deb := packagestest.Deb{Name: "kk-app", Version: "1", Arch: "amd64"}
	data := deb.Bytes(t)
	list := fmt.Appendf(nil, "Package: kk-app\nVersion: 1\nArchitecture: amd64\nFilename: pool/a.deb\nSize: %d\nSHA512: %x\n",
		len(data), sha512.Sum512(data))
	key := packagestest.NewKey(t, time.Now().Add(-time.Hour), 0)
	s.put("/pool/a.deb", data)
	s.put("/dists/s/InRelease", packagestest.Clear(t, fmt.Appendf(nil,
		"Suite: s\nDate: %s\nArchitectures: amd64\nComponents: main\nSHA512:\n %x %d main/binary-amd64/Packages\n",
		time.Now().UTC().Format(time.RFC1123), sha512.Sum512(list), len(list)), key))
	s.put("/dists/s/main/binary-amd64/Packages", list)
	dir := t.TempDir()
	packagestest.WriteFile(t, dir+"/key.gpg", key.Public(t))
	b := rpmSet(manifest.Repository{URL: s.url, Suite: "s", Keyring: "key.gpg"})
	b.Packages[0].Install = []string{"kk-app"}
	o := fetch.Options{Store: newStore(t), Dir: dir, Sources: []sources.Source{{Host: s.host, CA: s.ca}}}
	lock := resolved(t, b, o, 1)
	if got, want := lock.Items[0].Digest.Encoded(), fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
		t.Errorf("pinned by %s, want %s", got, want)
	}
	if items, err := fetch.All(t.Context(), lock, o); err != nil || len(items) != 1 {
		t.Errorf("%d items, %v", len(items), err)
	}
	data[len(data)-1] ^= 1
	s.put("/pool/a.deb", data)
	o.Store = newStore(t)
	if _, err := fetch.Resolve(t.Context(), b, o); err == nil || !strings.Contains(err.Error(), "use another mirror") {
		t.Errorf("another file: %v", err)
	}
}

func rpmSet(repositories ...manifest.Repository) *manifest.Bundle {
	return &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "site", Version: "1"}, Platforms: []string{"linux/amd64"},
		Packages: []manifest.PackageSet{{Distribution: "kk/1", Install: []string{"kk-s"}, Repositories: repositories}},
	}
}

// TestRPMSignatures has packages pinned only if a given key signed their list or each of them, or if the manifest
// waives that. The packages were signed by rpmsign.
func TestRPMSignatures(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	dir := t.TempDir()
	for _, name := range []string{"rsa.asc", "eddsa.asc"} {
		data, err := os.ReadFile(signedRPMs + name)
		if err != nil {
			t.Fatal(err)
		}
		packagestest.WriteFile(t, filepath.Join(dir, name), data)
	}
	key := packagestest.NewKey(t, time.Now().Add(-time.Hour), 0)
	packagestest.WriteFile(t, dir+"/list.gpg", key.Public(t))
	for _, name := range []string{"rsa", "eddsa", "unsigned"} {
		rpmRepository(t, s, "/"+name, "kk-s-"+name+".rpm")
	}
	s.put("/list/repodata/repomd.xml.asc", key.Detached(t, rpmRepository(t, s, "/list", "kk-s-unsigned.rpm")))
	s.put("/forged/repodata/repomd.xml.asc", key.Detached(t, append(rpmRepository(t, s, "/forged", "kk-s-rsa.rpm"),
		'\n')))
	for name, c := range map[string]struct {
		repository manifest.Repository
		want       manifest.Verification
		problem    string
	}{
		"own signature, RSA": {
			repository: manifest.Repository{URL: "/rsa", Keyring: "rsa.asc"},
			want:       manifest.VerifiedSignature,
		},
		"own signature, Ed25519": {
			repository: manifest.Repository{URL: "/eddsa", Keyring: "eddsa.asc"},
			want:       manifest.VerifiedSignature,
		},
		"signed list": {
			repository: manifest.Repository{URL: "/list", Keyring: "list.gpg"},
			want:       manifest.VerifiedSignature,
		},
		"waived": {
			repository: manifest.Repository{URL: "/unsigned", AllowUnsigned: true},
			want:       manifest.VerifiedUnsigned,
		},
		"no keyring": {repository: manifest.Repository{URL: "/rsa"}, problem: "set keyring"},
		"another key": {
			repository: manifest.Repository{URL: "/rsa", Keyring: "eddsa.asc"},
			problem:    "no given key signed it",
		},
		"unsigned": {
			repository: manifest.Repository{URL: "/unsigned", Keyring: "rsa.asc"},
			problem:    "no signature of its header",
		},
		"forged list": {
			repository: manifest.Repository{URL: "/forged", Keyring: "list.gpg"},
			problem:    "repomd.xml.asc",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := fetch.Options{Store: newStore(t), Dir: dir, Sources: []sources.Source{{Host: s.host, CA: s.ca}}}
			c.repository.URL = s.url + c.repository.URL
			b := rpmSet(c.repository)
			if c.problem != "" {
				if _, err := fetch.Resolve(t.Context(), b, o); err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("error %v, want %q", err, c.problem)
				}
				return
			}
			lock := resolved(t, b, o, 1)
			if got := lock.Items[0].Verified; got != c.want {
				t.Errorf("verified %q, want %q", got, c.want)
			}
			items, err := fetch.All(t.Context(), lock, o)
			if err != nil {
				t.Fatal(err)
			}
			if got := items[0].Descriptor.Annotations[bundle.AnnotationVerified]; got != string(c.want) {
				t.Errorf("the item says %q, want %q", got, c.want)
			}
		})
	}
}

// TestRPMDistributionWithoutKeys has the known repositories of an RPM distribution refused where this machine lacks its
// keys.
func TestRPMDistributionWithoutKeys(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9"); err == nil {
		t.Skip("this machine has the keys of Rocky Linux 9")
	}
	s := newSite(t, true)
	for _, part := range []string{"BaseOS", "AppStream"} {
		rpmRepository(t, s, "/pub/rocky/9/"+part+"/x86_64/os", "kk-s-rsa.rpm")
	}
	dir := t.TempDir()
	data, err := os.ReadFile(signedRPMs + "rsa.asc")
	if err != nil {
		t.Fatal(err)
	}
	packagestest.WriteFile(t, dir+"/rocky.asc", data)
	source := sources.Source{Host: "dl.rockylinux.org", Mirrors: []string{s.host}, MirrorOnly: true, CA: s.ca}
	o := fetch.Options{Store: newStore(t), Dir: dir, Sources: []sources.Source{source}}
	b := rpmSet()
	set := &b.Packages[0]
	set.Distribution = "rocky/9"
	if _, err := fetch.Resolve(t.Context(), b, o); err == nil ||
		!strings.Contains(err.Error(), "keys are not on this machine") ||
		!strings.Contains(err.Error(), "allowUnsigned") {
		t.Errorf("without keys: %v", err)
	}
	set.AllowUnsigned = true
	if pin := resolved(t, b, o, 1).Items[0]; pin.Verified != manifest.VerifiedUnsigned {
		t.Errorf("waived: %+v", pin)
	}
	set.AllowUnsigned, set.Keyring = false, "rocky.asc"
	if pin := resolved(t, b, o, 1).Items[0]; pin.Verified != manifest.VerifiedSignature {
		t.Errorf("with keys: %+v", pin)
	}
	// The mirror swaps the package for one that is as well listed, and not signed.
	for _, part := range []string{"BaseOS", "AppStream"} {
		rpmRepository(t, s, "/pub/rocky/9/"+part+"/x86_64/os", "kk-s-unsigned.rpm")
	}
	o.Store = newStore(t)
	if _, err := fetch.Resolve(t.Context(), b, o); err == nil || !strings.Contains(err.Error(), "kk-s-1-1.noarch.rpm") {
		t.Errorf("an unsigned package: %v", err)
	}
}
