package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	authorityYears = 10
	serverDays     = 397 // the longest that browsers take
	renewDays      = 30  // a certificate that ends sooner is made anew
	backdate       = 24 * time.Hour

	authorityCertificate, authorityKey = "ca.pem", "ca.key"
	serverCertificate, serverKey       = "server.pem", "server.key"
)

// A Certificate is what the server shows, and the authority that clients have to trust for it.
type Certificate struct {
	tls.Certificate
	CA          string // path of the authority's certificate
	Fingerprint string // SHA-256 of the authority's certificate: "AB:CD:…"
}

// AutoCertificate returns a certificate for names (host names and addresses), signed by an authority of our own. Both are
// kept in dir, so that what trusts the authority goes on doing so; the certificate is made anew when it is about to end
// or lacks a name. Keys can be read by the owner only.
func AutoCertificate(dir string, names []string, now time.Time) (*Certificate, error) {
	c, err := autoCertificate(dir, names, now)
	if err != nil {
		return nil, fmt.Errorf("certificate in %s: %w", dir, err)
	}
	return c, nil
}

func autoCertificate(dir string, names []string, now time.Time) (*Certificate, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	ca, err := loadPair(root, authorityCertificate, authorityKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if ca, err = newAuthority(root, now); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case now.AddDate(0, 0, renewDays).After(ca.Leaf.NotAfter):
		return nil, fmt.Errorf("the authority in %s ends on %s: move it away to have a new one, which clients must be given", authorityCertificate, ca.Leaf.NotAfter.Format(time.DateOnly))
	}
	server, err := loadPair(root, serverCertificate, serverKey)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil || !fits(server.Leaf, ca.Leaf, names, now) {
		if server, err = newServerPair(root, ca, names, now); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256(ca.Leaf.Raw)
	var fingerprint []string
	for _, b := range sum {
		fingerprint = append(fingerprint, strings.ToUpper(hex.EncodeToString([]byte{b})))
	}
	return &Certificate{Certificate: server, CA: filepath.Join(dir, authorityCertificate), Fingerprint: strings.Join(fingerprint, ":")}, nil
}

func loadPair(root *os.Root, certificate, key string) (tls.Certificate, error) {
	certPEM, err := root.ReadFile(certificate)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := root.ReadFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return pair, fmt.Errorf("%s and %s: %w", certificate, key, err)
	}
	return pair, nil
}

// fits says whether the certificate is the authority's, lasts and has all names.
func fits(cert, ca *x509.Certificate, names []string, now time.Time) bool {
	if cert.CheckSignatureFrom(ca) != nil || now.AddDate(0, 0, renewDays).After(cert.NotAfter) || now.Before(cert.NotBefore) {
		return false
	}
	for _, n := range names {
		if cert.VerifyHostname(n) != nil {
			return false
		}
	}
	return true
}

func newAuthority(root *os.Root, now time.Time) (tls.Certificate, error) {
	t := certificateTemplate("kkbundle serve", now, now.AddDate(authorityYears, 0, 0))
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	return sign(root, &signing{t, t, key, key}, authorityCertificate, authorityKey)
}

func newServerPair(root *os.Root, ca tls.Certificate, names []string, now time.Time) (tls.Certificate, error) {
	until := now.AddDate(0, 0, serverDays)
	if until.After(ca.Leaf.NotAfter) {
		until = ca.Leaf.NotAfter
	}
	t := certificateTemplate(names[0], now, until)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	return sign(root, &signing{t, ca.Leaf, key, ca.PrivateKey}, serverCertificate, serverKey)
}

func certificateTemplate(name string, now, until time.Time) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails (crypto/rand)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: until,
	}
}

type signing struct {
	template, parent *x509.Certificate
	key              *ecdsa.PrivateKey
	parentKey        any
}

// sign makes a certificate and keeps it with its key.
func sign(root *os.Root, s *signing, certificate, key string) (tls.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, s.template, s.parent, s.key.Public(), s.parentKey)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	if err := keep(root, key, 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}); err != nil {
		return tls.Certificate{}, err
	}
	if err := keep(root, certificate, 0o644, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		return tls.Certificate{}, err
	}
	return loadPair(root, certificate, key)
}

// keep writes a file whole or not at all.
func keep(root *os.Root, name string, mode os.FileMode, block *pem.Block) error {
	part := name + ".new"
	if err := root.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err := errors.Join(pem.Encode(f, block), f.Sync(), f.Close()); err != nil {
		return err
	}
	return root.Rename(part, name)
}

// HostNames are the names and addresses that clients may know this host by, for a listener at address: one address, or
// all of the host's where it listens on all.
func HostNames(address string) ([]string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", address, err)
	}
	names := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil && name != "" {
		names = append([]string{name}, names...)
	}
	ip := net.ParseIP(host)
	if host != "" && (ip == nil || !ip.IsUnspecified()) {
		return append([]string{host}, names...), nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			names = append(names, n.IP.String())
		}
	}
	return names, nil
}
