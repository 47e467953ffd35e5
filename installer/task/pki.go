package task

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kkbundle/kkbundle/pki"
)

// RenewBefore is how long before its end a certificate is made anew by the next run.
const RenewBefore = 180 * 24 * time.Hour

// LoadAuthority reads the authority in the work directory, or makes it. It signs the registry's certificate; hosts trust it
// for the registry and for nothing else.
func LoadAuthority(w *WorkDir, now time.Time) (*pki.Authority, error) {
	authority, err := w.Authority(CACertFile, caKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return NewAuthority(w, now)
	}
	if err != nil {
		return nil, err
	}
	if end := authority.Certificate.NotAfter; now.After(end) {
		return nil, fmt.Errorf("%s ended %s: move it and %s away and run again; the registry and all hosts get new ones",
			w.Join(CACertFile), end.Format(time.DateOnly), w.Join(caKeyFile))
	}
	return authority, nil
}

// Authority reads an Authority's pair from the work directory; the error is fs.ErrNotExist if there is none.
func (w *WorkDir) Authority(certFile, keyFile string) (*pki.Authority, error) {
	certPEM, err := w.Read(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := w.Read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is there and its key %s is not", w.Join(certFile), w.Join(keyFile))
	}
	if err != nil {
		return nil, err
	}
	authority, err := pki.ParseAuthority(pki.Pair{Cert: certPEM, Key: keyPEM})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.Join(certFile), err)
	}
	return authority, nil
}

func NewAuthority(w *WorkDir, now time.Time) (*pki.Authority, error) {
	authority, pair, err := pki.NewAuthority("kkbundle registry CA", now)
	if err != nil {
		return nil, err
	}
	return authority, w.WritePair(PairFiles{CACertFile, caKeyFile}, pair)
}

// ReadPair reads a certificate and its key; the error is fs.ErrNotExist if one is missing.
func (w *WorkDir) ReadPair(f PairFiles) (pki.Pair, error) {
	cert, certErr := w.Read(f.Cert)
	key, keyErr := w.Read(f.Key)
	return pki.Pair{Cert: cert, Key: key}, errors.Join(certErr, keyErr)
}

// WritePair writes the key first: the next run would take a certificate without its key for a complete pair.
func (w *WorkDir) WritePair(f PairFiles, p pki.Pair) error {
	return errors.Join(w.Write(f.Key, p.Key), w.Write(f.Cert, p.Cert))
}

// RegistryPair is where the work directory has the registry's certificate.
func RegistryPair() PairFiles { return PairFiles{RegistryCertFile, RegistryKeyFile} }

// Pair returns the Pair in the work directory if it still fits the names, else a new one of the authority, which it keeps there.
func (w *WorkDir) Pair(f PairFiles, by *pki.Authority, use pki.Use, names pki.Names, now time.Time) (pki.Pair, error) {
	pair, err := w.ReadPair(f)
	if err == nil && by.Fits(pair, names, now, RenewBefore) {
		return pair, nil
	}
	if pair, err = by.IssueFor(use, names, now, pki.Life); err != nil {
		return pair, err
	}
	return pair, w.WritePair(f, pair)
}

// Pin is how kubeadm names a certificate authority that a joining node shall trust: the sha256 of its public key.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning
func Pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A PairFiles is where a certificate and its key lie on hosts.
type PairFiles struct{ Cert, Key string }

func (p PairFiles) Files(pair pki.Pair) []File {
	const certMode, keyMode = 0o644, 0o600
	return []File{{p.Cert, certMode, pair.Cert}, {p.Key, keyMode, pair.Key}}
}
