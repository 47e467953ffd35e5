package pki_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/pki"
)

func TestFits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const year, month = 365 * 24 * time.Hour, 30 * 24 * time.Hour
	ca, pair, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := pki.ParseAuthority(pair); err != nil || !again.Certificate.Equal(ca.Certificate) {
		t.Errorf("read again: %v", err)
	}
	names := pki.ParseNames([]string{"registry.site", "10.0.0.3", "::ffff:10.0.0.3", "registry.site", "fe80::1%eth0"})
	if len(names.Hosts) != 1 || len(names.Addresses) != 2 {
		t.Errorf("names are %v", names)
	}
	server, err := ca.Issue(names, now, year)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.ParseCertificate(server.Cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	for _, n := range []string{"registry.site", "10.0.0.3"} {
		if _, err := cert.Verify(x509.VerifyOptions{
			DNSName: n, Roots: roots,
			CurrentTime: now.Add(year - time.Hour),
		}); err != nil {
			t.Errorf("%s: %v", n, err)
		}
	}
	other, otherPair, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	last, err := ca.Issue(names, now.Add(9*year+month), year)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		by    *pki.Authority
		pair  pki.Pair
		names []string
		now   time.Time
		want  bool
	}{
		"it":              {ca, server, []string{"registry.site", "10.0.0.3"}, now, true},
		"another name":    {ca, server, []string{"other.site"}, now, false},
		"another address": {ca, server, []string{"10.0.0.4"}, now, false},
		"of another":      {other, server, []string{"registry.site"}, now, false},
		"with another key": {
			ca,
			pki.Pair{Cert: server.Cert, Key: otherPair.Key},
			[]string{"registry.site"},
			now,
			false,
		},
		"none":              {ca, pki.Pair{}, nil, now, false},
		"about to end":      {ca, server, []string{"registry.site"}, now.Add(year - month/2), false},
		"a clock put back":  {ca, server, []string{"registry.site"}, now.Add(-month), false},
		"as long as its CA": {ca, last, []string{"registry.site"}, now.Add(10*year - month/2), true},
	} {
		if got := c.by.Fits(c.pair, pki.ParseNames(c.names), c.now, month); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	if _, err := pki.ParseAuthority(server); err == nil {
		t.Error("a server's certificate was taken for an authority's")
	}
}
