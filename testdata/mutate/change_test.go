//go:build linux

package mutate

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"strings"
)

// maxMutated bounds a mutated document: hostile input that is merely long is not the point, and takes a run's time.
const maxMutated = 2 * mib

// pick returns one of the list.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// span returns a part of n bytes: its beginning and its end.
func span(r *rand.Rand, n int) (from, to int) {
	if n == 0 {
		return 0, 0
	}
	from = r.IntN(n)
	return from, from + 1 + r.IntN(min(n-from, 1<<r.IntN(17)))
}

// A change is a mutation with a name.
type change struct {
	name string
	do   func(r *rand.Rand, data []byte) []byte
}

// byteChanges mutate any bytes.
func byteChanges() []change {
	return []change{
		{"flip", func(r *rand.Rand, data []byte) []byte {
			for range 1 + r.IntN(4) {
				data[r.IntN(len(data))] ^= 1 << r.IntN(8)
			}
			return data
		}},
		{"cut", func(r *rand.Rand, data []byte) []byte {
			from, to := span(r, len(data))
			return append(data[:from], data[to:]...)
		}},
		{"truncate", func(r *rand.Rand, data []byte) []byte { return data[:r.IntN(len(data))] }},
		{"repeat", func(r *rand.Rand, data []byte) []byte {
			from, to := span(r, len(data))
			times := min(1<<r.IntN(16), maxMutated/(to-from))
			return bytes.Join([][]byte{data[:to], bytes.Repeat(data[from:to], times), data[to:]}, nil)
		}},
		{"splice", func(r *rand.Rand, data []byte) []byte {
			from, to := span(r, len(data))
			at := r.IntN(len(data))
			return bytes.Join([][]byte{data[:at], data[from:to], data[at:]}, nil)
		}},
		{"number", func(r *rand.Rand, data []byte) []byte {
			at, n := r.IntN(len(data)), pick(r, 1, 2, 4, 8)
			value := pick(r, uint64(0), 1, 1<<31-1, 1<<31, 1<<32-1, 1<<53, 1<<63-1, 1<<63, 1<<64-1, r.Uint64())
			var b [8]byte
			pick[func([]byte, uint64)](r, binary.LittleEndian.PutUint64, binary.BigEndian.PutUint64)(b[:], value)
			copy(data[at:], b[:n])
			return data
		}},
		{"digits", func(r *rand.Rand, data []byte) []byte {
			at := bytes.IndexAny(data[r.IntN(len(data)):], "0123456789")
			if at < 0 {
				return data
			}
			return bytes.Join([][]byte{data[:at], []byte(hugeNumber(r)), data[at:]}, nil)
		}},
		{"zero", func(r *rand.Rand, data []byte) []byte {
			from, to := span(r, len(data))
			clear(data[from:to])
			return data
		}},
		{"brackets", func(r *rand.Rand, data []byte) []byte {
			at := r.IntN(len(data))
			nested := strings.Repeat(pick(r, "[", "{", `{"a":`, "(", "- ", "<a>", "{{", "&a [*a,"), 1<<r.IntN(17))
			return bytes.Join([][]byte{data[:at], []byte(nested), data[at:]}, nil)
		}},
		{"line", func(r *rand.Rand, data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			at := r.IntN(len(lines))
			times := min(1<<r.IntN(16), maxMutated/(len(lines[at])+1))
			lines[at] = bytes.Repeat(lines[at], times)
			return bytes.Join(lines, nil)
		}},
		{"swap lines", func(r *rand.Rand, data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			a, b := r.IntN(len(lines)), r.IntN(len(lines))
			lines[a], lines[b] = lines[b], lines[a]
			return bytes.Join(lines, nil)
		}},
	}
}

func hugeNumber(r *rand.Rand) string {
	return pick(r, "9223372036854775807", "-9223372036854775808", "18446744073709551616", "4294967296", "-1",
		"9007199254740993",
		"1e999", "1e308", "0.0000000000001", strings.Repeat("9", 1000), "00", "0x7fffffffffffffff")
}

// mutateBytes changes a copy of data one to three times.
func mutateBytes(r *rand.Rand, data []byte) (name string, out []byte) {
	out = bytes.Clone(data)
	if len(out) == 0 {
		out = []byte{0}
	}
	for range 1 + r.IntN(3) {
		if len(out) == 0 {
			break
		}
		c := pick(r, byteChanges()...)
		out = c.do(r, out)
		out = out[:min(len(out), max(maxMutated, len(data)))]
		if name == "" {
			name = c.name
		}
	}
	return name, out
}

// A node is a value of JSON that keeps order and duplicates of keys: a []member, a []node, or raw text.
type node struct {
	object []member
	array  []node
	raw    string
	kind   byte // '{', '[' or 0
}

type member struct {
	key   string
	value node
}

func parse(data []byte) (node, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	n, err := parseValue(d)
	if err != nil {
		return n, err
	}
	if _, err := d.Token(); err != io.EOF {
		return n, fmt.Errorf("more after the value: %w", err)
	}
	return n, nil
}

