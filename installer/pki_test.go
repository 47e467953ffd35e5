package installer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	w := sitetest.NewWorkDir(t)
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	names := pki.ParseNames([]string{"cp1", "10.0.0.3", "localhost", "127.0.0.1"})
	ca, err := task.LoadAuthority(w, now)
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.Pair(task.Leaf{Files: task.RegistryPair(), Names: names}, ca, now)
	if err != nil {
		t.Fatal(err)
	}
	cert := made.Cert
	pair, err := tls.X509KeyPair(cert, made.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	for _, name := range []string{"cp1", "10.0.0.3", "127.0.0.1"} {
		for _, at := range []time.Time{now, now.Add(-time.Hour), now.AddDate(0, 11, 0)} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{
				DNSName: name, Roots: roots,
				CurrentTime: at,
			}); err != nil {
				t.Errorf("%s at %s: %v", name, at, err)
			}
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: "node1", Roots: roots, CurrentTime: now}); err == nil {
		t.Error("the certificate is good for another name")
	}
	again, err := task.LoadAuthority(w, now)
	if err != nil {
		t.Fatal(err)
	}
	step := func(what string, names pki.Names, now time.Time, same bool) {
		t.Helper()
		got, err := w.Pair(task.Leaf{Files: task.RegistryPair(), Names: names}, again, now)
		if err != nil || (string(got.Cert) == string(cert)) != same {
			t.Errorf("%s: same certificate %v, want %v; %v", what, string(got.Cert) == string(cert), same, err)
		}
		cert = got.Cert
	}
	step("a second run", names, now, true)
	step("half a year later", names, now.AddDate(0, 6, 0), true)
	step("two months before the end", names, now.AddDate(0, 10, 0), false)
	step("again", names, now.AddDate(0, 10, 0), true)
	step("another name", pki.ParseNames([]string{"cp2"}), now, false)
	step("back", names, now, false)
	if err := w.Write(task.RegistryKeyFile, []byte("damaged")); err != nil {
		t.Fatal(err)
	}
	step("a damaged key", names, now, false)
	if _, err := task.LoadAuthority(w, now.AddDate(11, 0, 0)); err == nil {
		t.Error("an authority that has ended is used")
	}
}

func TestAuthorityWithoutCertificateIsMadeAnew(t *testing.T) {
	t.Parallel()
	w := sitetest.NewWorkDir(t)
	now := time.Now()
	if _, err := task.LoadAuthority(w, now); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(task.CACertFile); err != nil { // as if the run had been killed between the two files
		t.Fatal(err)
	}
	if _, err := task.LoadAuthority(w, now); err != nil {
		t.Error(err)
	}
}

func TestWorkDir(t *testing.T) {
	t.Parallel()
	w := sitetest.NewWorkDir(t)
	secret, err := w.Secret("registry/password")
	if err != nil || len(secret) != 40 {
		t.Fatalf("secret of %d characters, %v", len(secret), err)
	}
	if again, err := w.Secret("registry/password"); again != secret || err != nil {
		t.Errorf("a second time it is another one (%v)", err)
	}
	for name, want := range map[string]fs.FileMode{".": 0o700, "registry": 0o700, "registry/password": 0o600} {
		info, err := os.Stat(w.Join(name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	if _, err := w.Read("../outside"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading outside: %v", err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := task.OpenWorkDir(open, false); err == nil {
		t.Error("a directory that others can read is accepted")
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Chmod(open, 0o700), os.Chown(open, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := task.OpenWorkDir(open, false); err == nil || !strings.Contains(err.Error(), "65534") {
		t.Errorf("another user's directory: %v", err)
	}
}

func TestHtpasswd(t *testing.T) {
	t.Parallel()
	r := &task.Site{Dir: sitetest.NewWorkDir(t)}
	login := func(password string) task.Login { return task.Login{Username: siteregistry.User, Password: password} }
	one, err := siteregistry.Htpasswd(r, task.RegistryHashFile, login("password"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := siteregistry.Htpasswd(r, task.RegistryHashFile, login("password")); string(again) != string(one) ||
		err != nil {
		t.Errorf("a second time it differs (%v)", err)
	}
	other, err := siteregistry.Htpasswd(r, task.RegistryHashFile, login("changed"))
	if err != nil || bcrypt.CompareHashAndPassword(other[len(siteregistry.User)+1:len(other)-1],
		[]byte("changed")) != nil {
		t.Errorf("%s is not for the changed password (%v)", other, err)
	}
}
