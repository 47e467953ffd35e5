// Package proxy reads the proxies of the environment, and explains their refusals. A proxy's address often has a
// password: it is never repeated, and no part of it is taken for a host.
package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/kkbundle/kkbundle/web"
)

// ErrAddress stands for an invalid proxy address, which is not repeated.
var ErrAddress error = addressError{}

type addressError struct{}

func (addressError) Error() string {
	return "the proxy's address is not valid: check HTTPS_PROXY and HTTP_PROXY " +
		"(want http://user:password@host:port, with @ : / ? # % in a password written as %40 %3A %2F %3F %23 %25)"
}

// CanPass is false: it stays invalid.
func (addressError) CanPass() bool { return false }

// FromEnvironment reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in upper or lower case, for http.Transport.Proxy.
// net/http's own function reads them once per process, ignores some invalid addresses, and looks up parts of a
// password as a host.
func FromEnvironment() func(*http.Request) (*url.URL, error) {
	config := httpproxy.FromEnvironment()
	valid := map[string]bool{"https": isAddress(config.HTTPSProxy), "http": isAddress(config.HTTPProxy)}
	choose := config.ProxyFunc()
	return func(req *http.Request) (*url.URL, error) {
		if !valid[req.URL.Scheme] {
			return nil, ErrAddress
		}
		u, err := choose(req.URL)
		if err != nil {
			return nil, ErrAddress
		}
		return u, nil
	}
}

// isAddress accepts addresses that net/http can use, with or without a scheme, or none. Anything after the host is
// the rest of a password with / ? or # in it: the part before would be taken for the host.
func isAddress(address string) bool {
	if address == "" {
		return true
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	return err == nil && u.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "socks5h"},
		u.Scheme) &&
		(u.Path == "" || u.Path == "/") && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" &&
		!strings.HasSuffix(address, "#")
}

// Answered turns a proxy's refusal to connect into an *Error, for http.Transport.OnProxyConnectResponse. A page is a
// refusal, too: what follows it is no connection.
func Answered(_ context.Context, proxy *url.URL, _ *http.Request, resp *http.Response) error {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	// RFC 9110, section 9.3.6: a tunnel's answer has no content, whatever type a proxy puts there by default.
	has := resp.ContentLength > 0 || len(resp.TransferEncoding) > 0
	page := has && strings.EqualFold(strings.TrimSpace(kind), "text/html")
	if resp.StatusCode == http.StatusOK && !page {
		return nil
	}
	return &Error{Proxy: proxy.Host, Code: resp.StatusCode, page: page}
}

// An Error is a proxy's refusal to connect.
type Error struct {
	Proxy string // host:port
	Code  int
	page  bool // a web page came with it
}

func (e *Error) Error() string {
	text := fmt.Sprintf("proxy %s answers %d %s", e.Proxy, e.Code, http.StatusText(e.Code))
	switch e.Code {
	case http.StatusProxyAuthRequired:
		return text + ": put user and password into the address in HTTPS_PROXY (http://user:password@host:port)"
	case http.StatusForbidden:
		return text + ": the proxy blocks this host; ask its administrator, or name a mirror under sources"
	}
	if e.page && e.Code < http.StatusInternalServerError || e.Code >= 300 && e.Code < 400 {
		return text + " with a page in place of a connection: it may want a sign-in in a browser, or be no proxy; check HTTPS_PROXY, or ask its administrator"
	}
	return text + ": the proxy cannot reach this host either; check the name, or name a mirror under sources"
}

// CanPass reports whether the proxy may connect a little later.
func (e *Error) CanPass() bool { return web.PassingStatus(e.Code) }

// LoginText explains an answer with 407 to a request for a host. Requests without TLS go through the proxy
// themselves, so its refusal looks like the host's.
func LoginText(host string) string {
	return fmt.Sprintf("the proxy before %s requires a login: put user and password into the address in HTTP_PROXY and HTTPS_PROXY (http://user:password@host:port)", host)
}
