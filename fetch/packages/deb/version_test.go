package deb

import (
	"os/exec"
	"testing"
)

// versionCases are from dpkg's own tests (lib/dpkg/t/t-version.c) and deb-version(7).
func versionCases() []struct {
	a, b string
	want int
} {
	return []struct {
		a, b string
		want int
	}{
		{"0:0-0", "0", 0},
		{"1.0", "1.0-0", 0},
		{"1:0", "0:9", 1},
		{"0:0-a", "0:0-b", -1},
		{"1.0~~", "1.0~~a", -1},
		{"1.0~~a", "1.0~", -1},
		{"1.0~", "1.0", -1},
		{"1.0", "1.0a", -1},
		{"1.0a", "1.0+", -1},
		{"1.2-3", "1.2-10", -1},
		{"0:0a-0", "0:0.-0", -1},
		{"1.001", "1.1", 0},
		{"2.36-9+deb12u10", "2.36-9+deb12u9", 1},
		{"1.2.3-1~bpo12+1", "1.2.3-1", -1},
		{"18446744073709551616", "18446744073709551615", 1},
		{"1-2-3", "1-2-4", -1},
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, c := range versionCases() {
		if got := Compare(c.a, c.b); got != c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := Compare(c.b, c.a); got != -c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.b, c.a, got, -c.want)
		}
	}
}

// TestCompareLikeDpkg asks dpkg itself.
func TestCompareLikeDpkg(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not installed")
	}
	for _, c := range versionCases() {
		op := map[int]string{-1: "lt", 0: "eq", 1: "gt"}[Compare(c.a, c.b)]
		if out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", c.a, op,
			c.b).CombinedOutput(); err != nil {
			t.Errorf("dpkg does not say %s %s %s: %v %s", c.a, op, c.b, err, out)
		}
	}
}

func FuzzCompare(f *testing.F) {
	f.Add("1:1.0~rc1-1", "1.0+b1-2")
	f.Fuzz(func(t *testing.T, a, b string) {
		if Compare(a, b) != -Compare(b, a) || Compare(a, a) != 0 {
			t.Errorf("%q and %q have no order", a, b)
		}
	})
}
