package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
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

func program(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "no_proxy=127.0.0.1",
		"NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A packageSite is an upstream of packages and a directory with a manifest.
type packageSite struct {
	dir, upstream string // upstream is what the server has
	host          string
	cache         string
}

func newPackageSite(t *testing.T) *packageSite {
	t.Helper()
	s := &packageSite{dir: t.TempDir(), upstream: t.TempDir(), cache: t.TempDir()}
	server := httptest.NewServer(http.FileServer(http.Dir(s.upstream)))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	return s
}

// manifest writes one for packages, given as YAML.
func (s *packageSite) manifest(t *testing.T, packages string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: site, version: 1.0.0}\nplatforms: [linux/amd64, linux/arm64]\n"+
		"sources: [{host: %q, plainHTTP: true}]\npackages:\n%s", s.host, packages)
	packagestest.WriteFile(t, filepath.Join(s.dir, "manifest.yaml"), []byte(text))
}

// kkbundle runs a command about the manifest and returns what it said.
func (s *packageSite) kkbundle(t *testing.T, want int, command string, args ...string) string {
	t.Helper()
	args = append([]string{command, filepath.Join(s.dir, "manifest.yaml"), "--cache", s.cache}, args...)
	code, out, text := run(t, "", args...)
	if code != want {
		t.Fatalf("kkbundle %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, text)
	}
	return out + text
}

// carry locks, takes upstream's metadata away, builds from the lock and extracts; it returns the bundle and the tree.
func (s *packageSite) carry(t *testing.T, metadata string) (file, tree string) {
	t.Helper()
	s.kkbundle(t, 0, "lock")
	if metadata != "" {
		if err := os.RemoveAll(filepath.Join(s.upstream, metadata)); err != nil {
			t.Fatal(err)
		}
	}
	s.cache = t.TempDir()
	file, tree = filepath.Join(s.dir, "site.kkb"), filepath.Join(s.dir, "tree")
	s.kkbundle(t, 0, "build", "--locked", "-o", file)
	if code, out, text := run(t, "", "extract", file, "--format", "tree", "-o", tree); code != 0 {
		t.Fatalf("extract: exit code %d\n%s%s", code, out, text)
	}
	return file, tree
}

// served is the address of a server that has a bundle.
func served(t *testing.T, file string) string {
	t.Helper()
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.Close(); s.Close() })
	return server.URL
}

func file(path string) map[string]string { return map[string]string{path: path} }

func debs(t *testing.T, s *packageSite) {
	t.Helper()
	now := time.Now()
	key := packagestest.NewKey(t, now.Add(-time.Hour), 0)
	packagestest.Suite{
		Name: "bookworm", Archs: []string{"all", "amd64", "arm64"}, Date: now.Add(-time.Minute),
		Until: now.Add(time.Hour),
		Debs: []packagestest.Deb{
			{
				Name: "kk-app", Version: "1:2.0~rc1+b1", Arch: "amd64",
				Fields: "Depends: kk-lib (>= 3), kk-virtual, kk-base\n", Files: file("usr/share/kk/kk-app"),
			},
			{
				Name: "kk-app", Version: "1:2.0~rc1+b1", Arch: "arm64", Fields: "Depends: kk-lib (>= 3)\n",
				Files: file("usr/share/kk/kk-app"),
			},
			{
				Name: "kk-lib", Version: "3.1", Arch: "all", Fields: "Pre-Depends: kk-pre | kk-none\n",
				Files: file("usr/share/kk/kk-lib"),
			},
			{Name: "kk-lib", Version: "2.0", Arch: "all", Files: file("usr/share/kk/kk-lib")},
			{Name: "kk-pre", Version: "1", Arch: "all", Files: file("usr/share/kk/kk-pre")},
			{
				Name: "kk-real", Version: "1", Arch: "amd64", Fields: "Provides: kk-virtual\n",
				Files: file("usr/share/kk/kk-real"),
			},
			{
				Name: "kk-base", Version: "1", Arch: "amd64", Fields: "Essential: yes\n",
				Files: file("usr/share/kk/kk-base"),
			},
		},
	}.Write(t, s.upstream, key)
	packagestest.WriteFile(t, filepath.Join(s.dir, "keys.gpg"), key.Public(t))
}

