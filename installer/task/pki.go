package installer

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

// renewBefore is how long before its end a certificate is made anew by the next run.
const renewBefore = 180 * 24 * time.Hour

// loadAuthority reads the authority in the work directory, or makes it. It signs the registry's certificate; hosts trust it
// for the registry and for nothing else.
func loadAuthority(w *workDir, now time.Time) (*pki.Authority, error) {
	authority, err := w.authority(caCertFile, caKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return newAuthority(w, now)
	}
	if err != nil {
		return nil, err
	}
	if end := authority.Certificate.NotAfter; now.After(end) {
		return nil, fmt.Errorf("%s ended %s: move it and %s away and run again; the registry and all hosts get new ones",
			w.join(caCertFile), end.Format(time.DateOnly), w.join(caKeyFile))
	}
	return authority, nil
}

// authority reads an authority's pair from the work directory; the error is fs.ErrNotExist if there is none.
func (w *workDir) authority(certFile, keyFile string) (*pki.Authority, error) {
	certPEM, err := w.read(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := w.read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is there and its key %s is not", w.join(certFile), w.join(keyFile))
	}
	if err != nil {
		return nil, err
	}
	authority, err := pki.ParseAuthority(pki.Pair{Cert: certPEM, Key: keyPEM})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.join(certFile), err)
	}
	return authority, nil
}

func newAuthority(w *workDir, now time.Time) (*pki.Authority, error) {
	authority, pair, err := pki.NewAuthority("kkbundle registry CA", now)
	if err != nil {
		return nil, err
	}
	return authority, w.writePair(pairFiles{caCertFile, caKeyFile}, pair)
}

// readPair reads a certificate and its key; the error is fs.ErrNotExist if one is missing.
func (w *workDir) readPair(f pairFiles) (pki.Pair, error) {
	cert, certErr := w.read(f.cert)
	key, keyErr := w.read(f.key)
	return pki.Pair{Cert: cert, Key: key}, errors.Join(certErr, keyErr)
}

// writePair writes the key first: the next run would take a certificate without its key for a complete pair.
func (w *workDir) writePair(f pairFiles, p pki.Pair) error {
	return errors.Join(w.write(f.key, p.Key), w.write(f.cert, p.Cert))
}

// registryPair is where the work directory has the registry's certificate.
func registryPair() pairFiles { return pairFiles{registryCertFile, registryKeyFile} }

// pair returns the pair in the work directory if it still fits the names, else a new one of the authority, which it keeps there.
func (w *workDir) pair(f pairFiles, by *pki.Authority, use pki.Use, names pki.Names, now time.Time) (pki.Pair, error) {
	pair, err := w.readPair(f)
	if err == nil && by.Fits(pair, names, now, renewBefore) {
		return pair, nil
	}
	if pair, err = by.IssueFor(use, names, now, pki.Life); err != nil {
		return pair, err
	}
	return pair, w.writePair(f, pair)
}

// pin is how kubeadm names a certificate authority that a joining node shall trust: the sha256 of its public key.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning
func pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}
