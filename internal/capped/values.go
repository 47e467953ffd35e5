package capped

// Values estimates the number of values in YAML text, without parsing it. A parser makes at most two nodes for each,
// so a limit keeps a few megabytes of commas from becoming gigabytes. CheckJSON counts those of JSON.
func Values(data []byte) int {
	n := 1
	for i, b := range data {
		switch b {
		case ',', '\n', '[', '{':
			n++
		case '\r': // a line break of YAML, like the next two
			if i+1 == len(data) || data[i+1] != '\n' {
				n++
			}
		case 0x85: // U+0085
			if i > 0 && data[i-1] == 0xc2 {
				n++
			}
		case 0xa8, 0xa9: // U+2028, U+2029
			if i > 1 && data[i-1] == 0x80 && data[i-2] == 0xe2 {
				n++
			}
		case '-', '?':
			if i+1 < len(data) && data[i+1] == ' ' {
				n++
			}
		}
	}
	return n
}
