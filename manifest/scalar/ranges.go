package scalar

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// MaxHosts is the most hosts that an inventory can have, ranges expanded.
const MaxHosts = 10_000

// ExpandRange returns the names in a range: node[1:3] is node1, node2 and node3, node[01:10] keeps its zeros. Text
// without brackets is a single name.
func ExpandRange(s string) ([]string, error) {
	before, rest, open := strings.Cut(s, "[")
	if !open {
		if strings.Contains(s, "]") {
			return nil, fmt.Errorf("%q has a ] without a [", document.Shorten(s))
		}
		return []string{s}, nil
	}
	inside, after, closed := strings.Cut(rest, "]")
	from, to, colon := strings.Cut(inside, ":")
	if !closed || !colon || strings.ContainsAny(after, "[]") {
		return nil, fmt.Errorf("%q is not a range; write one, as in node[1:3]", document.Shorten(s))
	}
	first, last, err := bounds(from, to)
	if err != nil {
		return nil, fmt.Errorf("range %q: %w", document.Shorten(s), err)
	}
	width := 0
	if strings.HasPrefix(from, "0") {
		width = len(from)
	}
	names := make([]string, 0, last-first+1)
	for i := first; i <= last; i++ {
		names = append(names, fmt.Sprintf("%s%0*d%s", before, width, i, after))
	}
	return names, nil
}

func bounds(from, to string) (first, last int, err error) {
	const digits = 9 // fits any int
	if from == "" || to == "" || len(from) > digits || len(to) > digits || strings.Trim(from+to, "0123456789") != "" {
		return 0, 0, errors.New("want numbers, as in [1:3]")
	}
	first, _ = strconv.Atoi(from)
	last, _ = strconv.Atoi(to)
	switch {
	case last < first:
		return 0, 0, fmt.Errorf("%d comes after %d", first, last)
	case last-first >= MaxHosts:
		return 0, 0, fmt.Errorf("more than %d hosts", MaxHosts)
	}
	return first, last, nil
}
