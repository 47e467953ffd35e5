package precheck_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/precheck"
)

// listHead is what docs/prechecks.md begins with.
const listHead = `# The checks of kkbundle precheck

Made from the checks themselves, as ` + "`kkbundle precheck list -o markdown`" + ` prints them. [precheck.md](precheck.md) says how to use them.

`

// TestListIsDocumented holds that docs/prechecks.md has the checks that there are.
func TestListIsDocumented(t *testing.T) {
	t.Parallel()
	const file = "../../docs/prechecks.md"
	b := bytes.NewBufferString(listHead)
	if err := precheck.WriteListMarkdown(b, precheck.List()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Errorf("docs/prechecks.md is not up to date: go test ./installer/precheck -run TestListIsDocumented -update")
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, id := range precheck.IDs() {
		if seen[id] || id == "" || strings.ToLower(id) != id {
			t.Errorf("%q is the name of two checks, or no name", id)
		}
		seen[id] = true
	}
	for _, c := range precheck.List() {
		text, err := json.Marshal(c)
		if err != nil || !strings.Contains(string(text), `"fix":"`) {
			t.Errorf("%s: %s, %v", c.ID, text, err)
		}
	}
	chosen := precheck.Selection{Only: []string{"network"}, Skip: []string{"ports"}}.Of(precheck.List())
	if len(chosen) == 0 || len(chosen) >= len(precheck.List()) {
		t.Errorf("%d checks were chosen", len(chosen))
	}
}