func parseValue(d *json.Decoder) (node, error) {
	token, err := d.Token()
	if err != nil {
		return node{}, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		raw, err := json.Marshal(token)
		return node{raw: string(raw)}, err
	}
	n := node{kind: byte(delim)}
	for d.More() {
		var m member
		if n.kind == '{' {
			key, err := d.Token()
			if err != nil {
				return n, err
			}
			m.key, _ = key.(string)
		}
		if m.value, err = parseValue(d); err != nil {
			return n, err
		}
		if n.kind == '{' {
			n.object = append(n.object, m)
		} else {
			n.array = append(n.array, m.value)
		}
	}
	_, err = d.Token()
	return n, err
}

// append appends the text of the value. It stops where the text exceeds maxMutated: nothing reads on from there.
func (n *node) append(b []byte) []byte {
	if len(b) > maxMutated {
		return b
	}
	switch n.kind {
	case '{':
		b = append(b, '{')
		for i, m := range n.object {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, quote(m.key)...), ':')
			b = m.value.append(b)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for i := range n.array {
			if i > 0 {
				b = append(b, ',')
			}
			b = n.array[i].append(b)
		}
		return append(b, ']')
	}
	return append(b, n.raw...)
}

// quote writes a string of JSON as little escaped as possible, like canonical JSON.
func quote(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a buffer and a string: no error
	return strings.TrimSuffix(b.String(), "\n")
}

// all yields every value of the tree.
func (n *node) all() iter.Seq[*node] { return func(yield func(*node) bool) { n.walk(yield) } }

func (n *node) walk(yield func(*node) bool) bool {
	if !yield(n) {
		return false
	}
	for i := range n.object {
		if !n.object[i].value.walk(yield) {
			return false
		}
	}
	for i := range n.array {
		if !n.array[i].walk(yield) {
			return false
		}
	}
	return true
}

// one returns one of the tree's values by chance.
func (n *node) one(r *rand.Rand) *node {
	values := 0
	for range n.all() {
		values++
	}
	left := r.IntN(values)
	for value := range n.all() {
		if left == 0 {
			return value
		}
		left--
	}
	return n
}

// mutateJSON changes the structure of a document; one that is no JSON is changed as bytes.
func mutateJSON(r *rand.Rand, data []byte) (name string, out []byte) {
	tree, err := parse(data)
	if err != nil || r.IntN(8) == 0 {
		return mutateBytes(r, data)
	}
	for range 1 + r.IntN(3) {
		at, other := tree.one(r), tree.one(r)
		other = &node{raw: string(other.append(nil))} // a copy: a tree has no loops
		if did := at.change(r, other); name == "" {
			name = did
		}
	}
	out = tree.append(nil)
	if len(out) > maxMutated {
		out = out[:maxMutated]
	}
	return "json " + name, out
}

// change mutates one value, maybe with the help of another one of the same document.
func (n *node) change(r *rand.Rand, other *node) string {
	switch c := r.IntN(12); {
	case c == 0:
		*n = node{raw: hugeNumber(r)}
		return "number"
	case c == 1:
		*n = node{raw: pick(r, "null", "true", "{}", "[]", `""`, "0")}
		return "other type"
	case c == 2:
		*n = node{raw: quote(strings.Repeat(pick(r, "a", "/", "../", "*", "é", "\x00", "\x1b[2J", "sha256:", "{{", "-"),
			1<<r.IntN(15)))}
		return "text"
	case c == 3:
		depth := 1 << r.IntN(15)
		around := pick(r, [2]string{"[", "]"}, [2]string{`{"a":`, "}"}, [2]string{`{"manifests":[`, "]}"},
			[2]string{`{"items":[`, "]}"})
		*n = node{raw: strings.Repeat(around[0], depth) + n.text() + strings.Repeat(around[1], depth)}
		return "nesting"
	case c == 4:
		*n = *other
		return "another value"
	case c <= 7 && n.kind == '[' && len(n.array) > 0:
		one := n.array[r.IntN(len(n.array))]
		times := min(1<<r.IntN(17), maxMutated/(len(one.text())+2))
		for range times {
			n.array = append(n.array, one)
		}
		return "repeated element"
	case c <= 7 && n.kind == '{' && len(n.object) > 0:
		one := n.object[r.IntN(len(n.object))]
		times := min(1<<r.IntN(15), maxMutated/(len(one.value.text())+len(one.key)+4))
		numbered := r.IntN(2) == 0
		for i := range times {
			m := one
			if numbered {
				m.key += fmt.Sprint(i)
			}
			n.object = append(n.object, m)
		}
		return "repeated key"
	case c == 8 && len(n.object) > 0:
		at := r.IntN(len(n.object))
		n.object = append(n.object[:at:at], n.object[at+1:]...)
		return "missing key"
	case c == 9 && len(n.object) > 0:
		n.object[r.IntN(len(n.object))].value = *other
		return "another value"
	case c == 10 && len(n.object) > 0:
		n.object[r.IntN(len(n.object))].key = pick(r, "", "a", strings.Repeat("k", 1<<r.IntN(16)), "Manifests", "\x00")
		return "another key"
	}
	text := n.text()
	if text[0] != '"' {
		*n = node{raw: hugeNumber(r)}
		return "number"
	}
	_, changed := mutateBytes(r, []byte(text[1:len(text)-1]))
	*n = node{raw: quote(string(changed[:min(len(changed), 64<<10)]))}
	return "changed text"
}

func (n *node) text() string { return string(n.append(nil)) }
