package rpm

import (
	"cmp"
	"strings"
)

// Compare orders [epoch:]version[-release] like rpm. Releases count only if both have one.
func Compare(a, b string) int {
	epochA, versionA, releaseA := split(a)
	epochB, versionB, releaseB := split(b)
	if c := cmp.Or(compareNumbers(epochA, epochB), compareParts(versionA, versionB)); c != 0 || releaseA == "" ||
		releaseB == "" {
		return c
	}
	return compareParts(releaseA, releaseB)
}

func split(evr string) (epoch, version, release string) {
	if e, rest, ok := strings.Cut(evr, ":"); ok && strings.Trim(e, "0123456789") == "" {
		epoch, evr = e, rest
	}
	if i := strings.LastIndexByte(evr, '-'); i >= 0 {
		return epoch, evr[:i], evr[i+1:]
	}
	return epoch, evr, ""
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// compareParts compares runs of digits by value and runs of letters by letters; all other characters are separators. A
// tilde precedes the end, a caret follows it.
func compareParts(a, b string) int {
	for {
		a, b = separated(a), separated(b)
		markA, markB := mark(a), mark(b)
		switch {
		case markA == '~' && markB == '~', markA == '^' && markB == '^':
			a, b = a[1:], b[1:]
			continue
		case markA == '~', a == "" && b != "" && markB != '~', markA == '^' && b != "" && markB != '~':
			return -1
		case markB == '~', b == "" && a != "", markB == '^':
			return 1
		case a == "":
			return 0
		}
		is := isLetter
		if isDigit(a[0]) {
			is = isDigit
		}
		var partA, partB string
		partA, a = run(a, is)
		partB, b = run(b, is)
		if c := comparePart(partA, partB); c != 0 {
			return c
		}
	}
}

// mark returns the tilde or caret at the start of s, or 0.
func mark(s string) byte {
	if s != "" && (s[0] == '~' || s[0] == '^') {
		return s[0]
	}
	return 0
}

// comparePart compares runs of the first one's kind: digits or letters. Numbers are newer than letters.
func comparePart(a, b string) int {
	switch {
	case isDigit(a[0]) && b == "":
		return 1
	case b == "":
		return -1
	case isDigit(a[0]):
		return compareNumbers(a, b)
	}
	return strings.Compare(a, b)
}

func separated(s string) string {
	return strings.TrimLeftFunc(s, func(r rune) bool {
		return r != '~' && r != '^' && (r >= 0x80 || !isDigit(byte(r)) && !isLetter(byte(r)))
	})
}

func run(s string, is func(byte) bool) (head, rest string) {
	i := 0
	for i < len(s) && is(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// compareNumbers compares digits of any length by value; no digits count as 0.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
