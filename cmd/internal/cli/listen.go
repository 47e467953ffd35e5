package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// listen opens the TCP address that a flag names. A port in use is named with the way around.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.As(err, new(*net.AddrError)):
		return nil, usage.Errorf("%s %s: want HOST:PORT, with a port up to 65535", flag, plain.Line(address))
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, plain.Advise(fmt.Errorf("%s %s: another program uses the port", flag, plain.Line(address)),
			"name another port with "+flag+" HOST:PORT, or end that program (as root, ss -ltnp names it)")
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", flag, plain.Line(address), err)
	}
	return l, nil
}
