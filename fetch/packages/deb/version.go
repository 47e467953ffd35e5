package deb

import (
	"cmp"
	"strings"
)

// Compare orders versions by deb-version(7): epoch, then upstream's version, then Debian's revision.
func Compare(a, b string) int {
	epochA, upA, revA := split(a)
	epochB, upB, revB := split(b)
	return cmp.Or(compareNumbers(epochA, epochB), comparePart(upA, upB), comparePart(revA, revB))
}

func split(v string) (epoch, upstream, revision string) {
	if e, rest, ok := strings.Cut(v, ":"); ok {
		epoch, v = e, rest
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return epoch, v[:i], v[i+1:]
	}
	return epoch, v, ""
}

// comparePart compares non-digits by letters and numbers by value, alternately.
func comparePart(a, b string) int {
	for a != "" || b != "" {
		var wordA, wordB string
		wordA, a = word(a)
		wordB, b = word(b)
		if c := compareWords(wordA, wordB); c != 0 {
			return c
		}
		wordA, a = number(a)
		wordB, b = number(b)
		if c := compareNumbers(wordA, wordB); c != 0 {
			return c
		}
	}
	return 0
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func word(s string) (head, rest string) {
	i := 0
	for i < len(s) && !isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

func number(s string) (head, rest string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// compareWords orders a tilde before the end, and letters before everything else.
func compareWords(a, b string) int {
	order := func(s string, i int) int {
		switch {
		case i >= len(s):
			return 0
		case s[i] == '~':
			return -1
		case s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z':
			return int(s[i])
		}
		return int(s[i]) + 256
	}
	for i := range max(len(a), len(b)) {
		if c := cmp.Compare(order(a, i), order(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

// compareNumbers compares digits of any length by value; no digits count as 0.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
