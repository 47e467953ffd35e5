package serve

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	serverLife  = 397 * 24 * time.Hour // the longest accepted by browsers
	renewBefore = 30 * 24 * time.Hour  // a certificate that expires sooner is renewed

	authorityCertificate, authorityKey = "ca.pem", "ca.key"
	serverCertificate, serverKey       = "server.pem", "server.key"
)

// A Certificate is the server's certificate, and the authority that clients must trust.
type Certificate struct {
	tls.Certificate
	CA          string // path of the authority's certificate
	Fingerprint string // SHA-256 of the authority's certificate: "AB:CD:…"
	// AuthorityPEM is the authority's certificate, for clients.
	AuthorityPEM []byte
}

// AutoCertificate returns a certificate for names (host names and addresses), signed by an authority of our own. Both
// are kept in dir, so that clients' trust stays valid; the certificate is renewed when it is about to expire or lacks a
// name. Only the owner can read the keys.
func AutoCertificate(dir string, names []string, now time.Time) (*Certificate, error) {
	c, err := autoCertificate(dir, names, now)
	if err != nil {
		return nil, fmt.Errorf("certificate in %s: %w", dir, err)
	}
	return c, nil
}

func autoCertificate(dir string, names []string, now time.Time) (*Certificate, error) {
	root, err := disk.OpenOwn(dir) // clients trust the authority in it
	if err != nil {
		return nil, plain.Advise(err,
			"name a directory of your own with --tls-dir; with sudo, -H makes HOME that of root")
	}
	defer root.Close()
	ca, err := loadAuthority(root, now)
	if err != nil {
		return nil, err
	}
	pair, err := loadPair(root, serverCertificate, serverKey)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if all := pki.ParseNames(names); !ca.Fits(pair, all, now, renewBefore) {
		if pair, err = ca.Issue(all, now, serverLife); err != nil {
			return nil, err
		}
		if err := keepPair(root, pair, serverCertificate, serverKey); err != nil {
			return nil, err
		}
	}
	server, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(ca.Certificate.Raw)
	var fingerprint []string
	for _, b := range sum {
		fingerprint = append(fingerprint, strings.ToUpper(hex.EncodeToString([]byte{b})))
	}
	return &Certificate{
		Certificate: server, CA: filepath.Join(dir, authorityCertificate), Fingerprint: strings.Join(fingerprint, ":"),
		AuthorityPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate.Raw}),
	}, nil
}

// loadAuthority reads the authority, or creates it.
func loadAuthority(root *os.Root, now time.Time) (*pki.Authority, error) {
	pair, err := loadPair(root, authorityCertificate, authorityKey)
	if errors.Is(err, fs.ErrNotExist) {
		ca, pair, err := pki.NewAuthority("kkbundle serve", now)
		if err != nil {
			return nil, err
		}
		return ca, keepPair(root, pair, authorityCertificate, authorityKey)
	}
	if err != nil {
		return nil, err
	}
	ca, err := pki.ParseAuthority(pair)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", authorityCertificate, authorityKey, err)
	}
	if end := ca.Certificate.NotAfter; now.Add(renewBefore).After(end) {
		return nil, fmt.Errorf("the authority in %s expires on %s: move it away to get a new one, which clients must be given", authorityCertificate, end.Format(time.DateOnly))
	}
	return ca, nil
}

func loadPair(root *os.Root, certificate, key string) (pki.Pair, error) {
	cert, err := root.ReadFile(certificate)
	if err != nil {
		return pki.Pair{}, err
	}
	private, err := root.ReadFile(key)
	return pki.Pair{Cert: cert, Key: private}, err
}

// keepPair writes the key first: a certificate without its key would count as a pair.
func keepPair(root *os.Root, p pki.Pair, certificate, key string) error {
	const public, private = 0o644, 0o600
	if err := disk.WriteFileIn(root, key, private, p.Key); err != nil {
		return err
	}
	return disk.WriteFileIn(root, certificate, public, p.Cert)
}

// HostNames returns the names and addresses under which clients may know this host, for a listener at address: one
// address, or all of the host's if it listens on all.
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
