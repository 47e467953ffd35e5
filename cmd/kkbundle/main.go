// Command kkbundle takes Kubernetes and its applications where there is no internet.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	code := cli.Main(ctx, os.Args[1:], terminal.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}
