package capped

import (
	"bytes"
	"encoding/json"
	"fmt"
)

const (
	// MaxElements bounds the objects, lists and nulls in lists of any JSON document. The two bytes of an empty object
	// can become a kilobyte of a Go type.
	MaxElements = 1 << 19
	// MaxValues is the usual bound of values for answers of a host or of the API server.
	MaxValues = 1 << 22
)

// JSON decodes a document from a sender who may be hostile. It refuses a document with more than most values, or with
// more than MaxElements, before it is decoded: such a document would take far more memory than its own size.
func JSON(data []byte, most int, into any) error {
	if err := CheckJSON(data, most); err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// CheckJSON counts a document's values and elements as it reads them, and not in texts. Documents that are not JSON
// may pass.
func CheckJSON(data []byte, most int) error {
	elements, values, before := 0, 1, byte(0)
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case ' ', '\t', '\r', '\n':
			continue
		case '"':
			i += textLength(data[i+1:])
		case ',':
			values++
		case '{', '[', 'n':
			if c != 'n' {
				values++
			}
			if before == '[' || before == ',' { // after a comma in an object comes a key
				elements++
			}
		}
		before = data[min(i, len(data)-1)]
		if elements > MaxElements {
			return fmt.Errorf("the document has more than %d objects in lists", MaxElements)
		}
		if values > most {
			return fmt.Errorf("the document has more than %d values", most)
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
