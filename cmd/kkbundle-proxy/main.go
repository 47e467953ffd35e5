//go:build linux

// Command kkbundle-proxy runs in the pods by which kkbundle deploy brings a registry into a cluster. kkbundle-start
// puts it together. It forwards a port of the node to the registry, or unpacks the registry's program and becomes it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/kkbundle/kkbundle/deploy/incluster/inpod"
)

const usage = `usage: kkbundle-proxy forward LISTEN TARGET AUTHORITY
       kkbundle-proxy unpack PROGRAM SHA256 PART... -- NAME ARGUMENT...`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "kkbundle-proxy: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	const forward, unpack = 4, 4
	end := slices.Index(args, "--")
	switch {
	case len(args) == forward && args[0] == "forward":
		authority, err := os.ReadFile(args[3])
		if err != nil {
			return err
		}
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		return inpod.Proxy{Target: args[2], Authority: authority}.Run(ctx, l)
	case end >= unpack && end+1 < len(args) && args[0] == "unpack":
		if err := inpod.Unpack(args[1], args[2], args[3:end]); err != nil {
			return err
		}
		return fmt.Errorf("start %s: %w", args[1], syscall.Exec(args[1], args[end+1:], nil))
	}
	return fmt.Errorf("%d arguments are none of these: %s", len(args), usage)
}
