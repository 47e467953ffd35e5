package cli_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

// signing makes a key without a password, and returns where a bundle may be put, what signs it, and the public key's
// file.
func signing(t *testing.T) (path string, sign func() (log string), public string) {
	t.Helper()
	signer, err := trusttest.New("ed25519")
	if err != nil {
		t.Fatal(err)
	}
	private, err := signer.PrivatePEM()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, public = filepath.Join(dir, "x.kkb"), filepath.Join(dir, "a.pub")
	for name, data := range map[string][]byte{"a.key": private, "a.pub": signer.PEM} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path, func() string {
		t.Helper()
		var out, log strings.Builder
		args := []string{"sign", "--key", filepath.Join(dir, "a.key"), path}
		if code := cli.Main(t.Context(), args, terminal.Streams{Out: &out, Err: &log}); code != 0 ||
			out.String() != path+".sigstore.json\n" {
			t.Fatal(code, out.String(), log.String())
		}
		return log.String()
	}, public
}

// TestSignPlainKey warns about keys that nothing but their permissions protects.
func TestSignPlainKey(t *testing.T) {
	t.Parallel()
	path, sign, _ := signing(t)
	putBundle(t, path, "content")
	if log := sign(); !strings.Contains(log, "a.key is not encrypted: every reader can sign") {
		t.Error(log)
	}
	if err := os.Chmod(filepath.Join(filepath.Dir(path), "a.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if log := sign(); !strings.Contains(log, "a.key is not encrypted, and others can read it (mode 0644): chmod 600 ") {
		t.Error(log)
	}
}

// TestServeTrust replaces a bundle that is served: one that nobody signed is not taken up.
func TestServeTrust(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	path, sign, public := signing(t)
	putBundle(t, path, "old")
	sign()
	s := startServe(t, "--listen", "127.0.0.1:0", "--trust", public, "--require-signature", path)
	url, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatal(err, s.err)
	}
	want := func(content string) {
		t.Helper()
		if status, body := get(t, http.DefaultClient, strings.TrimSpace(url)+"files/dl.example/f"); status != 200 ||
			body != content {
			t.Errorf("%d %q, want %q", status, body, content)
		}
	}
	want("old")
	putBundle(t, path, "new")
	s.hangUp(t, "x.kkb.sigstore.json is the signature of another bundle")
	want("old")
	sign()
	s.hangUp(t, "reloaded")
	want("new")
	http.DefaultClient.CloseIdleConnections()
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.err)
	}
}
