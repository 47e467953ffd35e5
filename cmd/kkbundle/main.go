// Command kkbundle takes Kubernetes and its applications where there is no internet.
package main

import (
	"context"
	"os"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/early"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

func main() {
	early.Done()
	ctx, stop := cli.WithSignals(context.Background())
	code := cli.Main(ctx, os.Args[1:], terminal.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}
