package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
)

// HelperPath is where PutHelper puts kkbundle-node.
const HelperPath = "/var/lib/kkbundle/bin/kkbundle-node"

// Arch returns the host's architecture in Go's spelling, "amd64" or "arm64". Another one is an error.
func Arch(ctx context.Context, h Host) (string, error) {
	out, err := Output(ctx, h, "uname", "-m")
	if err != nil {
		return "", err
	}
	switch machine := strings.TrimSpace(string(out)); machine {
	case "x86_64", "amd64":
		return "amd64", nil
	case "aarch64", "arm64":
		return "arm64", nil
	default:
		return "", fmt.Errorf("%s: architecture %q is not supported: kkbundle installs on x86_64 and aarch64", h, oneLine(machine))
	}
}

// PutHelper makes HelperPath on the host this binary, in directories that only root can enter, and checks that it runs.
// changed tells whether it was another one, or none.
func PutHelper(ctx context.Context, h Host, binary []byte) (changed bool, err error) {
	return putHelper(ctx, h, HelperPath, binary)
}

func putHelper(ctx context.Context, h Host, name string, binary []byte) (changed bool, err error) {
	sum := sha256.Sum256(binary)
	want := hex.EncodeToString(sum[:])
	if has, err := hasSum(ctx, h, name, want); has || err != nil {
		return false, err
	}
	dir := path.Dir(name)
	if err := h.Run(ctx, Cmd{Args: []string{"mkdir", "-p", "-m", "0700", path.Dir(dir), dir}}); err != nil {
		return false, err
	}
	if err := h.Run(ctx, Cmd{Args: []string{"chown", "0:0", path.Dir(dir), dir}}); err != nil {
		return false, err
	}
	if err := h.Run(ctx, Cmd{Args: []string{"chmod", "0700", path.Dir(dir), dir}}); err != nil {
		return false, err
	}
	const mode = 0o700
	if changed, err = WriteFile(ctx, h, name, mode, binary); err != nil {
		return false, err
	}
	if has, err := hasSum(ctx, h, name, want); err != nil || !has {
		return false, errors.Join(err, fmt.Errorf("%s: %s is not what was written: check the disk", h, name))
	}
	if _, err := Output(ctx, h, name, "version"); err != nil {
		return false, fmt.Errorf("%s: the helper does not run (is %s mounted noexec?): %w", h, dir, err)
	}
	return changed, nil
}

// hasSum tells whether a file that only root can change has a SHA-256.
func hasSum(ctx context.Context, h Host, name, want string) (bool, error) {
	const script = `[ -f "$1" ] && [ ! -h "$1" ] && [ "$(stat -c '%a %u' "$1")" = "700 0" ] && sha256sum <"$1" || true`
	out, err := Output(ctx, h, "sh", "-c", script, "sh", name)
	if err != nil {
		return false, err
	}
	got, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte(" "))
	return string(got) == want, nil
}
