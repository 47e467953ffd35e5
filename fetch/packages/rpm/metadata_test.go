package rpm

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/packages"
)

const primary = `<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="2">
<package type="rpm"><name>kk-app</name><arch>x86_64</arch><version epoch="1" ver="2.0" rel="3.el9"/>
<checksum type="sha256" pkgid="YES">0000000000000000000000000000000000000000000000000000000000000000</checksum>
<size package="10" installed="20" archive="30"/><location href="Packages/k/kk-app.rpm"/>
<format><rpm:provides><rpm:entry name="kk-app" flags="EQ" epoch="1" ver="2.0" rel="3.el9"/><rpm:entry name="kk-v" flags="EQ" epoch="0" ver="7"/></rpm:provides>
<rpm:requires><rpm:entry name="kk-lib" flags="GE" epoch="0" ver="3"/><rpm:entry name="rpmlib(X)"/><rpm:entry name="/usr/bin/kk"/><rpm:entry name="/bin/sh"/>
<rpm:entry name="(kk-a or kk-b &gt;= 2)"/><rpm:entry name="(kk-c if kk-d)"/><rpm:entry name="(kk-e with kk-f)"/><rpm:entry name="(kk-g and kk-h)"/></rpm:requires>
<file>/usr/bin/app</file></format></package>
<package type="rpm"><name>foreign</name><arch>i686</arch></package>
</metadata>`

func TestReadPrimary(t *testing.T) {
	t.Parallel()
	var all []*packages.Package
	err := readPrimary(strings.NewReader(primary), "x86_64", "https://rpm.example/os",
		func(string) bool { return false }, func(p *packages.Package) error {
			all = append(all, p)
			return nil
		})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d packages, %v", len(all), err)
	}
	p := all[0]
	if p.Version != "1:2.0-3.el9" || p.Address != "https://rpm.example/os/Packages/k/kk-app.rpm" ||
		len(p.Provides) != 2 || p.Provides[1].Name != "/usr/bin/app" {
		t.Errorf("%+v", p)
	}
	d, err := Format{}.Dependencies(p)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range d.Requires {
		text := r.String()
		if r.If != nil {
			text += " if " + r.If.String()
		}
		got = append(got, text)
	}
	if text := strings.Join(got,
		", "); text != "kk-lib (>= 3), /usr/bin/kk, /bin/sh | /usr/bin/sh, kk-a | kk-b (>= 2), kk-c if kk-d, kk-e, kk-g, kk-h" {
		t.Error(text)
	}
	if len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "kk-e with kk-f") {
		t.Errorf("notes %q", d.Notes)
	}
}

// TestReadPrimaryForms: publishers also write SHA512, and text that is not UTF-8.
func TestReadPrimaryForms(t *testing.T) {
	t.Parallel()
	long := strings.Replace(strings.Replace(primary, "0000000000<", strings.Repeat("0", 74)+"<", 1), `"sha256"`, `"sha512"`, 1)
	old := strings.Replace(strings.Replace(primary, "UTF-8", "ISO-8859-1", 1), "/usr/bin/app", "/usr/bin/\xe4pp", 1)
	for text, file := range map[string]string{long: "/usr/bin/app", old: "/usr/bin/äpp"} {
		var all []*packages.Package
		err := readPrimary(strings.NewReader(text), "x86_64", "https://rpm.example/os",
			func(string) bool { return false }, func(p *packages.Package) error {
				all = append(all, p)
				return nil
			})
		if err != nil || len(all) != 1 || all[0].Unusable != nil || all[0].Provides[1].Name != file {
			t.Errorf("%s: %+v, %v", text[:60], all, err)
		}
	}
	err := readPrimary(strings.NewReader(strings.Replace(primary, "UTF-8", "KOI8-R", 1)), "x86_64",
		"https://rpm.example", func(string) bool { return false }, func(*packages.Package) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "KOI8-R") {
		t.Errorf("another encoding: %v", err)
	}
}

