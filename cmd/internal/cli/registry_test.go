package cli_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

func run(t *testing.T, stdin string, args ...string) (code int, out, text string) {
	t.Helper()
	var o, e bytes.Buffer
	code = cli.Main(t.Context(), args, terminal.Streams{In: strings.NewReader(stdin), Out: &o, Err: &e})
	return code, o.String(), e.String()
}

func addUser(t *testing.T, path, login string) {
	t.Helper()
	user, password, _ := strings.Cut(login, ":")
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err == nil {
		err = os.WriteFile(path+".new", []byte(user+":"+string(hash)+"\n"), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRegistryServe seeds a registry of our own with push, replaces its users, and collects garbage.
func TestRegistryServe(t *testing.T) {
	dir := t.TempDir()
	content, users := filepath.Join(dir, "content"), filepath.Join(dir, "users")
	addUser(t, users, "ops:correct-horse")
	path := bundletest.New(t).Path
	s := start(t, "registry", "serve", "--json", "-v", "--dir", content, "--listen", "0.0.0.0:0", "--tls-auto",
		"--htpasswd", users,
		"--delete", "--metrics", "127.0.0.1:0")
	var x struct{ URL, CA string }
	if err := json.NewDecoder(s.out).Decode(&x); err != nil {
		t.Fatal(err, s.err)
	}
	host := "127.0.0.1" + strings.TrimSuffix(x.URL[strings.LastIndexByte(x.URL, ':'):], "/")
	push := func(password string) (int, string, string) {
		return run(t, password, "push", "--registry", host+"/mirror", "--ca", x.CA, "-u", "ops", "--password-stdin",
			path)
	}
	if code, _, text := push("wrong-horse"); code != 15 || !strings.Contains(text, "rejects user") {
		t.Errorf("a wrong password: exit code %d\n%s", code, text)
	}
	if code, out, text := push("correct-horse"); code != 0 || strings.Contains(text, "instead of sha256:") ||
		!strings.Contains(out, "@sha256:") {
		t.Errorf("exit code %d; was a sparse index refused?\n%s", code, text)
	}
	if code, _, text := run(t, "", "registry", "gc", "--dir", content); code != 17 ||
		!strings.Contains(text, "--read-only") {
		t.Errorf("gc beside a registry that writes: exit code %d\n%s", code, text)
	}
	if code, _, text := run(t, "", "registry", "serve", "--dir", content, "--listen", "127.0.0.1:0"); code != 17 ||
		!strings.Contains(text, "may write there") {
		t.Errorf("a second registry: exit code %d\n%s", code, text)
	}
	addUser(t, users, "ops:battery-staple")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for code := -1; code != 0 && t.Context().Err() == nil; { // the test's own time limit ends this
		code, _, _ = push("battery-staple")
	}
	if code, _, _ := push("correct-horse"); code != 15 {
		t.Errorf("the old password after SIGHUP: exit code %d", code)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.err)
	}
	for _, secret := range []string{"horse", "battery", "_state="} {
		if strings.Contains(s.err.String(), secret) {
			t.Errorf("%q is in the log:\n%s", secret, s.err)
		}
	}
	if code, out, text := run(t, "", "registry", "gc", "--dir", content, "--dry-run", "--untagged"); code != 0 ||
		!strings.HasPrefix(out, "would remove 0 manifests and 0 blobs") {
		t.Errorf("gc: exit code %d\n%s%s", code, out, text)
	}
	blobs, err := filepath.Glob(filepath.Join(content, "docker/registry/v2/repositories/mirror/*"))
	if err != nil || len(blobs) == 0 {
		t.Errorf("nothing lies where distribution keeps it: %v", err)
	}
}

// TestRegistryTLS is what the server speaks.
func TestRegistryTLS(t *testing.T) {
	s := start(t, "registry", "serve", "--json", "--dir", t.TempDir(), "--listen", "127.0.0.1:0", "--tls-auto",
		"--read-only")
	var x struct{ URL, CA string }
	if err := json.NewDecoder(s.out).Decode(&x); err != nil {
		t.Fatal(err, s.err)
	}
	pem, err := os.ReadFile(x.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:    pool,
		MinVersion: tls.VersionTLS12,
	}}}
	if status, body := get(t, client, x.URL+"v2/"); status != 200 || body != "{}" {
		t.Errorf("%d %q", status, body)
	}
	if status, _ := get(t, client, x.URL); status != 404 {
		t.Errorf("what is not below /v2/: %d", status)
	}
	client.CloseIdleConnections()
	old := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS11}}} //nolint:gosec // which is refused
	if resp, err := old.Get(x.URL); err == nil {
		resp.Body.Close()
		t.Error("TLS 1.1 is spoken")
	}
}
