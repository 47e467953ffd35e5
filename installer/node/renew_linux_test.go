package node

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/pki"
)

func writePair(t *testing.T, dir, name string, pair pki.Pair) CertificatePair {
	t.Helper()
	p := CertificatePair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	for file, data := range map[string][]byte{p.Cert: pair.Cert, p.Key: pair.Key} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// TestRenew renews the certificates that end soon, with their names and uses, and those whose key does not match, as an
// interrupted renewal leaves them. Certificates of earlier releases, valid for ten years, stay.
func TestRenew(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	ca, caPair, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	authority := writePair(t, dir, "ca", caPair)
	issue := func(name string, use pki.Use, life time.Duration) CertificatePair {
		pair, err := ca.IssueFor(use, pki.ParseNames([]string{name, "10.0.0.3"}), now, life)
		if err != nil {
			t.Fatal(err)
		}
		return writePair(t, dir, name, pair)
	}
	const day = 24 * time.Hour
	soon, later, old := issue("soon", pki.Peer, 20*day), issue("later", pki.Server, 100*day),
		issue("old", pki.Client, pki.Life)
	torn, missing := issue("torn", pki.Server, 100*day), CertificatePair{Cert: dir + "/none.crt", Key: dir +
		"/none.key"}
	if err := os.WriteFile(torn.Key, caPair.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(soon.Key, 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := Renew(authority, now, now.Add(60*day), soon, later, old, torn, missing)
	if want := []string{soon.Cert, torn.Cert}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("renewed %q, %v; want %q", got, err, want)
	}
	pair, err := tls.LoadX509KeyPair(soon.Cert, soon.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caPair.Cert)
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		for _, name := range []string{"soon", "10.0.0.3"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{
				DNSName: name, Roots: roots,
				CurrentTime: now.Add(364 * day), KeyUsages: []x509.ExtKeyUsage{use},
			}); err != nil {
				t.Errorf("%s, use %v: %v", name, use, err)
			}
		}
	}
	if left := pair.Leaf.NotAfter.Sub(now); left > 366*day {
		t.Errorf("the new certificate is valid for %s", left)
	}
	if info, err := os.Stat(soon.Key); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the key's mode: %v, %v", info.Mode(), err)
	}
	if got, err := Renew(authority, now, now.Add(60*day), soon, later, old, torn); err != nil || len(got) > 0 {
		t.Errorf("again: %q, %v", got, err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
}

// TestRenewNeedsItsAuthority holds that no certificate of another authority is replaced, and none without the key.
func TestRenewNeedsItsAuthority(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	ca, _, err := pki.NewAuthority("one", now)
	if err != nil {
		t.Fatal(err)
	}
	_, otherPair, err := pki.NewAuthority("two", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.ParseNames([]string{"a"}), now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, other := writePair(t, dir, "a", leaf), writePair(t, dir, "ca", otherPair)
	if _, err := Renew(other, now, now.Add(time.Hour*2), pair); err == nil ||
		!strings.Contains(err.Error(), "another authority signed it") {
		t.Errorf("another authority: %v", err)
	}
	if err := os.Remove(other.Key); err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(other, now, now.Add(time.Hour*2), pair); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("no key: %v", err)
	}
	if data, err := os.ReadFile(pair.Cert); err != nil || string(data) != string(leaf.Cert) {
		t.Error("the certificate was touched")
	}
}

// TestRenewAtTheEndOfItsAuthority holds that a certificate which lasts as long as its authority is not renewed every
// night.
func TestRenewAtTheEndOfItsAuthority(t *testing.T) {
	t.Parallel()
	dir, then := t.TempDir(), time.Now()
	ca, caPair, err := pki.NewAuthority("test", then)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.ParseNames([]string{"a"}), then, 2*pki.Life)
	if err != nil {
		t.Fatal(err)
	}
	now := ca.Certificate.NotAfter.Add(-time.Hour)
	if got, err := Renew(writePair(t, dir, "ca", caPair), now, now.Add(2*time.Hour),
		writePair(t, dir, "a", leaf)); err != nil || len(got) > 0 {
		t.Errorf("renewed %q, %v", got, err)
	}
}
