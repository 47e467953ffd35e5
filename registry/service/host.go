package service

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Ready returns a function that waits until the registry below root answers. The address is unknown if the
// configuration is the operator's: then it waits until the unit has been active for a while.
func (s Settings) Ready(root string) func(context.Context) error {
	return func(ctx context.Context) error { return s.ready(ctx, root) }
}

func (s Settings) ready(ctx context.Context, root string) error {
	const pause = 300 * time.Millisecond
	look := func(ctx context.Context) error { return s.answers(ctx, root) }
	settle := 0
	if s.Own {
		const rounds = 10
		look = func(ctx context.Context) error { return commands{}.Run(ctx, "systemctl", "is-active", "--quiet", Unit) }
		settle = rounds
	}
	for good := 0; ; {
		err := look(ctx)
		if good++; err != nil {
			good = 0
		}
		if good > settle {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (s Settings) answers(ctx context.Context, root string) error {
	pem, err := os.ReadFile(filepath.Join(root, CAFile))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	host, port, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(host, port)+"/healthz",
		http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("registry answers %s", resp.Status)
	}
	return nil
}

// commands runs commands on this host.
type commands struct{}

// HostCommands returns a Runner for this host, or nil if root is the root directory of another host.
func HostCommands(root string) Runner {
	if filepath.Clean(root) != "/" {
		return nil
	}
	return commands{}
}

// Run implements Runner. The error has the output of the command.
func (commands) Run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput() //nolint:gosec // our own commands
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// OwnProgram returns the running program.
func OwnProgram() (Program, error) {
	self, err := os.Executable()
	if err != nil {
		return Program{}, err
	}
	return Program{Name: "kkbundle", Open: func() (io.ReadCloser, error) { return os.Open(self) }}, nil
}

// Unpack returns the file "registry" of an archive, or blob itself if it is no archive. At the end of the file, it
// reads the rest of the archive: a digest is checked only after the last byte.
func Unpack(blob io.ReadCloser) (io.ReadCloser, error) {
	const gzipMagic = "\x1f\x8b"
	whole := bufio.NewReader(blob)
	magic, err := whole.Peek(len(gzipMagic))
	if err != nil || !bytes.Equal(magic, []byte(gzipMagic)) {
		return struct {
			io.Reader
			io.Closer
		}{whole, blob}, nil
	}
	z, err := gzip.NewReader(whole)
	if err != nil {
		return nil, err
	}
	t := tar.NewReader(io.LimitReader(z, maxProgram))
	for {
		head, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the archive has no file registry")
		}
		if err != nil {
			return nil, err
		}
		if head.Typeflag == tar.TypeReg && path.Base(head.Name) == "registry" {
			return &archived{t, whole, blob}, nil
		}
	}
}

// maxProgram limits the size of an unpacked archive; distribution 3.1 has 60 MB.
const maxProgram = 1 << 30

type archived struct {
	member io.Reader
	rest   io.Reader
	io.Closer
}

// Read implements io.Reader.
func (a *archived) Read(p []byte) (int, error) {
	n, err := a.member.Read(p)
	if errors.Is(err, io.EOF) {
		if _, rest := io.Copy(io.Discard, a.rest); rest != nil {
			return n, rest
		}
	}
	return n, err
}
