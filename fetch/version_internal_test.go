package fetch

import (
	"strings"
	"testing"
)

func TestPick(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ have, all, patch, minor, latest string }{
		{"1.27.0", "1.27.0 1.27.3 1.29.1 2.0.1 2.1.0-rc.1 latest 1.27.9-alpine", "1.27.3", "1.29.1", "2.0.1"},
		{"1.27", "1.27 1.28 1.29 1.29.1 2 2.0", "", "1.29", "2.0"},
		{"v1.34.3", "v1.34.3 v1.34.10 v1.35.0 1.36.0", "v1.34.10", "v1.35.0", "v1.35.0"},
		{
			"1.27.0-alpine3.20", "1.27.1 1.27.0-alpine3.22 1.28.0-alpine 1.29.0-alpine3.22", "1.27.0-alpine3.22",
			"1.29.0-alpine3.22", "1.29.0-alpine3.22",
		},
		{"3.5.12-0", "3.5.12-0 3.5.12-1 3.5.15-0 3.6.4-0 3.7.0", "3.5.15-0", "3.6.4-0", "3.6.4-0"},
		{"1.30.0-rc.1", "1.30.0-rc.1 1.30.0-rc.2 1.30.0", "1.30.0", "1.30.0", "1.30.0"},
		{"3", "3 4 20240101 3.1", "", "", "4"},
		{"20240101", "20240101 20240301 7", "", "", "20240301"},
		{
			"v1.9.1-flannel1", "v1.9.1-flannel1 v1.9.1-flannel2 v1.10.0", "v1.9.1-flannel2", "v1.9.1-flannel2",
			"v1.9.1-flannel2",
		},
		{"2.0.0", "1.9.9 2.0.0", "", "", ""},
		{"bookworm", "trixie bookworm", "", "", ""},
		{"3a41f90", "4000000 3a41f91", "", "", ""},
		{"1.2.3", "99999999999999999999.0.0 1.2.4", "1.2.4", "1.2.4", "1.2.4"},
	} {
		var n Newer
		n.pick(tc.have, strings.Fields(tc.all))
		if n.Patch != tc.patch || n.Minor != tc.minor || n.Latest != tc.latest {
			t.Errorf("%s of %s: got %q, %q, %q; want %q, %q, %q", tc.have, tc.all, n.Patch, n.Minor, n.Latest, tc.patch,
				tc.minor, tc.latest)
		}
	}
}

// FuzzVersion feeds tags of strangers: an order that is none would choose anything.
func FuzzVersion(f *testing.F) {
	f.Add("1.27.0-alpine3.20", "1.27.0-alpine3.22")
	f.Add("v1.0.0-rc.1", "v1.0.0")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, ok1 := parseVersion(a)
		y, ok2 := parseVersion(b)
		if !ok1 || !ok2 {
			return
		}
		if x.compare(x) != 0 || x.succeeds(x) {
			t.Errorf("%q comes after itself", a)
		}
		if (x.compare(y) > 0) != (y.compare(x) < 0) || x.succeeds(y) && y.succeeds(x) {
			t.Errorf("%q and %q come after each other", a, b)
		}
	})
}
