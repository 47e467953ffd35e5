package manifest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// isHex reports whether s is n lower case hexadecimal digits.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// isHost reports whether s is an IP address or a host name, capitals allowed.
func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if strings.Trim(s, "0123456789.") == "" {
		return false // intended as an IP address
	}
	return document.IsName(strings.ToLower(strings.TrimSuffix(s, ".")), true)
}

func parsePort(s string) (int, error) {
	port, err := strconv.Atoi(s)
	if err != nil || !isPort(port) {
		return 0, fmt.Errorf("port %q is not between 1 and 65535", document.Shorten(s))
	}
	return port, nil
}

func isPort(n int) bool { return n >= 1 && n <= 65535 }

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
