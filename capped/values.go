package capped

import (
	"encoding/json"
	"fmt"
)

// SmallJSON decodes JSON text that has at most some number of values, by the estimate of Values.
func SmallJSON(data []byte, values int, into any) error {
	if n := Values(data); n > values {
		return fmt.Errorf("the document has about %d values; at most %d are read", n, values)
	}
	return json.Unmarshal(data, into)
}

// Values estimates the number of values in JSON or YAML text, without parsing it. A parser makes at most two nodes for
// each, so a limit keeps a few megabytes of commas from becoming gigabytes.
func Values(data []byte) int {
	n := 1
	for i, b := range data {
		switch b {
		case ',', '\n', '[', '{':
			n++
		case '-', '?':
			if i+1 < len(data) && data[i+1] == ' ' {
				n++
			}
		}
	}
	return n
}
