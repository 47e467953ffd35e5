package serve

import (
	"strconv"
	"strings"
)

// A span is a range of a content: length bytes from start on.
type span struct{ start, length int64 }

// parseRange parses a Range header for a content of size bytes (RFC 9110, section 14). ok is false if the range is
// outside of the content: the answer is 416 then. A malformed header, another unit or several ranges are ignored, as
// the RFC allows: the answer is the whole.
func parseRange(header string, size int64) (s span, partial, ok bool) {
	whole := span{0, size}
	unit, spec, found := strings.Cut(header, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(unit), "bytes") {
		return whole, false, true
	}
	first, last, found := strings.Cut(strings.Trim(spec, " \t"), "-")
	if !found {
		return whole, false, true
	}
	first, last = strings.TrimRight(first, " \t"), strings.TrimLeft(last, " \t")
	to, toOK := position(last)
	if first == "" {
		if !toOK {
			return whole, false, true
		}
		n := min(to, size)
		return span{size - n, n}, n > 0, n > 0
	}
	from, fromOK := position(first)
	if last == "" {
		to, toOK = size-1, true
	} else if toOK && to < from {
		return whole, false, true
	}
	if !fromOK || !toOK {
		return whole, false, true
	}
	if from >= size {
		return span{}, false, false
	}
	return span{from, min(to, size-1) - from + 1}, true, true
}

// position reads digits only. Numbers beyond any content count as the largest number.
func position(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return n, true
}

// matches reports whether a list of entity tags in If-Match or If-None-Match contains etag or is "*".
func matches(header, etag string) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimSpace(tag)
		if tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
			return true
		}
	}
	return false
}
