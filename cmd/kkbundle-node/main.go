//go:build linux

// Command kkbundle-node is what kkbundle runs on hosts: it says what a host is like, receives files and carries
// connections, over its standard input and output. Its work is in installer/node.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kkbundle/kkbundle/installer/node"
)

const usage = `usage: kkbundle-node facts            < probe.json > facts.json
       kkbundle-node receive          (speaks to kkbundle)
       kkbundle-node dial HOST:PORT   (speaks to kkbundle)
       kkbundle-node version`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	syscall.Umask(0o022) // a hardened host's umask must not close directories that everybody needs
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "kkbundle-node: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "facts":
		return facts(ctx, in, out)
	case len(args) == 1 && args[0] == "receive":
		return node.Receive(ctx, "/", in, out)
	case len(args) == 2 && args[0] == "dial":
		return node.DialStdio(ctx, "tcp", args[1], in, out)
	case len(args) == 1 && args[0] == "version":
		_, err := fmt.Fprintf(out, "kkbundle-node facts %d, protocol %d\n", node.FactsVersion, node.ProtocolVersion)
		return err
	default:
		return errors.New(usage)
	}
}

func facts(ctx context.Context, in io.Reader, out io.Writer) error {
	probe, err := node.ReadProbe(in)
	if err != nil {
		return err
	}
	f, err := node.Collect(ctx, probe)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(f)
}