func TestReadPrimaryDamaged(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"cut off": primary[:len(primary)/2],
		"an entity": strings.Replace(strings.Replace(primary, "<metadata", "<!DOCTYPE m [<!ENTITY a \"b\">]><metadata",
			1),
			"kk-app<", "&a;<", 1),
	} {
		err := readPrimary(strings.NewReader(bad), "x86_64", "https://rpm.example", func(string) bool { return false },
			func(*packages.Package) error { return nil })
		if err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestLocations reads the places of packages that publishers write.
func TestLocations(t *testing.T) {
	t.Parallel()
	const location = `<location href="Packages/k/kk-app.rpm"/>`
	for name, c := range map[string]struct{ base, location, address, unusable string }{
		"below": {
			location: `<location href="./a/x.rpm"/>`,
			address:  "https://rpm.example/el9/os/a/x.rpm",
		},
		"beside":            {location: `<location href="../p/x.rpm"/>`, address: "https://rpm.example/el9/p/x.rpm"},
		"outside":           {location: `<location href="../../../x.rpm"/>`, unusable: "leads out"},
		"outside, and back": {location: `<location href="../../../el9/x.rpm"/>`, unusable: "leads out"},
		"characters":        {location: `<location href="x-1.0^git+1 é.rpm"/>`, unusable: "invalid file name"},
		"caret and plus": {
			location: `<location href="x-1.0^git+1.rpm"/>`,
			address:  "https://rpm.example/el9/os/x-1.0%5Egit%2B1.rpm", // to Amazon's S3 a plus is a blank
		},
		"escaped":          {location: `<location href="a/x-1%2B1~2.rpm"/>`, address: "https://rpm.example/el9/os/a/x-1%2B1~2.rpm"},
		"no escape":        {location: `<location href="a/x-100%.rpm"/>`, address: "https://rpm.example/el9/os/a/x-100%25.rpm"},
		"outside, escaped": {location: `<location href="%2e%2e/%2e%2e/%2e%2e/x.rpm"/>`, unusable: "leads out"},
		"elsewhere": {
			location: `<location xml:base="http://cdn.example/pub/" href="a/x.rpm"/>`,
			address:  "http://cdn.example/pub/a/x.rpm",
		},
		"elsewhere, relative": {
			location: `<location xml:base="../pool" href="a/x.rpm"/>`,
			address:  "https://rpm.example/el9/pool/a/x.rpm",
		},
		"a whole address": {
			location: `<location href="https://cdn.example/a/x.rpm"/>`,
			address:  "https://cdn.example/a/x.rpm",
		},
		"a local file": {
			location: `<location xml:base="file:///etc" href="x.rpm"/>`,
			unusable: "invalid address",
		},
		"a login": {
			location: `<location xml:base="https://u:p@cdn.example/" href="x.rpm"/>`,
			unusable: "invalid address",
		},
		"of a disc": {
			location: `<location xml:base="media://1234.5#1" href="a/x.rpm"/>`,
			address:  "https://rpm.example/el9/os/a/x.rpm",
		},
		"in an image": {
			base:     "AppStream",
			location: `<location xml:base="http://cdn.example/" href="../p/x.rpm"/>`, address: "p/x.rpm",
		},
		"outside of an image": {base: "AppStream", location: `<location href="../../p/x.rpm"/>`, unusable: "leads out"},
		"none":                {location: `<location/>`, unusable: "no location"},
		"no package":          {location: `<location href="x.sh"/>`, unusable: "invalid file"},
	} {
		base := c.base
		if base == "" {
			base = "https://rpm.example/el9/os"
		}
		var got packages.Package
		err := readPrimary(strings.NewReader(strings.Replace(primary, location, c.location, 1)), "x86_64", base,
			func(string) bool { return false },
			func(p *packages.Package) error { got = *p; return nil })
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.unusable == "" && (got.Unusable != nil || got.Address != c.address):
			t.Errorf("%s: %q, %v; want %q", name, got.Address, got.Unusable, c.address)
		case c.unusable != "" && (got.Unusable == nil || !strings.Contains(got.Unusable.Error(), c.unusable)):
			t.Errorf("%s: %q, unusable: %v; want %q", name, got.Address, got.Unusable, c.unusable)
		}
	}
}

// TestNameless reads a list with packages that nobody can ask for, and what no package can require: the rest counts.
func TestNameless(t *testing.T) {
	t.Parallel()
	for what, odd := range map[string]string{
		"no name":       strings.Replace(primary, "<name>kk-app<", "<name><", 1),
		"name":          strings.Replace(primary, "<name>kk-app<", "<name>kk app?<", 1),
		"no version":    strings.Replace(primary, `ver="2.0" rel="3.el9"`, "", 1),
		"no capability": strings.Replace(primary, `entry name="kk-v"`, `entry name=""`, 1),
		"control":       strings.Replace(primary, `entry name="kk-v"`, `entry name="a&#10;b"`, 1),
	} {
		odd = strings.Replace(odd, "<name>foreign</name><arch>i686</arch>",
			`<name>good</name><arch>noarch</arch><version ver="1" rel="1"/><location href="good.rpm"/>`, 1)
		var names []string
		err := readPrimary(strings.NewReader(odd), "x86_64", "https://rpm.example",
			func(string) bool { return false }, func(p *packages.Package) error {
				names = append(names, p.Name)
				for _, r := range p.Provides {
					if !packages.IsCapability(r.Name) {
						t.Errorf("%s: provides %q", what, r.Name)
					}
				}
				return nil
			})
		if err != nil || names[len(names)-1] != "good" {
			t.Errorf("%s: %q, %v", what, names, err)
		}
	}
}