// TestPackagesApt has apt install a package with what it depends on, out of what a bundle was extracted to and out of
// what it is served as, with no other source.
func TestPackagesApt(t *testing.T) {
	t.Parallel()
	needs(t, "apt-get")
	s := newPackageSite(t)
	debs(t, s)
	s.manifest(t, fmt.Sprintf(
		"- distribution: test/1\n  install: [kk-app]\n  closure: full\n  repositories: [{url: \"http://%s\", suite: bookworm, components: [main], keyring: keys.gpg}]\n", s.host))
	bundle, tree := s.carry(t, "dists")
	for name, source := range map[string]string{
		"extracted": "deb [trusted=yes] file:" + tree + "/packages/test/1 ./",
		"served":    "deb [trusted=yes] " + served(t, bundle) + "/apt/packages/test/1/ /",
	} {
		t.Run(name, func(t *testing.T) { aptInstalls(t, source) })
	}
}

func aptInstalls(t *testing.T, source string) {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{
		"etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d",
		"var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "var/lib/dpkg/info",
		"var/lib/dpkg/updates",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	packagestest.WriteFile(t, root+"/var/lib/dpkg/status", nil)
	packagestest.WriteFile(t, root+"/var/lib/dpkg/available", nil)
	packagestest.WriteFile(t, root+"/etc/apt/sources.list", []byte(source+"\n"))
	options := []string{
		"-o", "Dir=" + root, "-o", "Dir::State::status=" + root + "/var/lib/dpkg/status", "-o",
		"APT::Architecture=amd64", "-o", "APT::Architectures=amd64",
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Proxy=DIRECT", "-o", "Acquire::Retries=0", "-o",
		"APT::Get::Assume-Yes=true",
		"-o", "DPkg::Options::=--root=" + root, "-o", "DPkg::Options::=--log=" + root + "/dpkg.log", "-o",
		"DPkg::Options::=--force-not-root",
	}
	if out := program(t, "", "apt-get", append(options, "update")...); strings.Contains(out, "W:") ||
		strings.Contains(out, "E:") {
		t.Errorf("apt-get update:\n%s", out)
	}
	names := []string{"kk-app", "kk-lib", "kk-pre", "kk-real", "kk-base"}
	if os.Getuid() != 0 { // dpkg installs as root only
		out := program(t, "", "apt-get", append(options, "install", "--simulate", "kk-app")...)
		for _, name := range names {
			if !strings.Contains(out, "Inst "+name+" ") {
				t.Errorf("apt would not install %s:\n%s", name, out)
			}
		}
		return
	}
	program(t, "", "apt-get", append(options, "install", "kk-app")...)
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(root, "usr/share/kk", name)); err != nil {
			t.Error(err)
		}
	}
}

// TestPackagesWrong has everything that is wrong with packages said at once, before anything is fetched.
func TestPackagesWrong(t *testing.T) {
	t.Parallel()
	s := newPackageSite(t)
	debs(t, s)
	repository := fmt.Sprintf(
		"repositories: [{url: \"http://%s\", suite: bookworm, components: [main], keyring: keys.gpg}]", s.host)
	s.manifest(t, "- distribution: test/1\n  install: [kk-ap, kk-lib=9, kk-real]\n  platforms: [linux/amd64]\n  "+
		repository+"\n"+
		"- {distribution: test/2, install: [kk-app], platforms: [linux/s390x], "+repository+"}\n"+
		"- {distribution: test/3, install: [kk-app]}\n"+
		"- {distribution: test/4, roles: true, "+repository+"}\n- {distribution: test/5, "+repository+"}\n")
	text := s.kkbundle(t, 14, "lock")
	for _, want := range []string{
		"no package kk-ap; did you mean kk-app", "kk-lib (= 9): no such version; available is 3.1, 2.0",
		"not published for s390x, only for all, amd64, arm64", "no repositories are known for it",
		"roles need a cluster", "no packages are named",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it did not say %q:\n%s", want, text)
		}
	}
}

