// Labapp is the application that runs in the lab's clusters: a web server that says where it runs, and the client that
// tests need in a container without a shell.
//
//	labapp serve [ADDRESS]   answer on ADDRESS (":8080") with the host's name and the caller's address
//	labapp get URL           print the answer of URL; fails unless it is 200
//	labapp lookup NAME       print the addresses of NAME
//	labapp sleep             wait for SIGTERM
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, append(os.Args[1:], "", "")); err != nil {
		fmt.Fprintln(os.Stderr, "labapp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch args[0] {
	case "serve":
		return serve(ctx, args[1])
	case "get":
		return get(ctx, args[1])
	case "lookup":
		return lookup(ctx, args[1])
	case "sleep":
		<-ctx.Done()
		return nil
	default:
		return errors.New("serve [ADDRESS], get URL, lookup NAME or sleep")
	}
}

func serve(ctx context.Context, addr string) error {
	if addr == "" {
		addr = ":8080"
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	srv := &http.Server{
		Addr: addr, ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "labapp %s node %s from %s\n", name, os.Getenv("NODE_NAME"), r.RemoteAddr)
		}),
	}
	served := make(chan error, 1)
	go func() { served <- srv.ListenAndServe() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return srv.Close()
	}
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(os.Stdout, io.LimitReader(resp.Body, 1<<20))
	return err
}

func lookup(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addrs, "\n"))
	return nil
}
