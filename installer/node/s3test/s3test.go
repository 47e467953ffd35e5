// Package s3test runs a real storage for tests: versitygw, which checks signatures and checksums as Amazon does.
package s3test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The login of every server.
const (
	AccessKey = "site"
	SecretKey = "secret-of-the-site"
)

// Start runs the server with an empty bucket until the test ends. It returns the address, host:port without TLS, and
// the directory that has the bucket's objects as files. The test is skipped where the lab has not built the program
// (testdata/lab/software).
func Start(t testing.TB, bucket string) (address, objects string) {
	t.Helper()
	program := find(t)
	root, metadata := t.TempDir(), t.TempDir() // without metadata, it joins no parts
	objects = filepath.Join(root, bucket)
	if err := os.Mkdir(objects, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	_ = l.Close() // the program opens it again
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "--access="+AccessKey, "--secret="+SecretKey, "--port="+address, "--quiet",
		"posix", "--sidecar="+metadata, root)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	for range 300 {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return address, objects
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("versitygw does not answer")
	return "", ""
}

// Before puts a server in front of a storage and returns its address. first sees each request, and reports whether it
// has answered; otherwise the storage answers, and after, unless nil, may change the answer.
func Before(t testing.TB, address string, first func(http.ResponseWriter, *http.Request) bool,
	after func(*http.Response) error,
) string {
	t.Helper()
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", address
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: after,
		// the connection breaks here, too
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// Refuse answers like a storage that refuses a request.
func Refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write([]byte("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>" + code +
		"</Code><Message>of the test</Message></Error>"))
}

func find(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", "versitygw-*", "versitygw"))
	if err != nil || len(found) == 0 {
		t.Skip("the lab has not built versitygw")
	}
	return found[0]
}
