// Package scalar has the values of one word in the files that people write: what they look like, how they are read and
// what they stand for.
package scalar

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// FileMode is the permissions of a file: octal in YAML (0755), 0 if not set.
type FileMode uint32

// UnmarshalText reads octal digits, with or without a leading 0 or 0o.
func (m *FileMode) UnmarshalText(text []byte) error {
	digits := strings.TrimPrefix(string(text), "0o")
	n, err := strconv.ParseUint(digits, 8, 32)
	if err != nil || n > 0o7777 || n == 0 {
		return fmt.Errorf("want permissions in octal such as 0755, have %q", document.Shorten(string(text)))
	}
	*m = FileMode(n)
	return nil
}

// String returns four octal digits, as in 0755.
func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText is String.
func (m FileMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// Quantity is a number of bytes, in YAML in Kubernetes' syntax: 1700Mi, 2G, 1.5Gi, 1073741824.
type Quantity int64

type unit struct {
	suffix string
	size   float64
}

// units lists the suffixes of https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ that
// apply to bytes, the longer before the shorter.
func units() []unit {
	return []unit{
		{"Ki", 1 << 10},
		{"Mi", 1 << 20},
		{"Gi", 1 << 30},
		{"Ti", 1 << 40},
		{"Pi", 1 << 50},
		{"k", 1e3},
		{"M", 1e6},
		{"G", 1e9},
		{"T", 1e12},
		{"P", 1e15},
		{"", 1},
	}
}

// UnmarshalText reads a quantity; the result is a whole number of bytes, rounded up.
func (q *Quantity) UnmarshalText(text []byte) error {
	for _, u := range units() {
		number, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.Trim(number, "0123456789.") != "" || n*u.size >= math.MaxInt64 {
			break
		}
		*q = Quantity(math.Ceil(n * u.size))
		return nil
	}
	return fmt.Errorf("want a number of bytes such as 1700Mi or 2G, have %q", document.Shorten(string(text)))
}

// Bytes returns the number of bytes.
func (q Quantity) Bytes() int64 { return int64(q) }

// String returns the quantity with the largest binary unit that leaves no fraction.
func (q Quantity) String() string {
	n, suffix := int64(q), ""
	for _, s := range []string{"Ki", "Mi", "Gi", "Ti", "Pi"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, suffix = n/1024, s
	}
	return strconv.FormatInt(n, 10) + suffix
}

// MarshalText is String.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// Duration is a length of time, in YAML in Go's syntax: 30m, 1h30m.
type Duration time.Duration

// UnmarshalText reads a positive duration.
func (d *Duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	if err != nil || t <= 0 {
		return fmt.Errorf("want a duration such as 30m or 12h, have %q", document.Shorten(string(text)))
	}
	*d = Duration(t)
	return nil
}

// String returns the duration in Go's syntax.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText is String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// CIDRs is one network, or one of IPv4 and one of IPv6 on a dual-stack cluster, IPv4 first.
type CIDRs []netip.Prefix

// UnmarshalText reads one network, two separated by a comma, or two in the older form with a slash between: v4/v6
// (10.0.0.0/16/fd00::/64).
func (c *CIDRs) UnmarshalText(text []byte) error {
	var list CIDRs
	for _, one := range splitCIDRs(string(text)) {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return fmt.Errorf("want a network such as 10.233.64.0/18, or two (IPv4,IPv6), have %q",
				document.Shorten(string(text)))
		}
		if p != p.Masked() {
			return fmt.Errorf("%s has bits after its first %d; did you mean %s?", p, p.Bits(), p.Masked())
		}
		list = append(list, p)
	}
	switch {
	case len(list) > 2:
		return fmt.Errorf("want one network, or one of IPv4 and one of IPv6, have %d", len(list))
	case len(list) == 2 && (!list[0].Addr().Is4() || !list[1].Addr().Is6()):
		return fmt.Errorf("want the IPv4 network first and then the IPv6 one, have %s", list)
	}
	*c = list
	return nil
}

func splitCIDRs(text string) []string {
	if parts := strings.Split(text, "/"); len(parts) == 4 && !strings.Contains(text, ",") {
		return []string{parts[0] + "/" + parts[1], parts[2] + "/" + parts[3]}
	}
	return strings.Split(text, ",")
}

// String returns the networks separated by commas, as kubeadm expects.
func (c CIDRs) String() string {
	list := make([]string, len(c))
	for i, p := range c {
		list[i] = p.String()
	}
	return strings.Join(list, ",")
}

// MarshalText is String.
func (c CIDRs) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
