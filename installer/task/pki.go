package task

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kkbundle/kkbundle/internal/pki"
)

// RenewBefore is the remaining lifetime below which a run replaces a certificate.
const RenewBefore = 90 * 24 * time.Hour

// LoadAuthority reads or creates the authority in the work directory. It signs the registry's certificate; hosts
// trust it for the registry only.
func LoadAuthority(w *WorkDir, now time.Time) (*pki.Authority, error) {
	authority, err := w.Authority(CACertFile, CAKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		authority, pair, err := pki.NewAuthority("kkbundle registry CA", now)
		if err != nil {
			return nil, err
		}
		return authority, w.WritePair(PairFiles{CACertFile, CAKeyFile}, pair)
	}
	if err != nil {
		return nil, err
	}
	if end := authority.Certificate.NotAfter; now.After(end) {
		return nil, fmt.Errorf("%s expired on %s: move it and %s away and run again; the registry and all hosts get a new authority",
			w.Join(CACertFile), end.Format(time.DateOnly), w.Join(CAKeyFile))
	}
	return authority, nil
}

// Authority reads an authority from the work directory; the error is fs.ErrNotExist if the certificate is missing.
func (w *WorkDir) Authority(certFile, keyFile string) (*pki.Authority, error) {
	certPEM, err := w.Read(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := w.Read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no key: %s is missing", w.Join(certFile), w.Join(keyFile))
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

// ReadPair reads a certificate and its key; the error is fs.ErrNotExist if one is missing.
func (w *WorkDir) ReadPair(f PairFiles) (pki.Pair, error) {
	cert, certErr := w.Read(f.Cert)
	key, keyErr := w.Read(f.Key)
	return pki.Pair{Cert: cert, Key: key}, errors.Join(certErr, keyErr)
}

// WritePair writes the key first: a run takes an existing certificate for a complete pair.
func (w *WorkDir) WritePair(f PairFiles, p pki.Pair) error {
	return errors.Join(w.Write(f.Key, p.Key), w.Write(f.Cert, p.Cert))
}

// RegistryPair returns the files of the registry's certificate in the work directory.
func RegistryPair() PairFiles { return PairFiles{RegistryCertFile, RegistryKeyFile} }

// A Leaf describes a certificate of a server or a client in the work directory.
type Leaf struct {
	Files PairFiles
	Use   pki.Use
	Names pki.Names
}

// Pair returns the certificate in the work directory if it is valid for the names, or else issues and stores a new one.
func (w *WorkDir) Pair(leaf Leaf, by *pki.Authority, now time.Time) (pki.Pair, error) {
	pair, err := w.ReadPair(leaf.Files)
	if err == nil && by.Fits(pair, leaf.Names, now, RenewBefore) {
		return pair, nil
	}
	if pair, err = by.IssueFor(leaf.Use, leaf.Names, now, pki.LeafLife); err != nil {
		return pair, err
	}
	return pair, w.WritePair(leaf.Files, pair)
}

// Pin returns the sha256 of a certificate's public key, by which kubeadm identifies the authority for a joining node.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning
func Pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// PairFiles are the paths of a certificate and its key.
type PairFiles struct{ Cert, Key string }

// Files returns the pair as files of a host.
func (p PairFiles) Files(pair pki.Pair) []File {
	const certMode, keyMode = 0o644, 0o600
	return []File{{Path: p.Cert, Mode: certMode, Data: pair.Cert}, {Path: p.Key, Mode: keyMode, Data: pair.Key}}
}
