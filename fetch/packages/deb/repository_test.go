package deb_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/deb"
	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

// directory has the files of a repository on disk; the tests of fetch have servers.
type directory string

func (d directory) Get(_ context.Context, address string, _ int64) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), strings.TrimPrefix(address, "https://deb.example/")))
}

func (d directory) Open(ctx context.Context, address string, size int64, sum packages.Sum) (io.ReadCloser, error) {
	data, err := d.Get(ctx, address, 0)
	if err == nil && (sum.Check(bytes.NewReader(data)) != nil || int64(len(data)) != size) {
		err = errors.New("not what was promised")
	}
	return io.NopCloser(bytes.NewReader(data)), err
}

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func keys(t *testing.T, list ...*packagestest.Key) *signature.Keys {
	t.Helper()
	var all []byte
	for _, k := range list {
		all = append(all, k.Public(t)...)
	}
	read, err := signature.ReadKeys(all)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func suite() packagestest.Suite {
	return packagestest.Suite{
		Name: "bookworm", Archs: []string{"amd64"}, Date: now().Add(-time.Hour), Until: now().Add(24 * time.Hour),
		Debs: []packagestest.Deb{
			{
				Name: "kk-app", Version: "1:2.0-1", Arch: "amd64",
				Fields: "Pre-Depends: kk-pre\nDepends: kk-lib (>= 3)\nProvides: kk-virtual (= 7)\n",
			},
			{Name: "kk-lib", Version: "3.1", Arch: "all", Fields: "Essential: yes\n"},
		},
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	trusted, other := packagestest.NewKey(t, now().Add(-48*time.Hour), 0),
		packagestest.NewKey(t, now().Add(-48*time.Hour), 0)
	expired := packagestest.NewKey(t, now().Add(-48*time.Hour), 24*time.Hour)
	for name, c := range map[string]struct {
		change  func(*packagestest.Suite)
		signers []*packagestest.Key
		repo    func(*deb.Repository)
		damage  string // a file below dists/bookworm
		want    string // in the error; "" for none
	}{
		"good":               {},
		"several signatures": {signers: []*packagestest.Key{other, trusted}},
		"unknown key":        {signers: []*packagestest.Key{other}, want: "no given key signed it"},
		"expired key":        {signers: []*packagestest.Key{expired}, want: "has expired"},
		"expired key allowed": {
			signers: []*packagestest.Key{expired},
			repo:    func(r *deb.Repository) { r.Keys.AllowExpired = true },
		},
		"expired": {
			change: func(s *packagestest.Suite) { s.Until = now().Add(-time.Minute) },
			want:   "allowExpired: true",
		},
		"expired but allowed": {
			change: func(s *packagestest.Suite) { s.Until = now().Add(-time.Minute) },
			repo:   func(r *deb.Repository) { r.AllowExpired = true },
		},
		"of tomorrow": {
			change: func(s *packagestest.Suite) { s.Date = now().Add(48 * time.Hour) },
			want:   "set this machine's clock",
		},
		"another suite": {
			change: func(s *packagestest.Suite) { s.Name = "trixie" },
			repo:   func(r *deb.Repository) { r.Suite = "../dists/trixie/." }, want: "the wrong suite",
		},
		"another architecture": {
			repo: func(r *deb.Repository) { r.Arch = "arm64" },
			want: "not published for arm64, only for amd64",
		},
		"another component": {
			repo: func(r *deb.Repository) { r.Components = []string{"contrib"} },
			want: "no component contrib",
		},
		"changed text": {damage: "InRelease", want: "signature"},
		"changed list": {damage: "main/binary-amd64/by-hash/SHA256/*", want: "not what was promised"},
		"not signed":   {repo: func(r *deb.Repository) { r.Keys = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, signers, dir := suite(), c.signers, t.TempDir()
			if c.change != nil {
				c.change(&s)
			}
			if signers == nil {
				signers = []*packagestest.Key{trusted}
			}
			s.Write(t, dir, signers...)
			r := deb.Repository{
				URL: "https://deb.example", Suite: "bookworm", Components: []string{"main"},
				Arch: "amd64", Keys: keys(t, trusted, expired),
			}
			if c.repo != nil {
				c.repo(&r)
			}
			if c.damage != "" {
				flip(t, filepath.Join(dir, "dists/bookworm", c.damage))
			}
			u := packages.NewUniverse(deb.Format{Arch: "amd64"})
			notes, err := r.Load(t.Context(), directory(dir), u, now())
			if c.want == "" && (err != nil || u.Len() != 2) {
				t.Errorf("%d packages, %v", u.Len(), err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if remarked := slices.Contains(notes,
				"https://deb.example bookworm is unsigned"); remarked != (r.Keys == nil) || len(notes) > 1 {
				t.Errorf("remarks %q", notes)
			}
		})
	}
}

// TestForms reads the forms in which apt's users publish repositories.
func TestForms(t *testing.T) {
	t.Parallel()
	trusted := packagestest.NewKey(t, now().Add(-48*time.Hour), 0)
	const at = "dists/bookworm/"
	for name, c := range map[string]struct {
		archs    []string
		change   func(t *testing.T, dir string)
		repo     func(*deb.Repository)
		packages int
		want     string // in the error; "" for none
	}{
		"Release.gpg instead of InRelease": {change: withReleaseGPG(trusted), packages: 2},
		"Release.gpg of another text": {change: func(t *testing.T, dir string) {
			t.Helper()
			withReleaseGPG(trusted)(t, dir)
			flip(t, filepath.Join(dir, at, "Release"))
		}, want: "Release.gpg: "},
		"Release without signature": {change: removes(at + "InRelease"), want: "Release.gpg: "},
		"no Release at all": {
			change: removes(at+"InRelease", at+"Release"),
			want:   "allowUnsigned: true",
		},
		"unsigned, InRelease alone":   {change: removes(at + "Release"), repo: unsigned, packages: 2},
		"unsigned, no Release at all": {change: plainLists(at), repo: unsigned, packages: 2},
		"unsigned, nothing": {
			change: removes("dists"), repo: unsigned,
			want: "check the address and the suite",
		},
		"flat, no Release at all":          {change: flat(".gz"), repo: flatUnsigned, packages: 2},
		"flat, no Release, plain list":     {change: flat(""), repo: flatUnsigned, packages: 2},
		"lists of all architectures alone": {archs: []string{"all"}, packages: 1},
		"no list by hash":                  {change: plainLists(""), packages: 2},
		"gzip is not there":                {change: without("Packages.gz"), packages: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir := suite(), t.TempDir()
			if c.archs != nil {
				s.Archs = c.archs
			}
			s.Write(t, dir, trusted)
			if c.change != nil {
				c.change(t, dir)
			}
			r := deb.Repository{
				URL: "https://deb.example", Suite: "bookworm", Components: []string{"main"},
				Arch: "amd64", Keys: keys(t, trusted),
			}
			if c.repo != nil {
				c.repo(&r)
			}
			u := packages.NewUniverse(deb.Format{Arch: "amd64"})
			_, err := r.Load(t.Context(), directory(dir), u, now())
			if c.want == "" && (err != nil || u.Len() != c.packages) {
				t.Errorf("%d packages, want %d; %v", u.Len(), c.packages, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func unsigned(r *deb.Repository) { r.Keys = nil }

func flatUnsigned(r *deb.Repository) { r.Keys, r.Suite, r.Components = nil, "./", nil }

func removes(names ...string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		for _, name := range names {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func withReleaseGPG(key *packagestest.Key) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		at := filepath.Join(dir, "dists/bookworm")
		text, err := os.ReadFile(filepath.Join(at, "Release"))
		if err != nil {
			t.Fatal(err)
		}
		removes("InRelease")(t, at)
		packagestest.WriteFile(t, filepath.Join(at, "Release.gpg"), key.Detached(t, text))
	}
}

// each calls f with the content of every list under its names in the Release.
func each(t *testing.T, dir string, f func(name string, data []byte)) {
	t.Helper()
	at := filepath.Join(dir, "dists/bookworm")
	release, err := os.ReadFile(filepath.Join(at, "Release"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(release)) {
		if field := strings.Fields(line); len(field) == 3 && strings.Contains(field[2], "/Packages") {
			data, err := os.ReadFile(filepath.Join(at, filepath.Dir(field[2]), "by-hash/SHA256", field[0]))
			if err != nil {
				t.Fatal(err)
			}
			f(field[2], data)
		}
	}
}

// plainLists moves lists from their hashes to their names, and removes the Release below a directory if one is named.
func plainLists(release string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		each(t, dir, func(name string, data []byte) {
			packagestest.WriteFile(t, filepath.Join(dir, "dists/bookworm", name), data)
		})
		removes("dists/bookworm/main/binary-amd64/by-hash")(t, dir)
		if release != "" {
			removes(release+"Release", release+"InRelease")(t, dir)
		}
	}
}

// without removes a form of the lists.
func without(form string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		each(t, dir, func(name string, data []byte) {
			if filepath.Base(name) == form {
				sum := sha256.Sum256(data)
				removes(filepath.Join("dists/bookworm", filepath.Dir(name), "by-hash/SHA256",
					hex.EncodeToString(sum[:])))(t, dir)
			}
		})
	}
}

// flat leaves a list alone beside the packages, as dpkg-scanpackages writes it.
func flat(form string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		each(t, dir, func(name string, data []byte) {
			if filepath.Base(name) == "Packages"+form {
				packagestest.WriteFile(t, filepath.Join(dir, "Packages"+form), data)
			}
		})
		removes("dists")(t, dir)
	}
}

// flip changes a letter in the middle of a file, by pattern.
func flip(t *testing.T, pattern string) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v", pattern, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(data, []byte("test")); i >= 0 {
			data[i] = 'T'
		} else {
			data[len(data)/2] ^= 1
		}
		packagestest.WriteFile(t, name, data)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("ab", 32)
	good := "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: ./../x/a.deb\nSize: 3\nSHA256: " + sum +
		"\nDepends: b (>= 1),\n c | d:any, e:i386\nDescription: x\n .\n y\n\n# comment\nPackage: foreign\nArchitecture: i386\n"
	var all []*packages.Package
	add := func(p *packages.Package) error {
		all = append(all, p)
		return nil
	}
	if err := deb.Read(strings.NewReader(good), "amd64", "https://deb.example/debian", add); err != nil ||
		len(all) != 1 {
		t.Fatalf("%d packages, %v", len(all), err)
	}
	if all[0].Address != "https://deb.example/debian/x/a.deb" {
		t.Errorf("address %s", all[0].Address)
	}
	d, err := deb.Format{Arch: "amd64"}.Dependencies(all[0])
	if err != nil || len(d.Requires) != 3 || d.Requires[0].String() != "b (>= 1)" ||
		d.Requires[1].String() != "c | d" || d.Requires[2].String() != "e:i386" {
		t.Errorf("dependencies %v, %v", d.Requires, err)
	}
	for name, bad := range map[string]string{
		"no field":      "Package\n",
		"twice":         "Package: a\nPackage: b\n",
		"begins inside": " x\n",
		"no end":        "Package: " + strings.Repeat("x", 2<<20),
	} {
		if err := deb.Read(strings.NewReader(bad), "amd64", "https://deb.example",
			func(*packages.Package) error { return nil }); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestHandMadeRelease reads a Release that somebody's script wrote: names as find prints them, and a date with Z.
func TestHandMadeRelease(t *testing.T) {
	t.Parallel()
	list := "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: a.deb\nSize: 3\nSHA256: " +
		strings.Repeat("ab", 32) + "\n"
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "dists/s/main/binary-amd64"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"main/binary-amd64/Packages": list,
		"Release": fmt.Sprintf("Date: Fri, 01 May 2026 10:00:00 Z\nSHA256:\n %x %d ./main/binary-amd64/Packages\n",
			sha256.Sum256([]byte(list)), len(list)),
	} {
		if err := os.WriteFile(filepath.Join(dir, "dists/s", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u := packages.NewUniverse(deb.Format{Arch: "amd64"})
	r := deb.Repository{URL: "https://deb.example", Suite: "s", Components: []string{"main"}, Arch: "amd64"}
	if _, err := r.Load(t.Context(), directory(dir), u, now()); err != nil || u.Len() != 1 {
		t.Errorf("%d packages, %v", u.Len(), err)
	}
}

// TestNameless reads lists with packages that nobody can ask for, and odd text in fields that are not in use.
func TestNameless(t *testing.T) {
	t.Parallel()
	good := "Package: good\nVersion: 1\nArchitecture: amd64\nFilename: a/g++ 1.deb\nSize: 3\nSHA256: " +
		strings.Repeat("ab", 32) + "\n"
	for what, odd := range map[string]string{
		"no name":    "Version: 1\nArchitecture: amd64\n",
		"no version": "Package: odd\nArchitecture: amd64\n",
		"name":       "Package: K\xc3\xa4se\nVersion: 1\nArchitecture: amd64\n",
		"control":    "Package: odd\nVersion: 1\nArchitecture: i386\nDescription: page\x0cbreak\n \x1b[1mbold\n",
	} {
		var got []*packages.Package
		err := deb.Read(strings.NewReader(odd+"\n"+good), "amd64", "https://deb.example",
			func(p *packages.Package) error { got = append(got, p); return nil })
		if err != nil || len(got) != 1 || got[0].Name != "good" {
			t.Errorf("%s: %d packages, %v", what, len(got), err)
			continue
		}
		if want := "https://deb.example/a/g%2B%2B%201.deb"; got[0].Address != want || got[0].File() != "g++ 1.deb" {
			t.Errorf("address %s of %q, want %s: to Amazon's S3 a plus is a blank", got[0].Address, got[0].File(), want)
		}
	}
	if err := deb.Read(strings.NewReader("Package: a\x1b\nVersion: 1\n"), "amd64", "https://deb.example",
		func(*packages.Package) error { return nil }); err == nil {
		t.Error("a control character in a name was read")
	}
}

// TestUnusable reads lists with an odd package: it cannot be chosen, and the others can.
func TestUnusable(t *testing.T) {
	t.Parallel()
	paragraph := func(name string) string {
		return "Package: " + name + "\nVersion: 1\nArchitecture: amd64\nFilename: " + name + ".deb\nSize: 3\nSHA256: " +
			strings.Repeat("ab", 32) + "\nProvides: v (= 1)\n\n"
	}
	for name, odd := range map[string]string{
		"no hash":         strings.Replace(paragraph("odd"), "SHA256", "MD5", 1),
		"no size":         strings.Replace(paragraph("odd"), "Size: 3", "Size: x", 1),
		"no package file": strings.Replace(paragraph("odd"), "odd.deb", "odd.sh", 1),
		"bad provides":    strings.Replace(paragraph("odd"), "(= 1)", "(= 1", 1),
	} {
		u := packages.NewUniverse(deb.Format{Arch: "amd64"})
		err := deb.Read(strings.NewReader(odd+paragraph("good")), "amd64", "https://deb.example",
			func(p *packages.Package) error { u.Add(p); return nil })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := u.Solve(packages.Request{Install: []string{"good"}}); err != nil || len(got.Packages) != 1 {
			t.Errorf("%s: the other package: %v", name, err)
		}
		if _, err := u.Solve(packages.Request{Install: []string{"odd"}}); err == nil ||
			!strings.Contains(err.Error(), "odd") {
			t.Errorf("%s: it was chosen: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("Package: a\nVersion: 1\nArchitecture: amd64\nFilename: a.deb\nSize: 3\nSHA256: " + strings.Repeat("ab", 32) +
		"\nDepends: b (>= 1), c | d:any\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		_ = deb.Read(strings.NewReader(text), "amd64", "https://deb.example", func(p *packages.Package) error {
			if strings.Contains(p.Address, "/../") || !strings.HasPrefix(p.Address, "https://deb.example/") {
				t.Errorf("address %q", p.Address)
			}
			_, err := deb.Format{Arch: "amd64"}.Dependencies(p)
			return err
		})
	})
}
