//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/transfer"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
	"github.com/kkbundle/kkbundle/installer/node"
)

// build builds the helper as `make helper` does.
func build(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile(buildIn(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// buildIn builds it into a directory, where it may be run: a program that this process itself wrote cannot be as long
// as a child that another test starts at that moment has it open for writing.
func buildIn(t *testing.T, dir string) (file string) {
	t.Helper()
	file = filepath.Join(dir, "kkbundle-node")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", file, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return file
}

// TestSlim holds what the helper may weigh and import.
func TestSlim(t *testing.T) {
	t.Parallel()
	const most = 10 << 20
	if size := len(build(t)); size > most {
		t.Errorf("the helper has %d bytes, the limit is %d", size, most)
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{
		"github.com/kkbundle/kkbundle/cmd/kkbundle-node", "github.com/kkbundle/kkbundle/installer/node",
		"github.com/kkbundle/kkbundle/installer/node/", // its rooms
		"github.com/kkbundle/kkbundle/internal/capped", "github.com/kkbundle/kkbundle/internal/plain",
		"golang.org/x/sys/",
		"github.com/kkbundle/kkbundle/internal/pki", // renews certificates
		"github.com/kkbundle/kkbundle/web",          // copies etcd to a storage of S3
		"filippo.io/", "golang.org/x/crypto/",       // encrypts copies of etcd (age)
	}
	for _, p := range strings.Fields(string(out)) {
		if !slices.ContainsFunc(allowed,
			func(a string) bool { return p == a || strings.HasSuffix(a, "/") && strings.HasPrefix(p, a) }) {
			t.Errorf("the helper imports %s", p)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"help"}, {"dial"}, {"facts", "x"}} {
		if err := run(t.Context(), args, strings.NewReader(""), io.Discard); err == nil ||
			!strings.Contains(err.Error(), "usage:") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestOverSSH does with the helper what an installation does, through sshd and sudo. sshd forbids forwarding.
func TestOverSSH(t *testing.T) {
	t.Parallel()
	binary := build(t)
	// The host's /var/lib/kkbundle and /opt are mounted over, in sshd's namespace only.
	s := hosttest.StartSSHD(t, hosttest.SSHDOptions{Private: []string{"/var/lib", "/opt"}})
	h, err := host.Dial(t.Context(), host.SSHOptions{
		Address: s.Host, Port: s.Port, User: hosttest.UserSudoPassword, Keys: []string{s.KeyFile},
		KnownHosts:   []string{s.KnownHosts},
		SudoPassword: func(context.Context) (string, error) { return hosttest.Password, nil }, Patience: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()

	t.Run("put", func(t *testing.T) {
		if arch, err := host.Arch(t.Context(), h); err != nil || arch == "" {
			t.Fatalf("%q, %v", arch, err)
		}
		if changed, err := host.PutHelper(t.Context(), h, binary); err != nil || !changed {
			t.Fatalf("first: %v, %v", changed, err)
		}
		if changed, err := host.PutHelper(t.Context(), h, binary); err != nil || changed {
			t.Errorf("second: %v, %v", changed, err)
		}
		if out, err := host.Output(t.Context(), h, "stat", "-c", "%a %u", "/var/lib/kkbundle", "/var/lib/kkbundle/bin",
			host.HelperPath); err != nil || string(out) != "700 0\n700 0\n700 0\n" {
			t.Errorf("modes: %q, %v", out, err)
		}
		if err := h.Run(t.Context(), host.Cmd{Args: []string{"sh", "-c", "echo x >>" + host.HelperPath}}); err != nil {
			t.Fatal(err)
		}
		if changed, err := host.PutHelper(t.Context(), h, binary); err != nil || !changed {
			t.Errorf("after damage: %v, %v", changed, err)
		}
		if _, err := host.PutHelper(t.Context(), h, []byte("no program")); err == nil ||
			!strings.Contains(err.Error(), "does not run") {
			t.Errorf("no program: %v", err)
		}
		if _, err := host.PutHelper(t.Context(), h, binary); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("facts", func(t *testing.T) {
		var out bytes.Buffer
		err := h.Run(t.Context(), host.Cmd{
			Args:  []string{host.HelperPath, "facts"},
			Stdin: strings.NewReader(`{"ports":[1]}`), Stdout: &out,
		})
		if err != nil {
			t.Fatal(err)
		}
		var f node.Facts
		if err := json.Unmarshal(out.Bytes(), &f); err != nil || f.UID != 0 || f.Version != node.FactsVersion ||
			len(f.Ports) != 1 {
			t.Errorf("%+v, %v", f, err)
		}
	})
	t.Run("receive", func(t *testing.T) {
		data := bytes.Repeat([]byte("content "), 1<<18)
		sum := sha256.Sum256(data)
		plan := transfer.Plan{Files: []transfer.PlannedFile{{
			Name: "x", Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(data)), Path: "/opt/x",
			Mode: 0o755,
		}}}
		send := func(open transfer.Opener) (transfer.Summary, error) {
			stream := host.Open(t.Context(), h, host.HelperPath, "receive")
			defer func() { _ = stream.Close() }()
			return transfer.Send(t.Context(), stream, stream, plan, transfer.Source{Open: open})
		}
		open := func(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data[offset:])), nil
		}
		if got, err := send(open); err != nil || got.Sent != int64(len(data)) || len(got.Changed) != 1 {
			t.Fatalf("first: %+v, %v", got, err)
		}
		if got, err := send(open); err != nil || got.Sent != 0 || len(got.Changed) != 0 {
			t.Errorf("second: %+v, %v", got, err)
		}
		if out, err := host.Output(t.Context(), h, "stat", "-c", "%a %u %s", "/opt/x"); err != nil ||
			string(out) != "755 0 2097152\n" {
			t.Errorf("%q, %v", out, err)
		}
		plan.Files[0].Path, plan.Files[0].Mode = "/opt/x/y", 0o644 // x is a file: the helper stops while we are sending
		if _, err := send(open); err == nil || !strings.Contains(err.Error(), "make the directory of x/y") {
			t.Errorf("below a file: %v", err)
		}
	})
	t.Run("dial", func(t *testing.T) {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "through the host")
		}))
		defer web.Close()
		transport := &http.Transport{DialContext: node.Dialer(func(ctx context.Context,
			args ...string,
		) io.ReadWriteCloser {
			return host.Open(ctx, h, append([]string{host.HelperPath}, args...)...)
		})}
		r, err := (&http.Client{Transport: transport}).Get(web.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || string(body) != "through the host" {
			t.Errorf("%q, %v", body, err)
		}
		transport.CloseIdleConnections()
		if _, err := transport.DialContext(t.Context(), "tcp", "127.0.0.1:1"); err == nil ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Errorf("nobody there: %v", err)
		}
	})
}
