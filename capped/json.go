package capped

import (
	"bytes"
	"encoding/json"
	"fmt"
)

const (
	// MaxElements bounds the objects, lists and nulls in lists of a JSON document. The two bytes of an empty object can become a
	// kilobyte of a Go type.
	MaxElements = 1 << 19
	// MaxValues bounds the values in objects and lists of a JSON document.
	MaxValues = 1 << 22
)

// JSON decodes a document from a sender who may be hostile. It refuses one that would take far more memory than its own size,
// before it is decoded.
func JSON(data []byte, into any) error {
	if err := CheckJSON(data); err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// CheckJSON counts a document's elements and values. Texts that are not JSON may pass.
func CheckJSON(data []byte) error {
	elements, values, before := 0, 0, byte(0)
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case ' ', '\t', '\r', '\n':
			continue
		case '"':
			i += textLength(data[i+1:])
		case ',':
			values++
		case '{', '[', 'n':
			if before == '[' || before == ',' { // after a comma in an object comes a key
				elements++
			}
		}
		before = data[min(i, len(data)-1)]
		if elements > MaxElements {
			return fmt.Errorf("the document has more than %d objects in lists", MaxElements)
		}
		if values > MaxValues {
			return fmt.Errorf("the document has more than %d values", MaxValues)
		}
	}
	return nil
}

// textLength returns the bytes of a string after its first quotation mark, with the last one.
func textLength(rest []byte) int {
	for i := 0; i < len(rest); i++ {
		n := bytes.IndexAny(rest[i:], `"\`)
		if n < 0 {
			return len(rest)
		}
		if i += n; rest[i] == '"' {
			return i + 1
		}
		i++ // the escaped byte
	}
	return len(rest)
}