// TestPackagesDnf is TestPackagesApt for dnf. One dependency is on a path that only the list of all files has.
func TestPackagesDnf(t *testing.T) {
	t.Parallel()
	needs(t, "dnf", "rpmbuild", "createrepo_c")
	s := newPackageSite(t)
	build := t.TempDir()
	for name, fields := range map[string]string{
		"kk-app":  "Epoch: 1\nVersion: 2.0~rc1\nRequires: kk-lib >= 3\nRequires: /usr/share/kk/kk-path\nRequires: (kk-rich or kk-none)\nRecommends: kk-weak",
		"kk-lib":  "Version: 3.1\nRequires: kk-virtual = 7",
		"kk-path": "Version: 1", "kk-rich": "Version: 1", "kk-weak": "Version: 1",
		"kk-virt": "Version: 1\nProvides: kk-virtual = 7",
	} {
		packagestest.WriteFile(t, build+"/"+name+".spec", fmt.Appendf(nil,
			"Name: %s\nRelease: 1\nSummary: test\nLicense: MIT\nBuildArch: noarch\n%s\n%%description\nx\n"+
				"%%install\nmkdir -p %%{buildroot}/usr/share/kk\necho y > %%{buildroot}/usr/share/kk/%s\n%%files\n/usr/share/kk/%s\n", name, fields, name, name))
		program(t, build, "rpmbuild", "-bb", "--define", "_topdir "+build, "--define", "_rpmdir "+s.upstream+"/os",
			name+".spec")
	}
	program(t, "", "createrepo_c", "--quiet", s.upstream+"/os")
	repomd, err := os.ReadFile(s.upstream + "/os/repodata/repomd.xml")
	if err != nil {
		t.Fatal(err)
	}
	key := packagestest.NewKey(t, time.Now().Add(-time.Hour), 0)
	packagestest.WriteFile(t, s.upstream+"/os/repodata/repomd.xml.asc", key.Detached(t, repomd))
	packagestest.WriteFile(t, s.dir+"/keys.gpg", key.Public(t))
	s.manifest(t, fmt.Sprintf(
		"- distribution: test/9\n  install: [kk-app]\n  repositories: [{url: \"http://%s/os\", keyring: keys.gpg}]\n",
		s.host))
	bundle, tree := s.carry(t, "os/repodata")
	for name, address := range map[string]string{
		"extracted": "file://" + tree + "/packages/test/9",
		"served":    served(t, bundle) + "/yum/packages/test/9/",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			packagestest.WriteFile(t, root+"/repos/kk.repo",
				[]byte("[kk]\nname=kk\nbaseurl="+address+"\nenabled=1\ngpgcheck=0\n"))
			out := program(t, "", "dnf", "--installroot", root+"/root", "--releasever", "9", "--setopt", "reposdir="+
				root+"/repos", "--setopt", "cachedir="+root+"/cache",
				"-y", "install", "--downloadonly", "--destdir", root+"/got", "kk-app")
			got, err := filepath.Glob(root + "/got/*.rpm")
			if err != nil || len(got) != 5 {
				t.Errorf("dnf took %q, %v:\n%s", got, err, out)
			}
		})
	}
	packagestest.WriteFile(t, s.upstream+"/os/repodata/repomd.xml", append(repomd, '\n'))
	packagestest.WriteFile(t, s.upstream+"/os/repodata/repomd.xml.asc", key.Detached(t, repomd))
	if text := s.kkbundle(t, 14, "lock"); !strings.Contains(text, "repomd.xml.asc") {
		t.Errorf("a changed repomd.xml was taken:\n%s", text)
	}
}
