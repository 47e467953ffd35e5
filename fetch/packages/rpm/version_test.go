package rpm

import "testing"

// The cases are rpm's own (tests/rpmvercmp.at), and some of epochs and releases.
func TestCompare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"1.0", "1.0", 0},
		{"1.0", "2.0", -1},
		{"2.0.1a", "2.0.1", 1},
		{"5.5p1", "5.5p10", -1},
		{"10xyz", "10.1xyz", -1},
		{"xyz10", "xyz10.1", -1},
		{"xyz.4", "8", -1},
		{"5.5p2", "5.6p1", -1},
		{"6.0.rc1", "6.0", 1},
		{"10b2", "10a1", 1},
		{"7.4052", "1.0", 1},
		{"8.1.0", "8.1.rc1", 1},
		{"1.0010", "1.9", 1},
		{"1.05", "1.5", 0},
		{"4.999.9", "5.0", -1},
		{"2_0", "2.0", 0},
		{"a+", "a_", 0},
		{"+", "_", 0},
		{"1.0~rc1", "1.0", -1},
		{"1.0~rc1~git123", "1.0~rc1", -1},
		{"1.0^", "1.0", 1},
		{"1.0^git1", "1.0.1", -1},
		{"1.0^git1", "1.0^git2", -1},
		{"1.0^20160101", "1.0.1", -1},
		{"1.0~rc1^git1", "1.0~rc1", 1},
		{"1.0^git1~pre", "1.0^git1", -1},
		{"1.0^git1", "1.01", -1},
		{"1:1.0", "2.0", 1},
		{"0:1.0-1", "1.0-1", 0},
		{"1.0-1", "1.0-2", -1},
		{"1.0-1", "1.0", 0},
		{"1.0-1.el9", "1.0-1.el9_2", -1},
	} {
		if got := Compare(c.a, c.b); got != c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := Compare(c.b, c.a); got != -c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.b, c.a, got, -c.want)
		}
	}
}

func FuzzCompare(f *testing.F) {
	f.Add("1:1.0~rc1-1", "1.0^git-2")
	f.Fuzz(func(t *testing.T, a, b string) {
		if Compare(a, b) != -Compare(b, a) || Compare(a, a) != 0 {
			t.Errorf("%q and %q have no order", a, b)
		}
	})
}
