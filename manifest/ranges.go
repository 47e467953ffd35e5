package manifest

import (
	"fmt"
	"net/netip"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// rangeError is a problem with one field of a host entry.
type rangeError struct {
	field string // "" for the name
	err   error
}

func (e *rangeError) Error() string { return e.err.Error() }
func (e *rangeError) Unwrap() error { return e.err }

// expand returns the hosts of an entry, with name, addresses and Local set.
func (h *HostSpec) expand() ([]Host, error) {
	names, err := scalar.ExpandRange(h.Name)
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
	values, err := scalar.ExpandRange(value)
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
