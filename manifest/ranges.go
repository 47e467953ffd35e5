package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// MaxHosts is the most hosts that an inventory can have, ranges expanded.
const MaxHosts = 10_000

// expand returns the names in a range: node[1:3] is node1, node2 and node3, node[01:10] keeps its zeros. Text without
// brackets is a single name.
func expand(s string) ([]string, error) {
	before, rest, open := strings.Cut(s, "[")
	if !open {
		if strings.Contains(s, "]") {
			return nil, fmt.Errorf("%q has a ] without a [", document.Shorten(s))
		}
		return []string{s}, nil
	}
	inside, after, closed := strings.Cut(rest, "]")
	from, to, colon := strings.Cut(inside, ":")
	if !closed || !colon || strings.ContainsAny(after, "[]") {
		return nil, fmt.Errorf("%q is not a range; write one, as in node[1:3]", document.Shorten(s))
	}
	first, last, err := bounds(from, to)
	if err != nil {
		return nil, fmt.Errorf("range %q: %w", document.Shorten(s), err)
	}
	width := 0
	if strings.HasPrefix(from, "0") {
		width = len(from)
	}
	names := make([]string, 0, last-first+1)
	for i := first; i <= last; i++ {
		names = append(names, fmt.Sprintf("%s%0*d%s", before, width, i, after))
	}
	return names, nil
}

func bounds(from, to string) (first, last int, err error) {
	const digits = 9 // fits any int
	if from == "" || to == "" || len(from) > digits || len(to) > digits || strings.Trim(from+to, "0123456789") != "" {
		return 0, 0, errors.New("want numbers, as in [1:3]")
	}
	first, _ = strconv.Atoi(from)
	last, _ = strconv.Atoi(to)
	switch {
	case last < first:
		return 0, 0, fmt.Errorf("%d comes after %d", first, last)
	case last-first >= MaxHosts:
		return 0, 0, fmt.Errorf("more than %d hosts", MaxHosts)
	}
	return first, last, nil
}

// rangeError is a problem with one field of a host entry.
type rangeError struct {
	field string // "" for the name
	err   error
}

func (e *rangeError) Error() string { return e.err.Error() }
func (e *rangeError) Unwrap() error { return e.err }

// expand returns the hosts of an entry, with name, addresses and Local set.
func (h *HostSpec) expand() ([]Host, error) {
	names, err := expand(h.Name)
	if err != nil {
		return nil, &rangeError{"", err}
	}
	addresses, err := parallel("address", h.Address, names)
	if err != nil {
		return nil, err
	}
	hosts := make([]Host, len(names))
	for i, name := range names {
		hosts[i] = Host{Name: name, Address: name, Local: h.Local}
		if addresses != nil {
			hosts[i].Address = addresses[i]
		}
	}
	for _, internal := range []struct {
		field, value, want string
		is                 func(netip.Addr) bool
		set                func(*Host, netip.Addr)
	}{
		{
			"internalIPv4", h.InternalIPv4, "an IPv4 address", netip.Addr.Is4,
			func(h *Host, a netip.Addr) { h.InternalIPv4 = a },
		},
		{
			"internalIPv6", h.InternalIPv6, "an IPv6 address", isIPv6Addr,
			func(h *Host, a netip.Addr) { h.InternalIPv6 = a },
		},
	} {
		given, err := parallel(internal.field, internal.value, names)
		if err != nil {
			return nil, err
		}
		for i := range hosts {
			text := hosts[i].Address
			if given != nil {
				text = given[i]
			}
			a, err := netip.ParseAddr(text)
			if err == nil && internal.is(a) {
				internal.set(&hosts[i], a)
			} else if given != nil {
				return nil, &rangeError{internal.field, fmt.Errorf("want %s, have %q", internal.want,
					document.Shorten(text))}
			}
		}
	}
	return hosts, nil
}

// isIPv6Addr excludes addresses that are valid only on this machine (fe80::1%eth0) and IPv4 mapped into IPv6.
func isIPv6Addr(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }

// parallel expands a field beside the names: as many values as there are names, all different.
func parallel(field, value string, names []string) ([]string, error) {
	if value == "" {
		return nil, nil
	}
	values, err := expand(value)
	if err != nil {
		return nil, &rangeError{field, err}
	}
	if len(values) != len(names) {
		return nil, &rangeError{
			field,
			fmt.Errorf("stands for %d where the name stands for %d; write a range of the same length, as in node[1:3] with 192.168.0.1[1:3]",
				len(values), len(names)),
		}
	}
	return values, nil
}
