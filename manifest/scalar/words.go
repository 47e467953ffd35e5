package scalar

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// MaxToken is the longest tag in the OCI distribution specification; versions become tags.
const MaxToken = 128

// IsToken reports whether s is a valid version everywhere: it begins with a letter or digit.
func IsToken(s string) bool {
	return s != "" && !strings.ContainsAny(s[:1], "._+-") && document.Only(strings.ToLower(s), "._+-")
}

// IsFileName reports whether s is a valid file name everywhere. Versions in names of Debian packages may contain ~
// (deb-version(7)). Shells and kkbundle expand a leading ~ to a home directory, so it may not be first.
func IsFileName(s string) bool { return IsToken(strings.ReplaceAll(s, "~", "-")) }

// IsHex reports whether s is n lower case hexadecimal digits.
func IsHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// IsHost reports whether s is an IP address or a host name, capitals allowed.
func IsHost(s string) bool {
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
	if err != nil || !IsPort(port) {
		return 0, fmt.Errorf("port %q is not between 1 and 65535", document.Shorten(s))
	}
	return port, nil
}

// IsPort reports whether n is the number of a port.
func IsPort(n int) bool { return n >= 1 && n <= 65535 }

// IsPackageName also allows names provided by RPM packages: paths and names such as perl(Foo::Bar).
func IsPackageName(s string) bool {
	return s != "" && len(s) <= 256 && !strings.HasPrefix(s, "-") &&
		!strings.ContainsFunc(s,
			func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"'\;|&$<>*?`, r) })
}
