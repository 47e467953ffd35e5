package logins

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const authenticate = "Www-Authenticate"

// A challenge is a server's way to log in (RFC 9110, 11.6.1).
type challenge struct {
	scheme string      // lower case
	params [][2]string // names in lower case
}

func (c challenge) param(name string) string {
	for _, p := range c.params {
		if p[0] == name {
			return p[1]
		}
	}
	return ""
}

// Settle keeps the one challenge of an answer that clients of registries can meet: a token service's before a
// password's, whatever stands before it (Negotiate, for example). It rewrites it in the form that every client reads:
// registries also send several in one line, names in upper case and values without quotes. An answer without such a
// challenge stays unchanged.
//
// The token service's address is replaced by standIn and returned, nil for none; it may be relative to base.
func Settle(h http.Header, base, standIn *url.URL) (service *url.URL) {
	list := challenges(h.Values(authenticate))
	for _, c := range list {
		realm, err := base.Parse(c.param("realm"))
		if c.scheme != "bearer" || c.param("realm") == "" || err != nil || realm.Host == "" ||
			realm.Scheme != "https" && realm.Scheme != "http" {
			continue
		}
		for i, p := range c.params {
			if p[0] == "realm" {
				c.params[i][1] = standIn.String()
			}
		}
		h.Set(authenticate, c.String())
		return realm
	}
	if i := slices.IndexFunc(list, func(c challenge) bool { return c.scheme == "basic" }); i >= 0 {
		h.Set(authenticate, list[i].String())
	}
	return nil
}

// String writes a challenge as RFC 9110 has it.
func (c challenge) String() string {
	var b strings.Builder
	b.WriteString(strings.ToUpper(c.scheme[:1]) + c.scheme[1:])
	for i, p := range c.params {
		separator := ","
		if i == 0 {
			separator = " "
		}
		fmt.Fprintf(&b, `%s%s="%s"`, separator, p[0], strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(p[1]))
	}
	return b.String()
}

// challenges reads the values of WWW-Authenticate. A part "scheme" or "scheme name=value" begins a challenge;
// "name=value" belongs to the one before.
func challenges(values []string) (list []challenge) {
	for _, value := range values {
		for _, part := range fields(value) {
			first, rest, _ := strings.Cut(part, " ")
			if isScheme := !strings.Contains(first, "=") && !strings.HasPrefix(strings.TrimSpace(rest), "="); isScheme {
				list = append(list, challenge{scheme: strings.ToLower(first)})
				part = rest
			}
			name, text, ok := strings.Cut(part, "=")
			if len(list) == 0 || !ok {
				continue
			}
			last := &list[len(list)-1]
			last.params = append(last.params, [2]string{
				strings.ToLower(strings.TrimSpace(name)),
				unquoted(strings.TrimSpace(text)),
			})
		}
	}
	return list
}

// fields splits a header at commas outside quotes.
func fields(value string) (parts []string) {
	quoted, escaped := false, false
	for part := range strings.FieldsFuncSeq(value, func(r rune) bool {
		switch {
		case escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		}
		return r == ',' && !quoted
	}) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// unquoted returns a token as it is, and the content of a quoted string.
func unquoted(s string) string {
	inner, ok := strings.CutPrefix(s, `"`)
	if !ok {
		return s
	}
	var b strings.Builder
	escaped := false
	for _, r := range inner {
		switch {
		case escaped:
			b.WriteRune(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '"':
			return b.String()
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
