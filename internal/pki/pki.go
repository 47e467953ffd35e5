// Package pki makes kkbundle's certificates: a certificate authority, and server certificates that it signs. Keys are
// P-256, in PKCS #8; everything is PEM. The package reads and writes no files.
package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// Life is the validity of authorities: a site that cannot be visited must not stop because nobody replaced one.
	// kubeadm also gives its authorities ten years.
	Life = 10 * 365 * 24 * time.Hour
	// LeafLife is the validity of certificates that hosts renew by themselves.
	LeafLife = 365 * 24 * time.Hour
	// clockSlack lets hosts with slow clocks accept a new certificate.
	clockSlack = 24 * time.Hour
)

// A Pair is a certificate and its key, both PEM. The key is a secret.
type Pair struct{ Cert, Key []byte }

// Names are a server's names and addresses. The first host name is the certificate's common name. At least one name or
// address is required.
type Names struct {
	Hosts     []string
	Addresses []netip.Addr
}

// ParseNames separates names from addresses, without duplicates and in their order.
func ParseNames(all []string) Names {
	var n Names
	for _, s := range all {
		if ip, err := netip.ParseAddr(s); err == nil {
			if ip = ip.Unmap().WithZone(""); !slices.Contains(n.Addresses, ip) {
				n.Addresses = append(n.Addresses, ip)
			}
		} else if !slices.Contains(n.Hosts, s) {
			n.Hosts = append(n.Hosts, s)
		}
	}
	return n
}

func (n Names) common() string {
	if len(n.Hosts) > 0 {
		return n.Hosts[0]
	}
	return n.Addresses[0].String()
}

// An Authority signs certificates of servers and their clients.
type Authority struct {
	Certificate *x509.Certificate
	PEM         []byte // the certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority, and returns the pair that ParseAuthority reads.
func NewAuthority(name string, now time.Time) (*Authority, Pair, error) {
	template := newTemplate(name, now)
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	pair, err := sign(template, nil)
	if err != nil {
		return nil, Pair{}, fmt.Errorf("make certificate authority: %w", err)
	}
	a, err := ParseAuthority(pair)
	return a, pair, err
}

// ParseAuthority reads an authority. It may have expired: check its Certificate.
func ParseAuthority(p Pair) (*Authority, error) {
	cert, key, err := parse(p)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA {
		return nil, errors.New("the certificate is not an authority's")
	}
	return &Authority{Certificate: cert, PEM: p.Cert, key: key}, nil
}

// Issue makes a server certificate, valid for life, but not longer than the authority.
func (a *Authority) Issue(names Names, now time.Time, life time.Duration) (Pair, error) {
	return a.IssueFor(Server, names, now, life)
}

// A Use is the purpose of a certificate.
type Use int

// The uses. A Peer is a server to its peers and their client.
const (
	Server Use = iota
	Client
	Peer
)

func (u Use) extended() []x509.ExtKeyUsage {
	switch u {
	case Client:
		return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case Peer:
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
}

// IssueFor is Issue for another use.
func (a *Authority) IssueFor(use Use, names Names, now time.Time, life time.Duration) (Pair, error) {
	template := newTemplate(names.common(), now)
	if template.NotAfter = now.Add(life).Truncate(time.Second); template.NotAfter.After(a.Certificate.NotAfter) {
		template.NotAfter = a.Certificate.NotAfter
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, use.extended()
	template.DNSNames = names.Hosts
	for _, ip := range names.Addresses {
		template.IPAddresses = append(template.IPAddresses, ip.AsSlice())
	}
	pair, err := sign(template, a)
	if err != nil {
		return pair, fmt.Errorf("make certificate: %w", err)
	}
	return pair, nil
}

// ErrLasts means that a new certificate would not be valid for longer, because the authority ends with the old one.
var ErrLasts = errors.New("the certificate lasts as long as its authority")

// Renew makes a certificate with the names and uses of an old one that the authority has signed, and a new key.
func (a *Authority) Renew(old *x509.Certificate, now time.Time, life time.Duration) (Pair, error) {
	if err := old.CheckSignatureFrom(a.Certificate); err != nil {
		return Pair{}, fmt.Errorf("renew certificate of %s: another authority signed it: %w", old.Subject, err)
	}
	if !old.NotAfter.Before(a.Certificate.NotAfter) {
		return Pair{}, ErrLasts
	}
	template := newTemplate(old.Subject.CommonName, now)
	if template.NotAfter = now.Add(life).Truncate(time.Second); template.NotAfter.After(a.Certificate.NotAfter) {
		template.NotAfter = a.Certificate.NotAfter
	}
	template.KeyUsage, template.ExtKeyUsage = old.KeyUsage, old.ExtKeyUsage
	template.DNSNames, template.IPAddresses = old.DNSNames, old.IPAddresses
	pair, err := sign(template, a)
	if err != nil {
		return pair, fmt.Errorf("renew certificate of %s: %w", old.Subject, err)
	}
	return pair, nil
}

// Fits reports whether the authority signed the pair, whether the pair covers the names, and whether it stays valid for
// longer than ahead, or as long as the authority.
func (a *Authority) Fits(p Pair, names Names, now time.Time, ahead time.Duration) bool {
	if _, err := tls.X509KeyPair(p.Cert, p.Key); err != nil {
		return false
	}
	cert, _, err := parse(p)
	if err != nil || cert.CheckSignatureFrom(a.Certificate) != nil {
		return false
	}
	if now.Before(cert.NotBefore) { // the clock was set back
		return false
	}
	if end := a.Certificate.NotAfter; now.Add(ahead).After(cert.NotAfter) && cert.NotAfter.Before(end) {
		return false
	}
	for _, ip := range names.Addresses {
		if !slices.ContainsFunc(cert.IPAddresses, func(have net.IP) bool { return have.Equal(ip.AsSlice()) }) {
			return false
		}
	}
	return !slices.ContainsFunc(names.Hosts, func(n string) bool { return !slices.Contains(cert.DNSNames, n) })
}

func newTemplate(name string, now time.Time) *x509.Certificate {
	const serialBits = 127
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)) // never fails, as rand.Read
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-clockSlack).Truncate(time.Second),
		NotAfter:     now.Add(Life).Truncate(time.Second),
	}
}

// sign makes a key and its certificate, self-signed without an authority.
func sign(template *x509.Certificate, by *Authority) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	parent, parentKey := template, key
	if by != nil {
		parent, parentKey = by.Certificate, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

func parse(p Pair) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, err := ParseCertificate(p.Cert)
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(p.Key)
	if block == nil {
		return nil, nil, errors.New("the key is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("certificate and key do not match")
	}
	return cert, key, nil
}

// ParseCertificate reads the first certificate of a PEM file.
func ParseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(bytes.TrimSpace(data))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no certificate in PEM form")
	}
	return x509.ParseCertificate(block.Bytes)
}
