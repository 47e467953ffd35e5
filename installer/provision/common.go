package provision

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Fields common to both formats.

// step returns a function that appends a step, unless it is nil.
func step(into *[]Step, read func(*yaml.Node) Step) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if s := read(n); s != nil {
			*into = append(*into, s)
		}
	}
}

// steps reads a list of steps.
func (r *reader) steps(name string, into *[]Step, read func(*yaml.Node) Step) func(*yaml.Node) {
	return r.list(name, step(into, read))
}

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

func (r *reader) accounts(n *yaml.Node, names ...string) {
	for _, name := range names {
		if !accountName(name) {
			r.fail(n, "invalid user or group name %q", name)
		}
	}
}

func (r *reader) checkUser(n *yaml.Node, u User) {
	r.accounts(n, u.Groups...)
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
