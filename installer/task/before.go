package task

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Marks of kkbundle in files that belong to the host.
const (
	BlockBegin = "# BEGIN kkbundle"
	BlockEnd   = "# END kkbundle"
	// OpenBegin begins the block in a file whose last line had no newline. Reset removes the newline again.
	OpenBegin = "# BEGIN kkbundle, after a line without an end"
	// CommentedOut begins the lines that kkbundle disabled. Reset enables them again.
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

// SaveOriginal writes the values that Reset restores. Callers include the values saved by earlier runs: the host's
// current ones may be kkbundle's own.
func (t *Host) SaveOriginal(ctx context.Context, path string, values map[string]string) error {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s = %s\n", key, values[key])
	}
	return t.Write(ctx, File{Path: path, Mode: 0o600, Data: b.Bytes()})
}
