package task

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	BlockBegin = "# BEGIN kkbundle"
	BlockEnd   = "# END kkbundle"
	// OpenBegin begins the block in a file whose last line had no end: that line shall have none again.
	OpenBegin = "# BEGIN kkbundle, after a line without an end"
	// TakenOut begins lines of a host's own file that do not count any more; Reset puts them back.
	CommentedOut = "#kkbundle# "
)

// ParseSysctl reads "key = value" lines.
func ParseSysctl(data []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(line, "=")
		if key = strings.TrimSpace(key); ok && !strings.HasPrefix(key, "#") {
			values[strings.TrimPrefix(key, "-")] = strings.TrimSpace(value)
		}
	}
	return values
}

// Remember writes what Reset puts back. What an earlier run has remembered is among the values: a later one would Remember
// what the earlier made.
func (t *Host) SaveOriginal(ctx context.Context, path string, values map[string]string) error {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s = %s\n", key, values[key])
	}
	return t.Write(ctx, File{path, 0o600, b.Bytes()})
}
