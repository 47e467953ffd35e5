package upstream

import (
	"errors"
	"fmt"
	"net"

	"github.com/kkbundle/kkbundle/web/proxy"
)

// An UnreachableError means no connection to a host could be made.
type UnreachableError struct {
	host string
	err  error
}

func (e *UnreachableError) Error() string {
	const remedy = "if this network needs a proxy, set HTTPS_PROXY; if there is a mirror, name it under sources"
	var (
		dns     *net.DNSError
		op      *net.OpError
		refused *proxy.Error
	)
	switch {
	case errors.As(e.err, &refused):
		return fmt.Sprintf("%s cannot be reached: %s", e.host, refused)
	case errors.As(e.err, &op) && op.Op == "proxyconnect":
		return fmt.Sprintf("%s cannot be reached: no connection to the proxy: %s: check HTTPS_PROXY, or name hosts that need no proxy in NO_PROXY",
			e.host, Printable(op.Err.Error()))
	case errors.As(e.err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("%s cannot be reached: there is no host of that name: check its spelling; %s", e.host,
			remedy)
	case errors.As(e.err, &dns):
		return fmt.Sprintf("%s cannot be reached: looking up its name fails (%s): check this machine's network; %s",
			e.host, Printable(dns.Err), remedy)
	}
	return fmt.Sprintf("%s cannot be reached: %s: check its name and port and that it is up; %s", e.host,
		Printable(e.err.Error()), remedy)
}

func (e *UnreachableError) Unwrap() error { return e.err }

// unreachable recognizes connection errors.
func unreachable(host string, err error) error {
	var (
		dns     *net.DNSError
		op      *net.OpError
		refused *proxy.Error
	)
	switch {
	case errors.Is(err, proxy.ErrAddress):
		return &permanentError{proxy.ErrAddress}
	case errors.As(err, &refused), errors.As(err, &dns), errors.As(err, &op) && (op.Op == "dial" ||
		op.Op == "proxyconnect"):
		return &UnreachableError{host, err}
	}
	return err
}
