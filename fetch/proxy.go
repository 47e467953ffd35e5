package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// errProxy stands for an invalid proxy address. The address may have a password in it and is not repeated.
var errProxy = errors.New("the proxy's address is not valid: check HTTPS_PROXY and HTTP_PROXY (want http://host:port)")

// proxies reads the proxy environment: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in upper or lower case. net/http reads it
// only once per process, and ignores invalid addresses.
func proxies() func(*http.Request) (*url.URL, error) {
	config := httpproxy.FromEnvironment()
	valid := map[string]bool{"https": isProxy(config.HTTPSProxy), "http": isProxy(config.HTTPProxy)}
	choose := config.ProxyFunc()
	return func(req *http.Request) (*url.URL, error) {
		if !valid[req.URL.Scheme] {
			return nil, &permanentError{errProxy}
		}
		u, err := choose(req.URL)
		if err != nil {
			return nil, &permanentError{errProxy}
		}
		return u, nil
	}
}

// isProxy accepts addresses that net/http can use, with or without a scheme, or none.
func isProxy(address string) bool {
	if address == "" {
		return true
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	return err == nil && u.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme)
}

// proxyAnswered turns a proxy's refusal to connect into an error with its status.
func proxyAnswered(_ context.Context, proxy *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return &proxyError{proxy: proxy.Host, code: resp.StatusCode}
}

// A proxyError is a proxy's refusal.
type proxyError struct {
	proxy string // host:port
	code  int
}

func (e *proxyError) Error() string {
	text := fmt.Sprintf("proxy %s answers %d %s", e.proxy, e.code, http.StatusText(e.code))
	switch e.code {
	case http.StatusProxyAuthRequired:
		return text + ": put user and password into the address in HTTPS_PROXY (http://user:password@host:port)"
	case http.StatusForbidden:
		return text + ": the proxy blocks this host; ask its administrator, or name a mirror under sources"
	}
	return text + ": the proxy cannot reach this host either; check the name, or name a mirror under sources"
}

// An unreachableError means no connection to a host could be made.
type unreachableError struct {
	host string
	err  error
}

func (e *unreachableError) Error() string {
	const remedy = "if this network needs a proxy, set HTTPS_PROXY; if there is a mirror, name it under sources"
	var (
		dns   *net.DNSError
		op    *net.OpError
		proxy *proxyError
	)
	switch {
	case errors.As(e.err, &proxy):
		return fmt.Sprintf("%s cannot be reached: %s", e.host, proxy)
	case errors.As(e.err, &op) && op.Op == "proxyconnect":
		return fmt.Sprintf("%s cannot be reached: no connection to the proxy: %s: check HTTPS_PROXY, or name hosts that need no proxy in NO_PROXY",
			e.host, printable(op.Err.Error()))
	case errors.As(e.err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("%s cannot be reached: there is no host of that name: check its spelling; %s", e.host, remedy)
	case errors.As(e.err, &dns):
		return fmt.Sprintf("%s cannot be reached: looking up its name fails (%s): check this machine's network; %s", e.host, printable(dns.Err), remedy)
	}
	return fmt.Sprintf("%s cannot be reached: %s: check its name and port and that it is up; %s", e.host, printable(e.err.Error()), remedy)
}

func (e *unreachableError) Unwrap() error { return e.err }

// unreachable recognizes connection errors.
func unreachable(host string, err error) error {
	var (
		dns   *net.DNSError
		op    *net.OpError
		proxy *proxyError
	)
	switch {
	case errors.As(err, &proxy), errors.As(err, &dns), errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		return &unreachableError{host, err}
	}
	return err
}
