//go:build linux

package containerd

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

const (
	mib         = 1 << 20
	few         = 50 // clients, for comparison
	many        = 500
	blobs       = 24
	size        = 6*mib + 12345
	parallelism = 3         // containerd's default of max_concurrent_downloads
	chunk       = 512 << 10 // of concurrent_layer_fetch_buffer; clients hold three each
	memoryLimit = 384 * mib // resident, of a server; seen on a busy machine: 287 MiB
	filesLimit  = 32        // open files of a server without clients, beyond those that it had after its first request
	idle        = 100       // goroutines of a server that no client is connected to
)

// TestParallelPulls has 50, then 500 clients pull blobs at once, each in ranges of 512 KiB and three of them at a
// time, as containerd 2 does with concurrent_layer_fetch_buffer. The client is containerd's own resolver and fetcher;
// each has connections of its own. Every request for a blob is answered with the range, every blob is whole, and the
// server stays small, while it serves and afterwards. All clients are in this process: a client that has no processor
// time is part of the test.
func TestParallelPulls(t *testing.T) {
	// the registry sends manifests whole, on which the client falls back and says so
	if err := log.SetLevel("warn"); err != nil {
		t.Fatal(err)
	}
	program := buildProgram(t)
	bundle := buildBundle(t, program)
	t.Run("serve", func(t *testing.T) {
		host, server := start(t, program, "serve", "--listen", "127.0.0.1:0", bundle)
		pullAll(t, host, server)
	})
	t.Run("registry serve", func(t *testing.T) {
		host, server := start(t, program, "registry", "serve", "--listen", "127.0.0.1:0", "--dir", t.TempDir())
		run(t, program, "push", "--quiet", "--plain-http", "--registry", host, bundle)
		pullAll(t, host, server)
	})
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

func buildProgram(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("KKBUNDLE_PROGRAM"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "kkbundle")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path,
		"./cmd/kkbundle")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// buildBundle builds a bundle of files, half of which compress.
func buildBundle(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	manifest := "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: files, version: 1}\nplatforms: [linux/amd64]\nfiles:\n"
	for i := range blobs {
		content := make([]byte, size)
		if _, err := rand.NewChaCha8([32]byte{byte(i)}).Read(content); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			content = []byte(hex.EncodeToString(content))[:size]
		}
		name := fmt.Sprintf("blob-%d", i)
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		manifest += fmt.Sprintf("  - {name: %s, path: %s}\n", name, name)
	}
	file, output := filepath.Join(dir, "manifest.yaml"), filepath.Join(dir, "files.kkb")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, program, "build", "--quiet", "--cache", filepath.Join(dir, "cache"), "-o", output, file)
	return output
}

// A server is the program as a process.
type server struct {
	pid    int
	stderr *os.File
	wait   func() error
}

// start runs a server and returns its address, which is the first that it prints.
func start(t *testing.T, args ...string) (host string, s *server) {
	t.Helper()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOGC=", "GOMEMLIMIT=", "GOTRACEBACK=all")
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s = &server{cmd.Process.Pid, stderr, sync.OnceValue(cmd.Wait)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = s.wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, host, _ = strings.Cut(strings.TrimSpace(line), "//")
	return strings.TrimSuffix(host, "/"), s
}

// status reads a field of /proc/PID/status.
func (s *server) status(t *testing.T, field string) (n int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, field+": %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no %s in\n%s", field, text)
	return 0
}

// forgetPeak makes VmHWM count anew.
func (s *server) forgetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.pid), []byte("5"), 0o200); err != nil {
		t.Fatal(err)
	}
}

