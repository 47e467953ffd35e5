package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

// A running server prints to out; stop ends it as Ctrl-C does and returns its exit code.
type running struct {
	out  *bufio.Reader
	err  *buffer
	stop func() int
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func startServe(t *testing.T, args ...string) running {
	t.Helper()
	return start(t, append([]string{"serve"}, args...)...)
}

// start runs a command until it is stopped.
func start(t *testing.T, args ...string) running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	x := running{out: bufio.NewReader(r), err: &buffer{}}
	code := make(chan int, 1)
	go func() {
		code <- cli.Main(ctx, args, terminal.Streams{Out: w, Err: x.err})
		w.Close()
	}()
	x.stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() { x.stop() })
	return x
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// putBundle writes a bundle with one file, dl.example/f, or replaces the one that is there.
func putBundle(t *testing.T, path, content string) {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.File("https://dl.example/f", "f", nil, []byte(content))
	data, err := os.ReadFile(b.Bundle().Path)
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hangUp makes the server look at its files again, and waits until it says something.
func (r running) hangUp(t *testing.T, says string) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(r.err.String(), says) { // the test's own time limit ends this
		if t.Context().Err() != nil {
			t.Fatal(r.err)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestServe runs the command, replaces its bundle, and ends it.
func TestServe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.kkb")
	putBundle(t, path, "old")
	s := startServe(t, "--listen", "127.0.0.1:0", path)
	url, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatal(err, s.err)
	}
	url = strings.TrimSpace(url) + "files/dl.example/f"
	if status, body := get(t, http.DefaultClient, url); status != 200 || body != "old" {
		t.Fatalf("%d %q", status, body)
	}
	root := strings.TrimSuffix(url, "files/dl.example/f")
	if _, body := get(t, http.DefaultClient, root); !strings.Contains(body, `href="/docs/"`) {
		t.Errorf("the front page does not lead to the documentation:\n%s", body)
	}
	for _, page := range []string{"docs/", "docs/day-two/reset.html", "docs/assets/index.js"} {
		if status, body := get(t, http.DefaultClient, root+page); status != 200 || !strings.Contains(body, "Reset") {
			t.Errorf("%s: %d %.200s", page, status, body)
		}
	}
	putBundle(t, path, "new")
	s.hangUp(t, "reloaded")
	if status, body := get(t, http.DefaultClient, url); status != 200 || body != "new" {
		t.Errorf("after SIGHUP: %d %q", status, body)
	}
	http.DefaultClient.CloseIdleConnections()
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.err)
	}
}

// TestServeTLS lets kkbundle make its certificate, and listens for others.
func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	s := startServe(t, "--json", "--verify", "--listen", "0.0.0.0:0", "--tls-auto", "--tls-dir",
		filepath.Join(dir, "tls"), bundletest.New(t).Path)
	var x struct{ URL, CA, Fingerprint string }
	if err := json.NewDecoder(s.out).Decode(&x); err != nil {
		t.Fatal(err, s.err)
	}
	if len(x.Fingerprint) != 32*3-1 || !strings.HasPrefix(x.URL, "https://") {
		t.Errorf("%+v", x)
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
	port := x.URL[strings.LastIndexByte(x.URL, ':'):]
	for _, host := range []string{"127.0.0.1", "localhost"} {
		if status, _ := get(t, client, "https://"+host+port+"v2/"); status != 200 {
			t.Errorf("%s: %d", host, status)
		}
	}
	if _, handed := get(t, client, "https://127.0.0.1"+port+"ca.pem"); handed != string(pem) {
		t.Errorf("/ca.pem is %q", handed)
	}
	if _, page := get(t, client, "https://127.0.0.1"+port); !strings.Contains(page, x.Fingerprint) ||
		!strings.Contains(page, "https://127.0.0.1"+strings.TrimSuffix(port, "/")+"/ca.pem") {
		t.Errorf("the page does not say how to trust it: %s", page)
	}
	client.CloseIdleConnections()
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, s.err)
	}
}

// TestServeRefuses has command lines and files that cannot be served.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	good := bundletest.New(t).Path
	bad := filepath.Join(t.TempDir(), "bad.kkb")
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/3] ^= 1
	if err := os.WriteFile(bad, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{64, "takes BUNDLE", nil},
		{64, "--tls-auto", []string{"--listen", ":0", good}},
		{64, "HOST:PORT", []string{"--listen", "5000", good}},
		{64, "--tls-key", []string{"--tls-cert", "x.pem", good}},
		{64, "exclude", []string{"--listen", ":0", "--plain-http", "--tls-auto", good}},
		{11, "damaged", []string{"--verify", good, bad}},
		{1, "nothing.kkb", []string{good, "nothing.kkb"}},
		{1, "htpasswd", []string{"--htpasswd", "nothing", good}},
	} {
		var out, text bytes.Buffer
		code := cli.Main(t.Context(), append([]string{"serve"}, c.args...), terminal.Streams{Out: &out, Err: &text})
		if code != c.code || !strings.Contains(text.String(), c.want) || out.Len() > 0 {
			t.Errorf("%q: exit code %d, want %d: %s", c.args, code, c.code, text.String())
		}
	}
}
