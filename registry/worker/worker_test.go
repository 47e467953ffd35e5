//go:build linux

package worker

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry/dirlock"
)

// TestMain makes the test binary a worker whose registry does what its directory is called.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != Argument {
		os.Exit(m.Run()) //nolint:forbidigo // this is main
	}
	err := Serve(context.Background(), Backend{
		Open: func(_ context.Context, o Options, log *slog.Logger) (Server, error) {
			switch o.Dir {
			case "locked":
				return nil, fmt.Errorf("registry directory: %w", &dirlock.LockedError{Dir: o.Dir, PID: 7})
			case "advised":
				return nil, plain.Advise(errors.New("no"), "try again")
			}
			return &fake{log: log}, nil
		},
		Collect: func(ctx context.Context, o CollectOptions, _ *slog.Logger) (Collected, error) {
			if o.Dir == "endless" {
				<-ctx.Done()
				return Collected{}, ctx.Err()
			}
			return Collected{Manifests: 1, Blobs: 2, Bytes: 3}, nil
		},
	})
	if err != nil {
		panic(err)
	}
}

type fake struct{ log *slog.Logger }

func (f *fake) Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error {
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return certificate(),
			nil
	}, MinVersion: tls.VersionTLS12}
	s := &http.Server{
		ReadHeaderTimeout: time.Minute, TLSConfig: config,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.log.Warn("request", "path", r.URL.Path, "status", 200, "took", time.Second, "yes", true)
			fmt.Fprint(w, "pulled")
		}),
	}
	go func() { <-ctx.Done(); _ = s.Close() }()
	if err := s.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (f *fake) RunMetrics(context.Context, net.Listener) error {
	os.Exit(3) //nolint:forbidigo // a worker that crashes
	return nil
}
func (f *fake) Reload() error { return nil }
func (f *fake) Close() error  { return errors.New("closed badly") }

func self(t *testing.T) []byte {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func certificateOf(t *testing.T) *tls.Certificate {
	t.Helper()
	authority, _, err := pki.NewAuthority("a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issued, err := authority.Issue(pki.ParseNames([]string{"127.0.0.1"}), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

// TestErrors have types and remedies as in one process.
func TestErrors(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), self(t), Options{Dir: "locked"}, slog.New(slog.DiscardHandler))
	var locked *dirlock.LockedError
	if !errors.As(err, &locked) || locked.PID != 7 ||
		err.Error() != "registry directory: process 7 serves locked and may write there" {
		t.Errorf("got %v", err)
	}
	_, err = Open(t.Context(), self(t), Options{Dir: "advised"}, slog.New(slog.DiscardHandler))
	var hinted interface{ Hint() string }
	if !errors.As(err, &hinted) || hinted.Hint() != "try again" {
		t.Errorf("got %v", err)
	}
	if c, err := Collect(t.Context(), self(t), CollectOptions{}, slog.New(slog.DiscardHandler)); err != nil ||
		c != (Collected{1, 2, 3}) {
		t.Errorf("%v, %v", c, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Collect(ctx, self(t), CollectOptions{Dir: "endless"}, slog.New(slog.DiscardHandler)); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("an interrupted collection: %v", err)
	}
}

// TestServe serves with one certificate, then with another, until it is stopped; then a worker crashes.
func TestServe(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r, err := Open(t.Context(), self(t), Options{}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // Run closes it
	if err != nil {
		t.Fatal(err)
	}
	pair := certificateOf(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, l, func() *tls.Certificate { return pair }) }()
	for range 2 {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		}}
		res, err := client.Get("https://" + l.Addr().String() + "/x")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || string(body) != "pulled" || !bytes.Equal(res.TLS.PeerCertificates[0].Raw,
			pair.Certificate[0]) {
			t.Errorf("%q, %v; another certificate than the current one: %t", body, err,
				!bytes.Equal(res.TLS.PeerCertificates[0].Raw, pair.Certificate[0]))
		}
		pair = certificateOf(t)
		if err := r.Reload(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := r.Close(); err == nil || err.Error() != "closed badly" {
		t.Errorf("got %v", err)
	}
	if got := log.String(); strings.Count(got, "level=WARN msg=request path=/x status=200 took=1s yes=true\n") != 2 {
		t.Errorf("the log:\n%s", got)
	}
}

// TestCrash reports a worker that ends, from a file of the temporary directory.
func TestCrash(t *testing.T) {
	t.Parallel()
	f, err := inTemporary(self(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd, sockets, err := execute(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	r := &Registry{process: newProcess(t.Context(), cmd, sockets, slog.New(slog.DiscardHandler))}
	if _, err := r.ask(t.Context(), request{Do: open, Open: &Options{}}, nil); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // RunMetrics closes it
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RunMetrics(t.Context(), l); err == nil ||
		err.Error() != "kkbundle-registry ended by itself: exit status 3" {
		t.Errorf("got %v", err)
	}
	if err := r.Close(); err == nil {
		t.Error("the end of a worker that is gone has no error")
	}
}
