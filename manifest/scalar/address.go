package scalar

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/internal/secretform"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// NoSecrets and signedAddress do not repeat the secret.
const (
	NoSecrets     = "secrets never live in this file; take the user and password out, and log in with the docker configuration or netrc"
	signedAddress = "%s in an address is a secret, and would be in the lock and the bundle for all to read; take it out, and log in with netrc"
)

// SecretParameter returns the name of the query parameter in a URL that grants access: a signature of an object store,
// or a token. It is "" if there is none.
func SecretParameter(u *url.URL) string {
	query := u.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if secretName.MatchString(name) || strings.EqualFold(name, "key") && len(query.Get(name)) >= minKey {
			return name
		}
	}
	return ""
}

// minKey is the length from which the value of a parameter called key is one, such as Google's with 39 characters.
const minKey = 20

// secretName matches names of parameters that grant access.
var secretName = regexp.MustCompile(`(?i)(?:^|[_.-])(?:sig|signature|jwt|` + secretform.Name + `)$`)

// WithoutSecrets returns a reference for public documents: without user and password, and without a query that grants
// access. Files with such addresses are refused; this is for references from other programs.
func WithoutSecrets(ref string) string {
	u, err := url.Parse(ref)
	if err != nil || u.Host == "" {
		return ref
	}
	secret := SecretParameter(u) != ""
	if u.User == nil && !secret {
		return ref
	}
	if u.User = nil; secret {
		u.RawQuery = ""
	}
	return u.String()
}

// Shown returns a reference for messages, without a password put into it by mistake.
func Shown(ref string) string {
	if u, err := url.Parse(ref); err == nil && u.User != nil {
		return document.Shorten(u.Redacted())
	}
	return document.Shorten(ref)
}

// SplitHostPort splits host or host:port; the port is 0 if there is none.
func SplitHostPort(s string) (string, int, error) {
	if strings.Contains(s, "@") {
		return "", 0, errors.New(NoSecrets)
	}
	if scheme, _, has := strings.Cut(s, "://"); has {
		return "", 0, fmt.Errorf("%q: want host or host:port, without %s://", document.Shorten(s),
			document.Shorten(scheme))
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		return "", 0, fmt.Errorf("%q is neither a host nor host:port; write an IPv6 address in brackets: [%s]",
			document.Shorten(s), a)
	}
	u, err := url.Parse("//" + s)
	if err != nil || u.Host != s || !IsHost(u.Hostname()) || u.Hostname() == "" {
		return "", 0, fmt.Errorf("%q is neither a host nor host:port", document.Shorten(s))
	}
	if u.Port() == "" {
		if strings.HasSuffix(s, ":") {
			return "", 0, fmt.Errorf("%q has no port after the colon", document.Shorten(s))
		}
		return u.Hostname(), 0, nil
	}
	port, err := parsePort(u.Port())
	return u.Hostname(), port, err
}

// CutPath splits host[:port][/path]. A scheme, which is invalid there, stays with the host.
func CutPath(s string) (host, path string) {
	from := strings.Index(s, "://")
	if from < 0 {
		host, path, _ = strings.Cut(s, "/")
		return host, path
	}
	return s, ""
}
