package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/internal/pki"
)

// A CertificatePair is the paths of a certificate and its key, both PEM.
type CertificatePair struct{ Cert, Key string }

// Renew replaces the certificates that end before a time, or whose key does not match, with new ones of the
// authority, and returns their paths. New files have the owner and mode of the old ones. A host may lack a pair.
func Renew(authority CertificatePair, now, before time.Time, pairs ...CertificatePair) (renewed []string, err error) {
	var by *pki.Authority
	for _, p := range pairs {
		old, err := readPair(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return renewed, err
		}
		cert, err := pki.ParseCertificate(old.Cert)
		if err != nil {
			return renewed, fmt.Errorf("%s: %w", p.Cert, err)
		}
		_, mismatch := tls.X509KeyPair(old.Cert, old.Key)
		if mismatch == nil && !cert.NotAfter.Before(before) {
			continue
		}
		if by == nil {
			if by, err = readAuthority(authority); err != nil {
				return renewed, err
			}
		}
		made, err := by.Renew(cert, now, pki.LeafLife)
		if errors.Is(err, pki.ErrLasts) && mismatch == nil {
			continue
		}
		if err != nil {
			return renewed, fmt.Errorf("%s: %w", p.Cert, err)
		}
		// A run that ends between the two leaves a key that does not match; the next run makes both again.
		if err := errors.Join(replaceFile(p.Key, made.Key), replaceFile(p.Cert, made.Cert)); err != nil {
			return renewed, err
		}
		renewed = append(renewed, p.Cert)
	}
	return renewed, nil
}

func readPair(p CertificatePair) (pki.Pair, error) {
	cert, err := readSmall(p.Cert)
	if err != nil {
		return pki.Pair{}, err
	}
	key, err := readSmall(p.Key)
	return pki.Pair{Cert: cert, Key: key}, err
}

func readAuthority(p CertificatePair) (*pki.Authority, error) {
	pair, err := readPair(p)
	if err != nil {
		return nil, err
	}
	by, err := pki.ParseAuthority(pair)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Cert, err)
	}
	return by, nil
}

// readSmall reads a file of at most 1 MiB.
func readSmall(name string) ([]byte, error) {
	const most = 1 << 20
	if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if info.Size() > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return os.ReadFile(name)
}

// replaceFile replaces an existing file atomically, and keeps its owner and mode.
func replaceFile(name string, data []byte) (err error) {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && err == nil {
		err = f.Chown(int(owner.Uid), int(owner.Gid))
	}
	if err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// RestartStale restarts a running systemd unit that started before one of its certificates was written, and reports
// whether it did. So a restart that an earlier run did not reach is not forgotten.
func RestartStale(ctx context.Context, unit string, pairs ...CertificatePair) (bool, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--value", "--property=ExecMainStartTimestampMonotonic",
		unit).Output()
	if err != nil {
		return false, fmt.Errorf("start time of %s: %w", unit, err)
	}
	micros, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil || micros == 0 {
		return false, nil // it does not run
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return false, err
	}
	started := time.Now().Add(time.Duration(micros)*time.Microsecond - time.Duration(now.Nano()))
	stale := slices.ContainsFunc(pairs, func(p CertificatePair) bool {
		info, err := os.Stat(p.Cert)
		return err == nil && info.ModTime().After(started)
	})
	if !stale {
		return false, nil
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "try-restart", unit).CombinedOutput(); err != nil {
		return false, fmt.Errorf("restart %s, which has the old certificate: %w: %s", unit, err, out)
	}
	return true, nil
}
