package scalar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// mostNames is the number of names on a line; the number of the others follows.
const mostNames = 12

// Ranges formats host names as in an inventory, node[1:180], if they are numbered in their first label and consecutive.
// A few names are listed individually.
func Ranges(names []string) string {
	parts := rangeParts(names)
	if more := len(names) - namesIn(parts[:min(mostNames, len(parts))]); more > 0 {
		parts = append(parts[:mostNames:mostNames], namePart{text: "and " + strconv.Itoa(more) + " more"})
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.text
	}
	return strings.Join(texts, ", ")
}

// A namePart is a name, or a range of them.
type namePart struct {
	text  string
	names int
}

func namesIn(parts []namePart) int {
	n := 0
	for _, p := range parts {
		n += p.names
	}
	return n
}

// A countedName is a name with a number in it; number is -1 if it has none.
type countedName struct {
	name, before, digits, after string
	number                      int
}

func rangeParts(names []string) []namePart {
	const few = 3
	var parts []namePart
	if len(names) <= few {
		for _, n := range names {
			parts = append(parts, namePart{plain.Line(n), 1})
		}
		return parts
	}
	list := make([]countedName, len(names))
	for i, n := range names {
		list[i] = counted(n)
	}
	// Names of one series are grouped, in the order of each group's first name.
	first := map[[2]string]int{}
	for i, c := range list {
		if _, ok := first[c.series()]; !ok {
			first[c.series()] = i
		}
	}
	slices.SortStableFunc(list, func(a, b countedName) int {
		if d := first[a.series()] - first[b.series()]; d != 0 {
			return d
		}
		return a.number - b.number
	})
	for i := 0; i < len(list); {
		j := i + 1
		for j < len(list) && list[j].follows(list[j-1]) {
			j++
		}
		if j-i >= few {
			c := list[i]
			parts = append(parts, namePart{plain.Line(fmt.Sprintf("%s[%s:%s]%s", c.before, c.digits, list[j-1].digits,
				c.after)), j - i})
		} else {
			for _, c := range list[i:j] {
				parts = append(parts, namePart{plain.Line(c.name), 1})
			}
		}
		i = j
	}
	return parts
}

// counted finds the last number of a name's first label.
func counted(name string) countedName {
	label, rest := name, ""
	if i := strings.IndexByte(name, '.'); i >= 0 {
		label, rest = name[:i], name[i:]
	}
	end := strings.LastIndexAny(label, "0123456789") + 1
	start := end
	for start > 0 && label[start-1] >= '0' && label[start-1] <= '9' {
		start--
	}
	const most = 9 // digits that fit any int
	number, err := strconv.Atoi(label[start:end])
	if err != nil || end-start > most {
		return countedName{name: name, before: name, number: -1}
	}
	return countedName{
		name: name, before: label[:start], digits: label[start:end], after: label[end:] + rest,
		number: number,
	}
}

func (c countedName) series() [2]string { return [2]string{c.before, c.after} }

// follows reports whether c continues an inventory range after b: 9 and 10, 09 and 10, but not 09 and 010.
func (c countedName) follows(b countedName) bool {
	if b.number < 0 || c.number != b.number+1 || c.series() != b.series() {
		return false
	}
	padded := strings.HasPrefix(b.digits, "0") && len(b.digits) > 1
	return len(c.digits) == len(b.digits) || !padded && c.digits == strconv.Itoa(c.number) &&
		b.digits == strconv.Itoa(b.number)
}
