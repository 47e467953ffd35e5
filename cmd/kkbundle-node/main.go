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
       kkbundle-node facts --record   < probe.json > facts.json   (without what identifies the machine)
       kkbundle-node facts --schema   > facts.schema.json
       kkbundle-node receive          (speaks to kkbundle)
       kkbundle-node dial HOST:PORT   (speaks to kkbundle)
       kkbundle-node listen           (speaks to kkbundle)
       kkbundle-node reach            (speaks to kkbundle)
       kkbundle-node version`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
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
		f, err := facts(ctx, in)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(f)
	case len(args) == 2 && args[0] == "facts" && args[1] == "--record":
		f, err := facts(ctx, in)
		if err != nil {
			return err
		}
		e := json.NewEncoder(out)
		e.SetIndent("", " ")
		return e.Encode(f.Anonymous())
	case len(args) == 2 && args[0] == "facts" && args[1] == "--schema":
		_, err := out.Write(node.FactsSchema())
		return err
	case len(args) == 1 && args[0] == "receive":
		syscall.Umask(0o022) // a hardened host's umask must not close directories that everybody needs
		return node.Receive(ctx, "/", in, out)
	case len(args) == 2 && args[0] == "dial":
		return node.DialStdio(ctx, "tcp", args[1], in, out)
	case len(args) == 1 && args[0] == "listen":
		return node.ServeListen(ctx, in, out)
	case len(args) == 1 && args[0] == "reach":
		return node.ServeReach(ctx, in, out)
	case len(args) == 1 && args[0] == "version":
		_, err := fmt.Fprintf(out, "kkbundle-node facts %d, protocol %d\n", node.FactsVersion, node.ProtocolVersion)
		return err
	default:
		return errors.New(usage)
	}
}

func facts(ctx context.Context, in io.Reader) (node.Facts, error) {
	probe, err := node.ReadProbe(in)
	if err != nil {
		return node.Facts{}, err
	}
	return node.Collect(ctx, probe)
}
