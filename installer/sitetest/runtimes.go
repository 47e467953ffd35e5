//go:build linux

package sitetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Written lists files of a host as one text, for golden files.
func (h *Rooted) Written(t *testing.T, paths ...string) []byte {
	t.Helper()
	var b strings.Builder
	for _, path := range paths {
		info, err := os.Stat(filepath.Join(h.Root, path))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "==> %s %04o\n%s", path, info.Mode().Perm(), h.Content(path))
	}
	return []byte(b.String())
}
