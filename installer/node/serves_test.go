package node

import (
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestServes(t *testing.T) {
	t.Parallel()
	status := http.StatusUnauthorized
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := file("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	check := func(address, ca, want string) {
		t.Helper()
		err := serves(t.Context(), address, ca, time.Hour)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	check(address, ca, "")
	status = http.StatusOK
	check(address, ca, "")
	status = http.StatusServiceUnavailable
	check(address, ca, "503")
	check(address, file("none.crt", []byte("x")), "no certificate")
	check(address, filepath.Join(dir, "missing.crt"), "missing.crt")

	check("127.0.0.1:1", ca, "refused") // nobody's

	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- serves(ctx, silent.Addr().String(), ca, time.Hour) }()
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if err := <-done; err == nil {
		t.Error("a server that says nothing serves")
	}
}