// TestUnusable reads a list with an odd package: it cannot be chosen, and the others can.
func TestUnusable(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]string{
		"sha1":           strings.Replace(primary, `checksum type="sha256"`, `checksum type="sha"`, 1),
		"outside":        strings.Replace(primary, "Packages/k/kk-app.rpm", "../../kk-app.rpm", 1),
		"no size":        strings.Replace(primary, `size package="10"`, `size package="x"`, 1),
		"bad dependency": strings.Replace(primary, `entry name="kk-lib"`, "entry name=\"kk\tlib\"", 1),
	} {
		const good = `<package type="rpm"><name>good</name><arch>x86_64</arch><version epoch="0" ver="1" rel="1"/>` +
			`<checksum type="sha256">0000000000000000000000000000000000000000000000000000000000000000</checksum><size package="1"/><location href="good.rpm"/></package>`
		u := packages.NewUniverse(Format{})
		err := readPrimary(strings.NewReader(strings.Replace(odd, "</metadata>", good+"</metadata>", 1)), "x86_64",
			"https://rpm.example",
			func(string) bool { return false }, func(p *packages.Package) error { u.Add(p); return nil })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := u.Solve(packages.Request{Install: []string{"good"}}); err != nil || len(got.Packages) != 1 {
			t.Errorf("%s: the other package: %v", name, err)
		}
		if _, err := u.Solve(packages.Request{Install: []string{"kk-app"}}); err == nil ||
			!strings.Contains(err.Error(), "package \"kk-app\"") &&
				!strings.Contains(err.Error(), "package kk-app") {
			t.Errorf("%s: it was chosen: %v", name, err)
		}
	}
}

func TestParseRepomd(t *testing.T) {
	t.Parallel()
	docs, err := parseRepomd([]byte(
		`<repomd><data type="primary"><checksum type="sha256"> ` + strings.Repeat("AB", 32) +
			` </checksum><location href="repodata/p.xml.gz"/><size>5</size></data></repomd>`))
	if err != nil || docs["primary"].Size != 5 ||
		docs["primary"].check() != nil {
		t.Errorf("%+v, %v", docs, err)
	}
	docs, err = parseRepomd([]byte(
		`<repomd><data type="primary"><checksum type="sha256">ab</checksum><location xml:base="https://cdn.example/r" href="p.xml.gz"/></data></repomd>`))
	if err != nil || docs["primary"].Size != -1 {
		t.Errorf("a list without a size: %+v, %v", docs, err)
	}
	if at, err := docs["primary"].Location.address("https://rpm.example"); err != nil ||
		at != "https://cdn.example/r/p.xml.gz" {
		t.Errorf("address %s, %v", at, err)
	}
	for _, bad := range []string{
		`<checksum type="md5">a</checksum><location href="p"/>`,
		`<checksum type="sha256">a</checksum><location href="../p"/>`, `<checksum type="sha256">a</checksum>`,
	} {
		docs, err := parseRepomd([]byte(`<repomd><data type="primary">` + bad + `</data></repomd>`))
		_, place := docs["primary"].Location.address("https://rpm.example")
		if err == nil && docs["primary"].check() == nil && place == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func FuzzReadPrimary(f *testing.F) {
	f.Add(primary)
	f.Fuzz(func(t *testing.T, text string) {
		_ = readPrimary(strings.NewReader(text), "x86_64", "https://rpm.example", func(string) bool { return false },
			func(p *packages.Package) error {
				if p.Unusable == nil && (strings.Contains(p.Address, "/../") ||
					!strings.HasPrefix(p.Address, "https://") &&
						!strings.HasPrefix(p.Address, "http://")) {
					t.Errorf("address %q", p.Address)
				}
				_, err := Format{}.Dependencies(p)
				return err
			})
	})
}

func FuzzParseRepomd(f *testing.F) {
	f.Add([]byte(`<repomd><data type="primary"><checksum type="sha256">ab</checksum><location href="repodata/p.xml.gz"/><size>5</size></data></repomd>`))
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := parseRepomd(data)
		for _, d := range docs {
			at, place := d.Location.address("https://rpm.example")
			if err == nil && d.check() == nil && place == nil && strings.Contains(at, "/../") {
				t.Errorf("%+v", d)
			}
		}
	})
}

// TestLargeElement bounds the memory for one package: parsing takes some 20 times the bytes.
func TestLargeElement(t *testing.T) {
	t.Parallel()
	huge := strings.Replace(primary, `<rpm:entry name="rpmlib(X)"/>`, strings.Repeat("<rpm:entry/>", (9<<20)/12), 1)
	err := readPrimary(strings.NewReader(huge), "x86_64", "https://rpm.example/os", func(string) bool { return false },
		func(*packages.Package) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "one element has more than 8 MiB") {
		t.Error(err)
	}
}
