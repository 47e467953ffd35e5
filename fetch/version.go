package fetch

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A version is a parsed tag, as far as tags can be compared: numbers, prefix and suffix.
type version struct {
	text    string
	prefix  string // "v", or a word such as "release-"
	numbers []int64
	suffix  string // "-alpine3.20", with its first character
}

// maxNumbers bounds the numbers of a version; the rest is its suffix.
const maxNumbers = 4

// dateNumber is the smallest number taken for a date or a counter rather than a major version.
const dateNumber = 100_000

// parseVersion reads a tag or version. It returns false if there are no numbers to compare.
func parseVersion(text string) (version, bool) {
	v := version{text: text}
	rest := strings.TrimLeft(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_")
	v.prefix = text[:len(text)-len(rest)]
	for len(v.numbers) < maxNumbers {
		end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(rest)
		}
		n, err := strconv.ParseInt(rest[:end], 10, 64)
		if err != nil {
			return version{}, false
		}
		v.numbers, rest = append(v.numbers, n), rest[end:]
		if len(rest) < 2 || rest[0] != '.' || rest[1] < '0' || rest[1] > '9' || len(v.numbers) == maxNumbers {
			break
		}
		rest = rest[1:]
	}
	v.suffix = rest
	if rest != "" && !strings.ContainsRune("-_.+", rune(rest[0])) {
		return version{}, false // 3a41f90: the beginning of a hash
	}
	return v, true
}

// flavour returns a suffix without its numbers: -alpine3.20 and -alpine3.22 are the same flavour.
func (v version) flavour() string {
	var b strings.Builder
	digits := false
	for _, r := range v.suffix {
		digit := r >= '0' && r <= '9'
		if !digit {
			b.WriteRune(r)
		} else if !digits {
			b.WriteByte('#')
		}
		digits = digit
	}
	return b.String()
}

// preview reports whether v precedes the version without its suffix.
func (v version) preview() bool {
	text := strings.ToLower(strings.TrimLeft(v.suffix, "-._"))
	end := strings.IndexFunc(text, func(r rune) bool { return r < 'a' || r > 'z' })
	if end < 0 {
		end = len(text)
	}
	switch text[:end] {
	case "alpha", "beta", "rc", "pre", "preview", "dev", "snapshot", "nightly":
		return true
	}
	return false
}

// succeeds reports whether v can replace an older version: it is newer, of the same flavour and has as many numbers. A
// preview can also be replaced by a final version.
func (v version) succeeds(old version) bool {
	same := v.flavour() == old.flavour() || v.suffix == "" && old.preview()
	date := func(v version) bool { return v.numbers[0] >= dateNumber }
	return same && v.prefix == old.prefix && len(v.numbers) == len(old.numbers) && date(v) == date(old) &&
		v.compare(old) > 0
}

// agree reports whether the first numbers are the same. A version without further numbers agrees only with itself.
func (v version) agree(o version, numbers int) bool {
	return len(v.numbers) > numbers && slices.Equal(v.numbers[:numbers], o.numbers[:numbers])
}

// compare orders versions of one flavour.
func (v version) compare(o version) int {
	final := func(v version) int {
		if v.preview() {
			return 0
		}
		return 1
	}
	return cmp.Or(slices.Compare(v.numbers, o.numbers), final(v)-final(o), compareParts(v.suffix, o.suffix))
}

// compareParts compares text, and the numbers in it by value.
func compareParts(a, b string) int {
	number := func(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
	for a != "" && b != "" {
		x, y := number(a), number(b)
		if x == 0 || y == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if d := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); d != 0 {
			return d
		}
		a, b = a[x:], b[y:]
	}
	return cmp.Compare(len(a), len(b))
}
