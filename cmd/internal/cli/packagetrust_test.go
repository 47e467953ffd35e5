package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
)

// signedRPMs publishes a package of rpmbuild, signed by rpmsign with a key of GnuPG, in a repository of createrepo_c
// without a signature. The key is in the site's keys.asc.
func signedRPMs(t *testing.T, s *packageSite) {
	t.Helper()
	build := t.TempDir()
	home := filepath.Join(build, "gnupg")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	program(t, "", "gpg", "--homedir", home, "--batch", "--passphrase", "", "--quick-gen-key", "kk <kk@example.org>",
		"rsa2048", "sign", "never")
	packagestest.WriteFile(t, s.dir+"/keys.asc", []byte(program(t, "", "gpg", "--homedir", home, "--armor", "--export",
		"kk")))
	packagestest.WriteFile(t, build+"/kk-app.spec",
		[]byte("Name: kk-app\nVersion: 2.0\nRelease: 1\nSummary: test\nLicense: MIT\nBuildArch: noarch\n%description\nx\n"+
			"%install\nmkdir -p %{buildroot}/usr/share/kk\necho y > %{buildroot}/usr/share/kk/kk-app\n%files\n/usr/share/kk/kk-app\n"))
	program(t, build, "rpmbuild", "-bb", "--define", "_topdir "+build, "--define", "_rpmdir "+s.upstream+"/os",
		"kk-app.spec")
	program(t, "", "rpmsign", "--define", "__gpg /usr/bin/gpg", "--define", "_gpg_name kk", "--define", "_gpg_path "+
		home, "--addsign", s.upstream+"/os/noarch/kk-app-2.0-1.noarch.rpm")
	program(t, "", "createrepo_c", "--quiet", s.upstream+"/os")
}

// TestRPMPackageSignatures carries a package that rpmsign signed in a repository without repomd.xml.asc. dnf checks the
// same signature at the end (gpgcheck=1).
func TestRPMPackageSignatures(t *testing.T) {
	t.Parallel()
	needs(t, "dnf", "rpmbuild", "rpmsign", "gpg", "createrepo_c")
	s := newPackageSite(t)
	signedRPMs(t, s)
	s.manifest(t, fmt.Sprintf(
		"- distribution: test/9\n  install: [kk-app]\n  repositories: [{url: \"http://%s/os\", keyring: keys.asc}]\n",
		s.host))
	bundle, tree := s.carry(t, "os/repodata")
	lock, err := os.ReadFile(s.dir + "/manifest.lock.yaml")
	if err != nil || !strings.Contains(string(lock), "verified: signature") {
		t.Errorf("%v, lock:\n%s", err, lock)
	}
	if code, out, text := run(t, "", "verify", bundle); code != 0 || strings.Contains(text, "signature") {
		t.Errorf("exit code %d\n%s%s", code, out, text)
	}
	root := t.TempDir()
	packagestest.WriteFile(t, root+"/repos/kk.repo", []byte("[kk]\nname=kk\nbaseurl=file://"+tree+
		"/packages/test/9\nenabled=1\ngpgcheck=1\ngpgkey=file://"+s.dir+"/keys.asc\n"))
	program(t, "", "dnf", "--installroot", root+"/root", "--releasever", "9", "--setopt", "reposdir="+root+"/repos",
		"--setopt", "cachedir="+root+"/cache",
		"-y", "install", "--downloadonly", "--destdir", root+"/got", "kk-app")
	program(t, "", "rpmkeys", "--dbpath", root+"/db", "--import", s.dir+"/keys.asc")
	if text := program(t, "", "rpmkeys", "--dbpath", root+"/db", "--checksig", root+
		"/got/kk-app-2.0-1.noarch.rpm"); !strings.Contains(text, "signatures OK") {
		t.Error(text)
	}
}

// TestUnsignedPackagesAreShown has inspect and verify name the packages that nothing vouches for.
func TestUnsignedPackagesAreShown(t *testing.T) {
	t.Parallel()
	s := newPackageSite(t)
	debs(t, s)
	s.manifest(t, fmt.Sprintf(
		"- distribution: test/1\n  install: [kk-pre]\n  repositories: [{url: \"http://%s\", suite: bookworm, components: [main], allowUnsigned: true}]\n", s.host))
	const line = "1 package of test/1 without a checked signature"
	if text := s.kkbundle(t, 0, "lock"); !strings.Contains(text, line) {
		t.Errorf("lock said:\n%s", text)
	}
	file := filepath.Join(s.dir, "site.kkb")
	s.kkbundle(t, 0, "build", "--locked", "-o", file)
	for _, args := range [][]string{{"inspect", file}, {"verify", file}, {"verify", "--json", file}} {
		if code, out, text := run(t, "", args...); code != 0 || !strings.Contains(out+text, line) {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, text)
		}
	}
	if _, out, _ := run(t, "", "inspect", "--json", file); !strings.Contains(out, `"verified": "unsigned"`) {
		t.Error(out)
	}
}