func (s *server) files(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// goroutines ends the server with SIGQUIT, which has Go's runtime print them.
func (s *server) goroutines(t *testing.T) int {
	t.Helper()
	if err := syscall.Kill(s.pid, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("the server ended with %v", err)
	}
	text, err := os.ReadFile(s.stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count("\n"+string(text), "\ngoroutine ")
}

// pullAll pulls with few and with many clients, and compares the files and goroutines of the server with their limits.
func pullAll(t *testing.T, host string, s *server) {
	t.Helper()
	pull(t.Context(), t, host, 0, &answers{}) // the first request opens what stays open
	before := s.files(t)
	for _, clients := range []int{few, many} {
		pullAtOnce(t, host, s, clients)
		wait(t, func() bool { return s.files(t) <= before+filesLimit })
	}
	if after := s.goroutines(t); after > idle {
		t.Errorf("%d goroutines without a client, at most %d are allowed", after, idle)
	}
}

func pullAtOnce(t *testing.T, host string, s *server, clients int) {
	t.Helper()
	s.forgetPeak(t)
	before, begin := s.files(t), time.Now()
	var got answers
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { pull(t.Context(), t, host, i, &got) })
	}
	most, done := 0, make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		most = max(most, s.files(t))
		select {
		case <-done:
			running = false
		case <-time.After(50 * time.Millisecond):
		}
	}
	peak := s.status(t, "VmHWM") << 10
	t.Logf("%d clients, %d ranges, %d other answers, %.1f s; at most %d MiB resident, %d open files",
		clients, got.ranges.Load(), got.others.Load(), time.Since(begin).Seconds(), peak/mib, most)
	if want := int64(clients * ((size + chunk - 1) / chunk)); got.ranges.Load() < want || got.others.Load() != 0 {
		t.Errorf("%d ranges and %d other answers, want at least %d and 0: %v", got.ranges.Load(), got.others.Load(),
			want, got.first.Load())
	}
	if peak >= memoryLimit {
		t.Errorf("%d MiB resident, at most %d are allowed", peak/mib, memoryLimit/mib)
	}
	// A connection and a blob's file for each request, and as many that clients closed and the server did not see
	// closed so far.
	if limit := before + 2*2*clients*parallelism; most > limit {
		t.Errorf("%d open files, at most %d are allowed", most, limit)
	}
}

// wait waits until something is so.
func wait(t *testing.T, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("files of clients that are gone stay open")
		}
	}
}

// answers counts the answers to requests for blobs.
type answers struct {
	ranges, others atomic.Int64
	first          atomic.Value // of the others: a string
}

func (a *answers) count(r *http.Request, res *http.Response, err error) {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || r.Context().Err() != nil {
		return
	}
	if err == nil && res.StatusCode == http.StatusPartialContent {
		a.ranges.Add(1)
		return
	}
	a.others.Add(1)
	text := fmt.Sprint(err)
	if err == nil {
		text = res.Status
	}
	text = r.Header.Get("Range") + " of " + r.URL.Path + ": " + text
	a.first.CompareAndSwap(nil, text)
}

// A connection is the transport of one client.
type connection struct {
	*http.Transport
	answers *answers
}

// RoundTrip implements http.RoundTripper.
func (c connection) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.Transport.RoundTrip(r)
	c.answers.count(r, res, err)
	return res, err
}

// pull has one client resolve a tag, and fetch its manifest and layers.
func pull(ctx context.Context, t *testing.T, host string, n int, got *answers) {
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: time.Minute}).DialContext}
	defer transport.CloseIdleConnections()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(docker.MatchAllHosts),
		docker.WithClient(&http.Client{Transport: connection{transport, got}}),
	)})
	resolver.(interface {
		SetOptions(options ...transfer.ImageResolverOption)
	}).SetOptions(
		transfer.WithMaxConcurrentDownloads(parallelism), transfer.WithConcurrentLayerFetchBuffer(chunk),
		transfer.WithDownloadLimiter(semaphore.NewWeighted(parallelism)),
	)
	err := func() error {
		name, desc, err := resolver.Resolve(ctx, fmt.Sprintf("%s/local/blob-%d:latest", host, n%blobs))
		if err != nil {
			return err
		}
		fetcher, err := resolver.Fetcher(ctx, name)
		if err != nil {
			return err
		}
		var m ocispec.Manifest
		if err := fetch(ctx, fetcher, desc,
			func(r io.Reader) error { return json.NewDecoder(r).Decode(&m) }); err != nil {
			return err
		}
		for _, layer := range m.Layers {
			verifier := layer.Digest.Verifier()
			err := fetch(ctx, fetcher, layer, func(r io.Reader) error { _, err := io.Copy(verifier, r); return err })
			if err == nil && !verifier.Verified() {
				err = errors.New("another content")
			}
			if err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		t.Errorf("client %d: %v", n, err)
	}
}

func fetch(ctx context.Context, f interface {
	Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
}, d ocispec.Descriptor, use func(io.Reader) error,
) error {
	r, err := f.Fetch(ctx, d)
	if err != nil {
		return err
	}
	return errors.Join(use(r), r.Close())
}
