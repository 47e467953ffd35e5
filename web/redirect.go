package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const maxRedirects = 10

// A RedirectError means that a server leads nowhere, or elsewhere than a request may go. Trying again does not help.
type RedirectError struct{ text string }

// Error returns the reason.
func (e *RedirectError) Error() string { return e.text }

// CheckRedirect follows redirects without sending a login to another host, port or scheme: net/http forwards it to
// other ports and subdomains.
func CheckRedirect(to *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return &RedirectError{fmt.Sprintf("more than %d redirects", maxRedirects)}
	}
	if to.URL.Host != via[0].URL.Host || to.URL.Scheme != via[0].URL.Scheme {
		for _, secret := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
			to.Header.Del(secret)
		}
	}
	return nil
}

// WithoutLocation replaces net/http's error about a redirect to no valid address: it repeats the address, which may
// have a password or a signature in it.
func WithoutLocation(err error) error {
	failed, ok := errors.AsType[*url.Error](err)
	if !ok || !strings.HasPrefix(failed.Err.Error(), "failed to parse Location header") {
		return err
	}
	return &url.Error{Op: failed.Op, URL: failed.URL, Err: &RedirectError{
		"the server redirects to an address that is not valid",
	}}
}
