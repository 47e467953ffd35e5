package inpod_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kkbundle/kkbundle/deploy/incluster/inpod"
	"github.com/kkbundle/kkbundle/internal/pki"
)

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	program := []byte("#!/bin/sh\n")
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = z.Write(program)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	parts := []string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}
	for i, data := range [][]byte{packed.Bytes()[:7], packed.Bytes()[7:]} {
		if err := os.WriteFile(parts[i], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha256.Sum256(program)
	path := filepath.Join(dir, "program")
	for name, one := range map[string]struct {
		sum   string
		parts []string
	}{
		"another digest": {strings.Repeat("0", 64), parts}, "a missing part": {hex.EncodeToString(sum[:]), parts[:1]},
		"the wrong order": {hex.EncodeToString(sum[:]), []string{parts[1], parts[0]}},
	} {
		if err := inpod.Unpack(path, one.sum, one.parts); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the program is there: %v", name, err)
		}
	}
	for range 2 { // a container that starts again finds the program
		if err := inpod.Unpack(path, hex.EncodeToString(sum[:]), parts); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o755 || info.Size() != int64(len(program)) {
		t.Errorf("%v, %v", info, err)
	}
}

// TestProxy forwards to a server whose certificate the authority signed, and to no other.
func TestProxy(t *testing.T) {
	authority, pair, err := pki.NewAuthority("a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issued, err := authority.Issue(pki.ParseNames([]string{inpod.ServerName}), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d bytes", len(body))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	defer server.Close()
	other, _, err := pki.NewAuthority("b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, one := range map[string]struct {
		authority []byte
		want      string
	}{"ours": {pair.Cert, "1048576 bytes"}, "another authority": {other.PEM, ""}} {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- inpod.Proxy{Target: server.Listener.Addr().String(), Authority: one.authority}.Run(ctx, l)
		}()
		text := ""
		response, err := http.Post("http://"+l.Addr().String(), "text/plain",
			strings.NewReader(strings.Repeat("x", 1<<20)))
		if err == nil {
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			text = string(body)
		}
		if text != one.want || (one.want == "") != (err != nil) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestProxyUnderQuietClients: clients of the node that send a byte, or a whole request, and then nothing more do not
// keep its runtime from pulling.
func TestProxyUnderQuietClients(t *testing.T) {
	authority, pair, err := pki.NewAuthority("a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issued, err := authority.Issue(pki.ParseNames([]string{inpod.ServerName}), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		fmt.Fprint(w, "pulled")
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- inpod.Proxy{Target: server.Listener.Addr().String(), Authority: pair.Cert}.Run(ctx, l) }()
	const quiet = 300 // more than the proxy has places
	for _, text := range []string{"G", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
		for range quiet {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
		}
		// less than a first byte may take
		client := &http.Client{Timeout: 8 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + l.Addr().String())
		if err != nil {
			t.Errorf("%d clients that sent %q: %v", quiet, text, err)
			continue
		}
		body, _ := io.ReadAll(response.Body)
		if _ = response.Body.Close(); string(body) != "pulled" {
			t.Errorf("%d clients that sent %q: %q", quiet, text, body)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestProxyAnswersTLS: containerd tries HTTPS on the loopback address first, and HTTP only after an answer that is
// not TLS.
func TestProxyAnswersTLS(t *testing.T) {
	authority, _, err := pki.NewAuthority("a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- inpod.Proxy{Target: "127.0.0.1:1", Authority: authority.PEM}.Run(ctx, l) }()
	for range 20 {
		_, err = tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		var header tls.RecordHeaderError
		if !errors.As(err, &header) {
			t.Fatalf("got %v", err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
