package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kkbundle/kkbundle/pki"
)

// RenewOptions are the options of Renew.
type RenewOptions struct {
	Root         string
	NewAuthority bool // clients must be given the new one
	Now          time.Time
	Run          Runner
}

// Renew renews the certificate of an installed registry, reloads the registry, and returns the new expiry time.
func Renew(ctx context.Context, o RenewOptions) (time.Time, error) {
	settings, err := Load(o.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, errors.New("no registry is installed here; run kkbundle registry install")
	}
	if err != nil {
		return time.Time{}, err
	}
	if o.NewAuthority {
		for _, name := range []string{caPath, caKeyPath} { // a key without its certificate is replaced by the next run
			if err := os.Remove(filepath.Join(o.Root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return time.Time{}, err
			}
		}
	}
	w := &installation{Options: Options{Settings: settings, Root: o.Root, Now: o.Now, Run: o.Run}}
	ca, caPair, err := w.authority()
	if err != nil {
		return time.Time{}, err
	}
	pair, err := ca.Issue(pki.ParseNames(settings.Names), o.Now, pki.Life)
	if err != nil {
		return time.Time{}, err
	}
	if err := errors.Join(
		w.write(caKeyPath, caPair.Key, private), w.write(caPath, caPair.Cert, public),
		w.write(keyPath, pair.Key, group), w.write(certPath, pair.Cert, public),
	); err != nil {
		return time.Time{}, err
	}
	cert, err := pki.ParseCertificate(pair.Cert)
	if err != nil || o.Run == nil {
		return cert.NotAfter, err
	}
	verb := "reload"
	if settings.Own {
		verb = "restart"
	}
	for _, args := range [][]string{{"chown", "root:" + User, keyPath}, {"systemctl", verb, Unit}} {
		if err := o.Run.Run(ctx, args...); err != nil {
			return cert.NotAfter, fmt.Errorf("the new certificate is in %s, but the registry did not reload it: %w", certPath, err)
		}
	}
	return cert.NotAfter, nil
}
