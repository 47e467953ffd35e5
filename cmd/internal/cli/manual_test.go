package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

// TestDocsCommand writes the manual, and refuses to write it over files.
func TestDocsCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "manual")
	for i, want := range []struct {
		code int
		out  string
	}{{0, filepath.Join(dir, "index.html") + "\n"}, {1, ""}} {
		var out, text bytes.Buffer
		code := cli.Main(t.Context(), []string{"docs", "-o", dir}, terminal.Streams{Out: &out, Err: &text})
		if code != want.code || out.String() != want.out || (code == 1) != strings.Contains(text.String(),
			"not empty") {
			t.Errorf("run %d: exit code %d: %s%s", i+1, code, out.String(), text.String())
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "reference", "commands.html"))
	if err != nil || !bytes.Contains(page, []byte("kkbundle-support-bundle")) {
		t.Errorf("%v %.100s", err, page)
	}
}
