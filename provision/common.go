package provision

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Fields common to both formats.

func (r *reader) oneOf(into *string, values ...string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.text(into)(n)
		if !slices.Contains(values, *into) {
			r.fail(n, "%q is not supported; use one of %s", *into, strings.Join(values, ", "))
		}
	}
}

func (r *reader) device(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.absolute(into)(n)
		if !strings.HasPrefix(*into, "/dev/") {
			r.fail(n, "a device must be a path below /dev, not %q", *into)
		}
	}
}

// hostName reports whether s is a host name (RFC 1123) or an address.
func hostName(s string) bool {
	return len(s) <= 253 && regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z.:-]*[0-9A-Za-z])?$`).MatchString(s)
}

func (r *reader) hostname(n *yaml.Node) Step {
	var h Hostname
	r.text(&h.Name)(n)
	if !hostName(h.Name) || strings.Contains(h.Name, ":") {
		r.fail(n, "invalid host name %q", h.Name)
	}
	return h
}

func (r *reader) timezone(n *yaml.Node) Step {
	var z Timezone
	r.text(&z.Name)(n)
	if !regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`).MatchString(z.Name) {
		r.fail(n, "invalid time zone %q", z.Name)
	}
	return z
}

func (r *reader) accounts(n *yaml.Node, names []string) {
	for _, name := range names {
		if !accountName(name) {
			r.fail(n, "invalid user or group name %q", name)
		}
	}
}

func (r *reader) checkUser(n *yaml.Node, u User) {
	r.accounts(n, u.Groups)
	if u.UID != "" && strings.Trim(u.UID, "0123456789") != "" {
		r.fail(n, "invalid user id %q", u.UID)
	}
	for _, s := range slices.Concat(u.Keys, u.Sudo, []string{u.Comment, u.PasswordHash}) {
		if strings.ContainsAny(s, "\n\x00") {
			r.fail(n, "a value of user %s has more than one line", u.Name)
		}
	}
	if strings.Contains(u.PasswordHash, ":") || strings.Contains(u.Comment, ":") {
		r.fail(n, "user %s: a value contains a colon", u.Name)
	}
}
