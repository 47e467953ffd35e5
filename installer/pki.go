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
	// The key goes first: a certificate without its key would be taken for a complete pair by the next run.
	return authority, errors.Join(w.write(caKeyFile, pair.Key), w.write(caCertFile, pair.Cert))
}

// serverPair returns the certificate and key of a server that is reached under these names: the pair in the work directory if
// it still fits, else a new one.
func serverPair(a *pki.Authority, w *workDir, names pki.Names, now time.Time) (pki.Pair, error) {
	cert, certErr := w.read(registryCertFile)
	key, keyErr := w.read(registryKeyFile)
	pair := pki.Pair{Cert: cert, Key: key}
	if certErr == nil && keyErr == nil && a.Fits(pair, names, now, renewBefore) {
		return pair, nil
	}
	pair, err := a.Issue(names, now, pki.Life)
	if err != nil {
		return pair, err
	}
	return pair, errors.Join(w.write(registryKeyFile, pair.Key), w.write(registryCertFile, pair.Cert))
}

// pin is how kubeadm names a certificate authority that a joining node shall trust: the sha256 of its public key.
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning
func pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}
