//go:build linux

// Command kkbundle-registry is the registry that kkbundle deploy brings into a cluster and, as a worker, that of
// kkbundle registry serve and gc. In a cluster, pulls come over TLS from the nodes. Pushes are accepted only on the
// pod's loopback address, which the API server's port-forward reaches and the cluster's network does not.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/registry/embedded"
	"github.com/kkbundle/kkbundle/registry/httpd"
	"github.com/kkbundle/kkbundle/registry/worker"
)

func main() {
	var err error
	if len(os.Args) == 2 && os.Args[1] == worker.Argument {
		err = worker.Serve(context.Background(), backend())
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, os.Args[1:])
		stop()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kkbundle-registry: %v\n", err)
		os.Exit(1)
	}
}

// backend is the registry that a worker serves.
func backend() worker.Backend {
	return worker.Backend{
		Open: func(ctx context.Context, o worker.Options, log *slog.Logger) (worker.Server, error) {
			return embedded.Open(ctx, embedded.Options{
				Dir: o.Dir, Users: o.Users, Pullers: o.Pullers, Delete: o.Delete,
				ReadOnly: o.ReadOnly, Logger: log,
			})
		},
		Collect: func(ctx context.Context, o worker.CollectOptions, log *slog.Logger) (worker.Collected, error) {
			c, err := embedded.Collect(ctx, embedded.CollectOptions{
				Dir: o.Dir, DryRun: o.DryRun, Untagged: o.Untagged,
				Logger: log,
			})
			return worker.Collected(c), err
		},
	}
}

func run(ctx context.Context, args []string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	flags := flag.NewFlagSet("kkbundle-registry", flag.ContinueOnError)
	o := embedded.Options{Delete: true, Logger: log}
	flags.StringVar(&o.Dir, "dir", "", "directory of the content")
	flags.StringVar(&o.Users, "users", "", "htpasswd file of the users that may push")
	flags.StringVar(&o.Pullers, "pullers", "", "htpasswd file of the users that may only pull")
	certificate := flags.String("certificate", "", "certificate file")
	key := flags.String("key", "", "the certificate's key file")
	pull := flags.String("pull", ":5443", "address for pulls, over TLS")
	push := flags.String("push", "127.0.0.1:5000", "address for pushes and pulls, over TLS")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Dir == "" || o.Users == "" || o.Pullers == "" {
		return errors.New("-dir, -users and -pullers are required")
	}
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	return serve(ctx, o, pair, *pull, *push)
}

// serve answers until ctx ends or one of the listeners fails.
func serve(ctx context.Context, o embedded.Options, pair tls.Certificate, pull, push string) (err error) {
	var config net.ListenConfig
	pulls, err := config.Listen(ctx, "tcp", pull)
	if err != nil {
		return err
	}
	defer pulls.Close()
	pushes, err := config.Listen(ctx, "tcp", push)
	if err != nil {
		return err
	}
	defer pushes.Close()
	r, err := embedded.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	certificate := func() *tls.Certificate { return &pair }
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- httpd.Server{
			Handler: readOnly(r), Certificate: certificate, Limits: limits(),
			Logger: o.Logger,
		}.Run(ctx, pulls)
	}()
	// Between the push and this address are port-forward and a port of another machine, so the registry proves itself
	// here, too.
	err = r.Run(ctx, pushes, certificate)
	cancel()
	return errors.Join(err, <-done)
}

// readOnly refuses requests that would change content.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			http.Error(w, "this address is for pulls only: push with kkbundle deploy", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, req)
	})
}

func limits() httpd.Limits {
	return httpd.Limits{Idle: 2 * time.Minute, Grace: 20 * time.Second, MaxHeader: 64 << 10}
}
