package installer

import (
	"bytes"
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
	"net/netip"
	"slices"
	"time"
)

const (
	// certificateLife is how long certificates hold: a site that cannot be visited must not stop pulling images
	// because nobody renewed a certificate. Ten years is also kubeadm's choice for its authorities.
	certificateLife = 10 * 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is made anew by the next run.
	renewBefore = 180 * 24 * time.Hour
	// clockSlack lets hosts whose clocks are behind accept a new certificate.
	clockSlack = 24 * time.Hour
)

// An authority signs the registry's certificate. Hosts trust it for the registry and for nothing else.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// loadAuthority reads the authority in the work directory, or makes it.
func loadAuthority(w *workDir, now time.Time) (*authority, error) {
	certPEM, err := w.read(caCertFile)
	if errors.Is(err, fs.ErrNotExist) {
		return newAuthority(w, now)
	}
	if err != nil {
		return nil, err
	}
	keyPEM, err := w.read(caKeyFile)
	if err != nil {
		return nil, err
	}
	cert, key, err := parsePair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.join(caCertFile), err)
	}
	if now.After(cert.NotAfter) {
		return nil, fmt.Errorf("%s ended %s: move it and %s away and run again; the registry and all hosts get new ones",
			w.join(caCertFile), cert.NotAfter.Format(time.DateOnly), w.join(caKeyFile))
	}
	return &authority{cert: cert, key: key, pem: certPEM}, nil
}

func newAuthority(w *workDir, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	template := certificateTemplate("kkbundle registry CA", now)
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	certPEM, keyPEM, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate authority: %w", err)
	}
	// The key goes first: a certificate without its key would be taken for a complete pair by the next run.
	if err := errors.Join(w.write(caKeyFile, keyPEM), w.write(caCertFile, certPEM)); err != nil {
		return nil, err
	}
	cert, _, err := parsePair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: certPEM}, nil
}

// serverPair returns the certificate and key of a server that is reached under these names and addresses: the pair in
// the work directory if it still fits, else a new one.
func (a *authority) serverPair(w *workDir, names []string, addresses []netip.Addr, now time.Time) (certPEM, keyPEM []byte, err error) {
	certPEM, certErr := w.read(registryCertFile)
	keyPEM, keyErr := w.read(registryKeyFile)
	if certErr == nil && keyErr == nil && a.fits(certPEM, keyPEM, names, addresses, now) {
		return certPEM, keyPEM, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate: %w", err)
	}
	template := certificateTemplate(names[0], now)
	template.NotAfter = a.cert.NotAfter
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = names
	for _, ip := range addresses {
		template.IPAddresses = append(template.IPAddresses, ip.AsSlice())
	}
	certPEM, keyPEM, err = sign(template, a.cert, key, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate: %w", err)
	}
	return certPEM, keyPEM, errors.Join(w.write(registryKeyFile, keyPEM), w.write(registryCertFile, certPEM))
}

// fits tells whether a pair can serve under the names for a while yet.
func (a *authority) fits(certPEM, keyPEM []byte, names []string, addresses []netip.Addr, now time.Time) bool {
	if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
		return false
	}
	cert, _, err := parsePair(certPEM, keyPEM)
	if err != nil || cert.CheckSignatureFrom(a.cert) != nil {
		return false
	}
	if end := a.cert.NotAfter; now.Add(renewBefore).After(cert.NotAfter) && cert.NotAfter.Before(end) {
		return false
	}
	for _, ip := range addresses {
		if !slices.ContainsFunc(cert.IPAddresses, func(have net.IP) bool { return have.Equal(ip.AsSlice()) }) {
			return false
		}
	}
	return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(cert.DNSNames, n) })
}

func certificateTemplate(name string, now time.Time) *x509.Certificate {
	const serialBits = 127
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)) // never fails, as rand.Read
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-clockSlack).Truncate(time.Second),
		NotAfter:     now.Add(certificateLife).Truncate(time.Second),
	}
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (certPEM, keyPEM []byte, err error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

func parsePair(certPEM, keyPEM []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, nil, errors.New("the key is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("certificate and key are no pair")
	}
	return cert, key, nil
}

// parseCertificate reads the first certificate of a PEM file.
func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(bytes.TrimSpace(data))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no certificate in PEM form")
	}
	return x509.ParseCertificate(block.Bytes)
}

// pin is how kubeadm names a certificate authority that a joining node shall trust: the sha256 of its public key.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning
func pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}
