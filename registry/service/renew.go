package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/pki"
)

const (
	timer        = name + "-certificates.timer"
	renewUnit    = name + "-certificates.service"
	timerPath    = unitDir + timer
	renewPath    = unitDir + renewUnit
	renewingPath = configDir + "/renewing" // exists during a renewal

	// renewDays before its end, the timer and install renew a certificate.
	renewDays   = 60
	renewBefore = renewDays * 24 * time.Hour
)

// timerFiles returns the units that renew the certificate. The timer looks at it every day.
func (w *installation) timerFiles() []hostfile.File {
	programs := w.programs()
	tool := path.Join(programDir, programs[len(programs)-1].Name)
	unit := fmt.Appendf(nil, `%s
[Unit]
Description=Renew the certificate of this site's registry

[Service]
Type=oneshot
ExecStart=%s registry certs renew --days %d
`, mark, tool, renewDays)
	const when = mark + `
[Unit]
Description=Look for a certificate of this site's registry that ends soon

[Timer]
OnCalendar=*-*-* 02:30:00
RandomizedDelaySec=20min
Persistent=true

[Install]
WantedBy=timers.target
`
	return []hostfile.File{
		{Path: renewPath, Mode: public, Data: unit, Mark: mark},
		{Path: timerPath, Mode: public, Data: []byte(when), Mark: mark},
	}
}

// RenewOptions are the options of Renew.
type RenewOptions struct {
	Root         string
	NewAuthority bool          // clients must be given the new one
	Within       time.Duration // renew only a certificate that ends within this time; 0 renews any
	Now          time.Time
	Run          Runner // nil if Root is not a running host
}

// Renewed is the result of Renew.
type Renewed struct {
	Changed bool // the certificate was renewed
	Ends    time.Time
}

// Renew renews the certificate of an installed registry, and reloads the registry.
func Renew(ctx context.Context, o RenewOptions) (Renewed, error) {
	settings, err := Load(o.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return Renewed{}, errors.New("no registry is installed here; run kkbundle registry install")
	}
	if err != nil {
		return Renewed{}, err
	}
	w := &installation{Options: Options{Settings: settings, Root: o.Root, Now: o.Now, Run: o.Run}}
	if o.NewAuthority { // a key without its certificate is replaced by the next run
		if err := errors.Join(w.remove(caPath), w.remove(caKeyPath)); err != nil {
			return Renewed{}, err
		}
	} else if len(w.existing(caPath)) == 0 {
		return Renewed{}, fmt.Errorf(
			"the authority's certificate %s is missing: restore it, or run kkbundle registry certs renew --new-ca, and give all clients the new one", caPath)
	}
	ca, caPair, err := w.authority()
	if err != nil {
		return Renewed{}, err
	}
	names := pki.ParseNames(settings.Names)
	current := pki.Pair{Cert: w.existing(certPath), Key: w.existing(keyPath)}
	if o.Within > 0 && !w.interrupted() && ca.Fits(current, names, o.Now, o.Within) {
		cert, err := pki.ParseCertificate(current.Cert)
		if err != nil {
			return Renewed{}, err
		}
		return Renewed{Ends: cert.NotAfter}, nil
	}
	pair, err := ca.Issue(names, o.Now, pki.LeafLife)
	if err != nil {
		return Renewed{}, err
	}
	cert, err := pki.ParseCertificate(pair.Cert)
	if err != nil {
		return Renewed{}, err
	}
	if err := w.write(renewingPath, nil, private); err != nil {
		return Renewed{}, err
	}
	if err := errors.Join(
		w.write(caKeyPath, caPair.Key, private), w.write(caPath, caPair.Cert, public),
		w.write(keyPath, pair.Key, group), w.write(certPath, pair.Cert, public),
	); err != nil {
		return Renewed{}, err
	}
	res := Renewed{Changed: true, Ends: cert.NotAfter}
	if err := w.reload(ctx); err != nil {
		return res, fmt.Errorf("the new certificate is in %s, but the registry did not reload it: %w", certPath, err)
	}
	return res, w.remove(renewingPath)
}

// interrupted reports whether a renewal was interrupted, perhaps before the registry loaded the certificate.
func (w *installation) interrupted() bool {
	_, err := os.Lstat(filepath.Join(w.Root, renewingPath))
	return err == nil
}

// reload makes a running registry load its certificate. Our registry reloads; the registry program cannot, and
// restarts.
func (w *installation) reload(ctx context.Context) error {
	if w.Run == nil {
		return nil
	}
	if err := w.Run.Run(ctx, "chown", "root:"+User, keyPath); err != nil {
		return err
	}
	return w.Run.Run(ctx, "systemctl", "try-reload-or-restart", Unit)
}
