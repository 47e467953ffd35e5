package software

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// DefaultDir is where the lab keeps what it has built: $KKBUNDLE_LAB, else kkbundle-lab in the user's cache
// directory. It lies outside the checkout, so that a fresh clone finds what an earlier one built.
func DefaultDir() (string, error) {
	if dir := os.Getenv("KKBUNDLE_LAB"); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the lab's software (set KKBUNDLE_LAB): %w", err)
	}
	return filepath.Join(cache, "kkbundle-lab"), nil
}

// lock waits until no other process builds in dir.
func lock(ctx context.Context, dir string, say func(string, ...any)) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory of the lab: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock of the lab: %w", err)
	}
	for waiting := false; ; waiting = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if !waiting {
			say("another process builds in %s; waiting", dir)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// output makes dir/name-key by calling fill with an empty directory. A directory under its final name is always
// complete.
func output(dir, name, key string, fill func(tmp string) error) (string, error) {
	tmp, err := os.MkdirTemp(dir, "tmp-"+name+"-")
	if err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	if err := errors.Join(os.Chmod(tmp, 0o755), fill(tmp)); err != nil {
		return "", errors.Join(fmt.Errorf("make %s: %w", name, err), os.RemoveAll(tmp))
	}
	path := filepath.Join(dir, name+"-"+key)
	if err := os.Rename(tmp, path); err != nil {
		return "", errors.Join(fmt.Errorf("make %s: %w", name, err), os.RemoveAll(tmp))
	}
	return path, nil
}

// keyOf names an output after everything that it is made from: equal inputs, equal name.
func keyOf(inputs ...any) (string, error) {
	data, err := json.Marshal(append(inputs, runtime.Version(), runtime.GOARCH))
	if err != nil {
		return "", fmt.Errorf("key of a lab output: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6]), nil
}
