package serve_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// needs skips a test where a program is missing, and says which.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// run runs a program and returns what it printed.
func run(t *testing.T, dir, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "no_proxy=127.0.0.1",
		"NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustRun(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	out, err := run(t, dir, program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// buildDeb makes a package with dpkg-deb.
func buildDeb(t *testing.T, compression, name, version, fields string) []byte {
	t.Helper()
	dir := t.TempDir()
	write(t, dir+"/tree/DEBIAN/control",
		fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: A <a@example.org>\n%sDescription: test\n of a package\n .\n in paragraphs\n", name, version, fields), 0o600)
	write(t, dir+"/tree/usr/share/kk/"+name, version, 0o600)
	mustRun(t, dir, "chmod", "-R", "a+rX", "tree")
	mustRun(t, dir, "dpkg-deb", "--root-owner-group", "-Z"+compression, "-b", "tree", "it.deb")
	data, err := os.ReadFile(dir + "/it.deb")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// aptOptions are those of an apt that knows our server only, and a root that has nothing.
func aptOptions(t *testing.T, source string) []string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{
		"etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d",
		"var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "var/lib/dpkg",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root+"/var/lib/dpkg/status", "", 0o600)
	write(t, root+"/etc/apt/sources.list", source, 0o600)
	return []string{
		"-o", "Dir=" + root, "-o", "Dir::State::status=" + root + "/var/lib/dpkg/status", "-o",
		"APT::Architecture=amd64", "-o", "APT::Architectures=amd64",
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Proxy=DIRECT", "-o", "Acquire::Retries=0", "-o",
		"APT::Get::Assume-Yes=true",
	}
}

// TestApt has apt install a package and what it depends on, with no other source than this one.
func TestApt(t *testing.T) {
	t.Parallel()
	needs(t, "apt-get", "dpkg-deb")
	b := bundletest.NewBuilder(t)
	debs := map[string][]byte{
		"https://deb.example/pool/main/a/app_1%3a2.0~rc1+b1_all.deb": buildDeb(t, "xz", "kk-app", "1:2.0~rc1+b1",
			"Depends: kk-lib (>= 3)\n"),
		"https://deb.example/pool/main/l/kk-lib_3.1_all.deb": buildDeb(t, "zstd", "kk-lib", "3.1",
			"Depends: kk-odd, kk-query\n"),
		"https://deb.example/pool/main/l/kk-lib_2.0_all.deb":     buildDeb(t, "gzip", "kk-lib", "2.0", ""),
		"https://other.example/odd dir/100%25/k'k&odd_1_all.deb": buildDeb(t, "none", "kk-odd", "1", ""),
		"https://other.example/get?file=kk-query_1_all.deb": buildDeb(t, "xz", "kk-query", "1",
			"Filename: ../../elsewhere\nSHA256: 00\n"),
	}
	for ref, content := range debs {
		b.File(ref, "kk-query_1_all.deb", nil, content)
	}
	b.File("https://other.example/broken_1_all.deb", "broken_1_all.deb", nil, []byte("!<arch>\nbroken"))
	s := start(t, serve.Options{}, b.Bundle().Path)
	for name, source := range map[string]string{
		"slash": "deb [trusted=yes] " + s.URL + "/apt/ /",
		"dot":   "deb [trusted=yes] " + s.URL + "/apt ./",
	} {
		t.Run(name, func(t *testing.T) {
			options := aptOptions(t, source+"\n")
			out := mustRun(t, "", "apt-get", append(options, "update")...)
			if strings.Contains(out, "W:") || strings.Contains(out, "E:") {
				t.Errorf("apt-get update:\n%s", out)
			}
			out = mustRun(t, "", "apt-get", append(options, "install", "--download-only", "kk-app")...)
			root, _ := strings.CutPrefix(options[1], "Dir=")
			got, err := filepath.Glob(root + "/var/cache/apt/archives/*.deb")
			if err != nil || len(got) != 4 {
				t.Errorf("apt downloaded %q:\n%s", got, out)
			}
			for _, path := range got {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, want := range debs {
					found = found || bytes.Equal(data, want)
				}
				if !found {
					t.Errorf("%s is another file", path)
				}
			}
			if show := mustRun(t, "", "apt-cache", append(options, "show", "kk-app")...); !strings.Contains(show,
				" in paragraphs") || !strings.Contains(show, "Version: 1:2.0~rc1+b1") {
				t.Errorf("apt-cache show:\n%s", show)
			}
		})
	}
	t.Run("a directory of its own", func(t *testing.T) {
		options := aptOptions(t, "")
		root, _ := strings.CutPrefix(options[1], "Dir=")
		r := s.ask(t, "GET", "/apt/deb.example/pool/kkbundle.sources")
		write(t, root+"/etc/apt/sources.list.d/kkbundle.sources", string(r.body), 0o600)
		mustRun(t, "", "apt-get", append(options, "update")...)
		if out := mustRun(t, "", "apt-cache", append(options, "pkgnames")...); strings.Contains(out, "kk-query") ||
			!strings.Contains(out, "kk-app") {
			t.Errorf("it has\n%s", out)
		}
		if out, err := run(t, "", "apt-get", append(options, "install", "--download-only", "kk-app")...); err == nil ||
			!strings.Contains(out, "kk-odd") {
			t.Errorf("what a dependency needs is elsewhere, and apt said %v\n%s", err, out)
		}
	})
	t.Run("installed", func(t *testing.T) {
		needs(t, "dpkg")
		if os.Getuid() != 0 {
			t.Skip("dpkg installs as root only")
		}
		options := aptOptions(t, "deb [trusted=yes] "+s.URL+"/apt/ /\n")
		root, _ := strings.CutPrefix(options[1], "Dir=")
		mustRun(t, "", "apt-get", append(options, "update")...)
		for _, file := range []string{
			"var/lib/dpkg/available", "var/lib/dpkg/info/x", "var/lib/dpkg/updates/x",
			"var/log/dpkg.log",
		} {
			write(t, filepath.Join(root, file), "", 0o600)
		}
		for _, file := range []string{"info/x", "updates/x"} {
			if err := os.Remove(filepath.Join(root, "var/lib/dpkg", file)); err != nil {
				t.Fatal(err)
			}
		}
		mustRun(t, "", "apt-get", append(options, "-o", "DPkg::Options::=--root="+root, "-o", "DPkg::Options::=--log="+
			root+"/dpkg.log", "install", "kk-app")...)
		for _, name := range []string{"kk-app", "kk-lib", "kk-odd", "kk-query"} {
			if _, err := os.Stat(filepath.Join(root, "usr/share/kk", name)); err != nil {
				t.Error(err)
			}
		}
	})
	if r := s.ask(t, "GET", "/apt/Packages"); strings.Contains(string(r.body), "elsewhere") ||
		strings.Count(string(r.body), "\nFilename: ") != 5 {
		t.Errorf("Packages:\n%s", r.body)
	}
	if log := s.log.String(); !strings.Contains(log, "a package is left out") ||
		!strings.Contains(log, "broken_1_all.deb") {
		t.Errorf("the broken package is not in the log:\n%s", log)
	}
}

// buildRPMs makes packages with rpmbuild, by name.
func buildRPMs(t *testing.T, specs map[string]string) map[string][]byte {
	t.Helper()
	dir, all := t.TempDir(), make(map[string][]byte)
	for name, fields := range specs {
		write(t, dir+"/"+name+".spec",
			fmt.Sprintf("Name: %s\nRelease: 1\nSummary: test <&> of \"%s\"\nLicense: MIT\nBuildArch: noarch\n%s\n%%description\nüber\n"+
				"%%install\nmkdir -p %%{buildroot}/etc/kk %%{buildroot}/usr/share/kk\necho x > %%{buildroot}/etc/kk/%s.conf\necho y > %%{buildroot}/usr/share/kk/%s\n"+
				"%%files\n/etc/kk\n/usr/share/kk/%s\n%%changelog\n* Mon Jan 06 2025 A <a@example.org> - 1-1\n- first\n",
				name, name, fields, name, name, name), 0o600)
		mustRun(t, dir, "rpmbuild", "-bb", "--define", "_topdir "+dir, "--define", "_rpmdir "+dir+"/out", name+".spec")
	}
	paths, err := filepath.Glob(dir + "/out/noarch/*.rpm")
	if err != nil || len(paths) != len(specs) {
		t.Fatalf("%q: %v", paths, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = data
	}
	return all
}

// TestDnf has dnf download a package and what it depends on, by name, by version and by path, with no other source
// than this one, and compares what the repository says with createrepo_c.
func TestDnf(t *testing.T) {
	t.Parallel()
	needs(t, "rpmbuild")
	rpms := buildRPMs(t, map[string]string{
		"kk-app":  "Version: 2.0~rc1\nEpoch: 1\nRequires: kk-lib >= 3\nRequires: /usr/share/kk/kk-file\nRequires: (kk-rich or kk-none)\nRecommends: kk-weak\nRequires(post): kk-post = 1-1",
		"kk-lib":  "Version: 3.1\nProvides: kk-virtual = 7\nObsoletes: kk-old < 2\nConflicts: kk-foe",
		"kk-file": "Version: 1", "kk-rich": "Version: 1", "kk-weak": "Version: 1", "kk-post": "Version: 1",
	})
	b := bundletest.NewBuilder(t)
	for name, content := range rpms {
		b.File("https://rpm.example/os%20$x+1%2525/"+name, name, nil, content)
	}
	b.File("https://rpm.example/broken.rpm", "broken.rpm", nil, []byte("\xed\xab\xee\xdb broken"))
	s := start(t, serve.Options{}, b.Bundle().Path)
	t.Run("dnf", func(t *testing.T) {
		needs(t, "dnf")
		root := t.TempDir()
		r := s.ask(t, "GET", "/yum/rpm.example/kkbundle.repo")
		write(t, root+"/repos/kkbundle.repo", string(r.body), 0o600)
		options := []string{"--installroot", root + "/root", "--releasever", "1", "--setopt", "reposdir=" + root +
			"/repos", "--setopt", "cachedir=" + root + "/cache", "-y"}
		out := mustRun(t, "", "dnf", append(options, "install", "--downloadonly", "--destdir", root+"/got",
			"kk-app")...)
		for name, want := range rpms {
			if got, err := os.ReadFile(root + "/got/" + name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
		if out := mustRun(t, "", "dnf", append(options, "-q", "repoquery", "--whatprovides",
			"kk-virtual = 7")...); strings.TrimSpace(out) != "kk-lib-0:3.1-1.noarch" {
			t.Errorf("kk-virtual is provided by %q", out)
		}
		if out := mustRun(t, "", "dnf", append(options, "-q", "repoquery", "--changelogs",
			"kk-lib")...); !strings.Contains(out, "- first") {
			t.Errorf("its changelog is %q", out)
		}
	})
	t.Run("createrepo_c", func(t *testing.T) {
		needs(t, "createrepo_c")
		dir := t.TempDir()
		for name, content := range rpms {
			write(t, dir+"/"+name, string(content), 0o600)
		}
		mustRun(t, dir, "createrepo_c", "--simple-md-filenames", "--quiet", ".")
		ours := repodata(t, func(path string) []byte { return s.ask(t, "GET", "/yum/rpm.example/"+path).body })
		theirs := repodata(t, func(path string) []byte {
			data, err := os.ReadFile(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			return data
		})
		for kind, want := range theirs {
			if got := ours[kind]; got != want {
				t.Errorf("%s:\n%s\nwant\n%s", kind, got, want)
			}
		}
	})
	if log := s.log.String(); !strings.Contains(log, "a package is left out") || !strings.Contains(log, "broken.rpm") {
		t.Errorf("the broken package is not in the log:\n%s", log)
	}
}

// repodata reads a repository, checks what repomd.xml promises, and returns its lists with one element a line, in one
// order, without what may differ: places and times of files, and what is told about no package.
func repodata(t *testing.T, read func(path string) []byte) map[string]string {
	t.Helper()
	var repomd struct {
		Data []struct {
			Type     string `xml:"type,attr"`
			Checksum string `xml:"checksum"`
			Open     string `xml:"open-checksum"`
			Location struct {
				Href string `xml:"href,attr"`
			} `xml:"location"`
			Size     int `xml:"size"`
			OpenSize int `xml:"open-size"`
		} `xml:"data"`
	}
	if err := xml.Unmarshal(read("repodata/repomd.xml"), &repomd); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, d := range repomd.Data {
		if d.Type != "primary" && d.Type != "filelists" && d.Type != "other" {
			continue
		}
		data := read(d.Location.Href)
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", d.Location.Href, err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) != d.Size || digest.FromBytes(data).Encoded() != d.Checksum || len(plain) != d.OpenSize ||
			digest.FromBytes(plain).Encoded() != d.Open {
			t.Errorf("%s is not what repomd.xml says", d.Location.Href)
		}
		all[d.Type] = canonical(t, plain)
	}
	return all
}

// canonical has every element with its attributes and text on a line of its own, sorted among its siblings.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	var root element
	if err := xml.Unmarshal(text, &root); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return root.lines("")
}

type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func (e element) lines(indent string) string {
	if e.XMLName.Local == "location" || e.XMLName.Local == "time" { // the file's own time is that of its copy
		return ""
	}
	head := indent + e.XMLName.Space + " " + e.XMLName.Local
	var attrs, children []string
	for _, a := range e.Attrs {
		if a.Name.Space != "xmlns" && a.Name.Local != "xmlns" {
			attrs = append(attrs, " "+a.Name.Local+"="+a.Value)
		}
	}
	slices.Sort(attrs)
	for _, c := range e.Children {
		children = append(children, c.lines(indent+" "))
	}
	slices.Sort(children)
	return head + strings.Join(attrs, "") + " " + strings.TrimSpace(e.Text) + "\n" + strings.Join(children, "")
}

// plainDeb makes a package without dpkg-deb: its control member is not compressed, and its data is payload.
func plainDeb(t *testing.T, name, version string, payload []byte) []byte {
	t.Helper()
	var files, ar bytes.Buffer
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nDescription: test\n", name, version)
	w := tar.NewWriter(&files)
	err := w.WriteHeader(&tar.Header{Name: "./control", Size: int64(len(control)), Mode: 0o644, Typeflag: tar.TypeReg})
	if err == nil {
		_, err = io.WriteString(w, control)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	ar.WriteString("!<arch>\n")
	for _, m := range []struct {
		name    string
		content []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar", files.Bytes()}, {"data.tar", payload}} {
		fmt.Fprintf(&ar, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", m.name, 0, 0, 0, 0o100644, len(m.content))
		ar.Write(m.content)
	}
	return ar.Bytes()
}

// TestPackages holds what a repository's files promise of each other, which repositories there are, and that a
// package whose content was replaced is not described.
func TestPackages(t *testing.T) {
	t.Parallel()
	one, two := plainDeb(t, "one", "1", nil), plainDeb(t, "two", "2", randomBytes(1, 2*frameSize))
	b := bundletest.NewBuilder(t)
	b.File("https://deb.example/a/one_1_all.deb", "one", nil, one)
	b.File("https://mirror.example/one_1_all.deb", "one", nil, one)
	b.File("https://deb.example/b/two_2_all.deb", "two", nil, two)
	b.File("https://deb.example/b/nothing.txt", "nothing", nil, []byte("x"))
	path := copyFile(t, b.Bundle().Path)
	s := start(t, serve.Options{}, path)
	for dir, want := range map[string][]string{
		"":               {"deb.example/a/one_1_all.deb", "deb.example/b/two_2_all.deb"},
		"deb.example/":   {"a/one_1_all.deb", "b/two_2_all.deb"},
		"deb.example/b/": {"two_2_all.deb"}, "mirror.example/": {"one_1_all.deb"},
	} {
		release := string(s.ask(t, "GET", "/apt/"+dir+"Release").body)
		for _, name := range []string{"Packages", "Packages.gz"} {
			r := s.ask(t, "GET", "/apt/"+dir+name)
			sum := digest.FromBytes(r.body).Encoded()
			if line := fmt.Sprintf(" %s %d %s\n", sum, len(r.body), name); r.StatusCode != 200 ||
				!strings.Contains(release, line) {
				t.Errorf("%s%s: %s; Release lacks %s:\n%s", dir, name, r.Status, line, release)
			}
			if hashed := s.ask(t, "GET", "/apt/"+dir+"by-hash/SHA256/"+sum); !bytes.Equal(hashed.body, r.body) {
				t.Errorf("%s%s by its digest: %s", dir, name, hashed.Status)
			}
			if head := s.ask(t, "HEAD", "/apt/"+dir+name); head.StatusCode != 200 ||
				head.ContentLength != int64(len(r.body)) {
				t.Errorf("HEAD %s%s: %s, %d bytes", dir, name, head.Status, head.ContentLength)
			}
		}
		var have []string
		for line := range strings.SplitSeq(string(s.ask(t, "GET", "/apt/"+dir+"Packages").body), "\n") {
			if name, ok := strings.CutPrefix(line, "Filename: "); ok {
				have = append(have, name)
			}
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s has %q, want %q", dir, have, want)
		}
		for _, name := range want {
			r := s.ask(t, "GET", "/apt/"+dir+name, "Range: bytes=0-7")
			if r.StatusCode != 206 || string(r.body) != "!<arch>\n" {
				t.Errorf("%s%s: %s", dir, name, r.Status)
			}
		}
		if r := s.ask(t, "GET", "/apt/"+dir+"kkbundle.sources"); !strings.Contains(string(r.body), "\nURIs: "+s.URL+
			"/apt/"+dir+"\n") {
			t.Errorf("%s: %s", dir, r.body)
		}
		if r := s.ask(t, "GET", "/apt/"+dir); r.StatusCode != 200 ||
			!strings.Contains(string(r.body), "apt-get update") {
			t.Errorf("%s: %s", dir, r.Status)
		}
	}
	for _, path := range []string{
		"/apt/none/Packages", "/apt/none/", "/apt/InRelease", "/apt/Release.gpg", "/apt/by-hash/SHA256/" +
			strings.Repeat("0", 64), "/apt/by-hash/SHA256/../Release",
		"/apt/deb.example/b/nothing.txt", "/apt/deb.example", "/apt/none/kkbundle.sources",
		"/yum/none/repodata/repomd.xml", "/yum/repodata/", "/yum/repodata/none-primary.xml.gz",
	} {
		if r := s.ask(t, "GET", path); r.StatusCode != 404 && r.StatusCode != 307 {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	if r := s.ask(t, "GET", "/yum/repodata/repomd.xml"); r.StatusCode != 200 { // a repository of nothing is one
		t.Errorf("the empty repository: %s", r.Status)
	}
	bundletest.Forge(t, path, two)
	s = start(t, serve.Options{}, path)
	if list := string(s.ask(t, "GET", "/apt/Packages").body); strings.Contains(list, "Package: two") ||
		!strings.Contains(list, "Package: one") {
		t.Errorf("with a forged package:\n%s", list)
	}
	if log := s.log.String(); !strings.Contains(log, "a package is left out") ||
		!strings.Contains(log, "content has digest") {
		t.Errorf("the log does not say why:\n%s", log)
	}
}
