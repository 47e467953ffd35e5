//go:build linux

package scale

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

const (
	servedClients = 500
	servedLimit   = 256 * mib
	servedBlobs   = 24
	servedSize    = 9 * mib // three frames each, together more than the server keeps decoded
)

// TestServeClients has 500 clients pull compressed blobs at once, each another one first, from a server that has
// nowhere to put temporary files. Every byte is compared; nothing fails; the server stays small.
func TestServeClients(t *testing.T) {
	b := bundletest.NewBuilder(t)
	digests := make([]digest.Digest, servedBlobs)
	for i := range digests {
		random := make([]byte, servedSize/2)
		rand.New(rand.NewSource(int64(i))).Read(random)
		content := []byte(hex.EncodeToString(random))
		b.File(fmt.Sprintf("https://files.example/%d", i), "file", nil, content)
		digests[i] = digest.FromBytes(content)
	}
	path := b.Bundle().Path
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(servedBlobs * servedSize * 6 / 10); info.Size() > most {
		t.Fatalf("the bundle has %d bytes, want at most %d: its blobs are not compressed", info.Size(), most)
	}
	url, pid := served(t, path)
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: time.Minute}).DialContext}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	start := time.Now()
	var wg sync.WaitGroup
	for i := range servedClients {
		wg.Go(func() {
			n := i % servedBlobs
			if err := pull(t.Context(), client, fmt.Sprintf("%sv2/files.example/%d/blobs/%s", url, n, digests[n]),
				digests[n]); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	peak := peakOf(t, string(text))
	t.Logf("%d clients: %d MiB resident at most, %.1f s", servedClients, peak/mib, time.Since(start).Seconds())
	if peak >= servedLimit {
		t.Errorf("the server had %d MiB in memory; at most %d are allowed", peak/mib, servedLimit/mib)
	}
}

// peakOf reads VmHWM out of /proc/PID/status.
func peakOf(t *testing.T, status string) int64 {
	t.Helper()
	for line := range strings.Lines(status) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("the kernel does not say how much memory was in use")
	return 0
}

func pull(ctx context.Context, client *http.Client, url string, want digest.Digest) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	v := want.Verifier()
	n, err := io.Copy(v, res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || !v.Verified()) {
		err = errors.New(res.Status + " and another content")
	}
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	return nil
}

// served starts the program on a bundle and returns its address, once it says it.
func served(t *testing.T, path string) (url string, pid int) {
	t.Helper()
	cmd := exec.Command(program(t), "serve", "--listen", "127.0.0.1:0", path) //nolint:noctx // ended below, as Ctrl-C does
	cmd.Env = append(defaults(), "TMPDIR=/proc/nowhere")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	url, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(start))
	return strings.TrimSpace(url), cmd.Process.Pid
}
