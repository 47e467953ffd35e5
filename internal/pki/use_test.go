package pki_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/pki"
)

// A certificate is good for its use and no other.
func TestUses(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ca, _, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	for use, good := range map[pki.Use]struct{ server, client bool }{
		pki.Server: {server: true}, pki.Client: {client: true}, pki.Peer: {server: true, client: true},
	} {
		pair, err := ca.IssueFor(use, pki.ParseNames([]string{"etcd.site"}), now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pki.ParseCertificate(pair.Cert)
		if err != nil {
			t.Fatal(err)
		}
		holds := func(one x509.ExtKeyUsage) bool {
			_, err := cert.Verify(x509.VerifyOptions{
				Roots: roots, CurrentTime: now,
				KeyUsages: []x509.ExtKeyUsage{one},
			})
			return err == nil
		}
		if holds(x509.ExtKeyUsageServerAuth) != good.server || holds(x509.ExtKeyUsageClientAuth) != good.client {
			t.Errorf("use %d: server %v, client %v", use, holds(x509.ExtKeyUsageServerAuth),
				holds(x509.ExtKeyUsageClientAuth))
		}
	}
}
