package plain_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/internal/plain"
)

func TestStrip(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\n\ttext é 日本":               "plain\n\ttext é 日本",
		"\x1b[1;31mred\x1b[0m":             "red",
		"\x1b]0;title\x07a\x1b]2;t\x1b\\b": "ab",
		"\x1b(B\x1b=x":                     "x",
		"\x1b":                             "",
		"\x1b[":                            "",
		"\x1b[12\nx":                       "\nx",
		"\x1b]no end\nx":                   "\nx",
		"a\x00b\rc\x7fd\u009be\u202ef":     "abcdef",
		"\xff":                             "\uFFFD",
	} {
		if got := plain.Strip(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzStrip(f *testing.F) {
	f.Add("\x1b[1;31mred\x1b[0m")
	f.Add("\x1b]0;x\x1b\\\x1b(B")
	f.Fuzz(func(t *testing.T, s string) {
		got := plain.Strip(s)
		if strings.ContainsFunc(got,
			func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
			t.Errorf("%q became %q", s, got)
		}
		if again := plain.Strip(got); again != got {
			t.Errorf("%q became %q and then %q", s, got, again)
		}
	})
}

func TestLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain é 日本":        "plain é 日本",
		"a\nb\tc\rd":        "a b c d",
		"\x1b[31mred\x00":   "\uFFFD[31mred\uFFFD",
		"c1 \u009b31m\x7f":  "c1 \uFFFD31m\uFFFD",
		"\u202eright\u200b": "\uFFFDright\uFFFD",
		"\xff":              "\uFFFD",
	} {
		if got := plain.Line(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got, want := plain.Lines("a\r\n\tb\u009bc"), "a\uFFFD\n\tb\uFFFDc"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// No function lets a control character through, of C0 or C1, but line breaks and tabs where they are kept.
func TestNoControl(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for r := range rune(0xa0) {
		b.WriteRune(r)
	}
	for name, got := range map[string]string{
		"Line": plain.Line(b.String()), "Lines": plain.Lines(b.String()),
		"Strip": plain.Strip(b.String()),
	} {
		kept := strings.FieldsFunc(got, func(r rune) bool { return r >= ' ' && r < 0x7f || r > 0x9f })
		if want := ""; strings.Trim(strings.Join(kept, ""), "\n\t") != want || name == "Line" && len(kept) > 0 {
			t.Errorf("%s keeps %q", name, kept)
		}
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc…", "日本語で": "日本語…"} {
		if got := plain.Clip(in, 3); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 19: "1.5 MiB",
		1 << 40: "1.0 TiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := plain.Size(in); got != want {
			t.Errorf("%d: got %q, want %q", in, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for want, of := range map[string]struct {
		n    int
		what string
	}{
		"0 items": {0, "item"}, "1 Git repository": {1, "Git repository"}, "2 Git repositories": {2, "Git repository"},
		"30 days": {30, "day"},
	} {
		if got := plain.Count(of.n, of.what); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"tool", "tool", 0},
		{"tol", "tool", 1},
		{"toool", "tool", 1},
		{"tolo", "tool", 1},
		{"abc", "xyz", 3},
		{"a", "kubeadm", 6},
	} {
		if got := plain.Distance(tc.a, tc.b, 8); got != tc.want {
			t.Errorf("Distance(%s, %s) = %d", tc.a, tc.b, got)
		}
	}
	if got := plain.Distance("abcdef", "uvwxyz", 3); got != 3 {
		t.Errorf("with a limit of 3: %d", got)
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"containerd", "docker", "crio"}
	for in, want := range map[string]string{
		"contianerd": "containerd", "DOCKER": "docker", "cri": "crio",
		"podman": "",
	} {
		if got := plain.Nearest(in, known); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}
