package precheck_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/precheck"
)

// listHead is what docs/reference/prechecks.md begins with.
const listHead = `# Checks of kkbundle precheck

Generated from the checks: this page is the output of ` + "`kkbundle precheck list -o markdown`" + `.
[Precheck](../site/precheck.md) explains how to run and select them.

`

// TestListIsDocumented holds that docs/reference/prechecks.md has the checks that there are.
func TestListIsDocumented(t *testing.T) {
	t.Parallel()
	const file = "../../docs/reference/prechecks.md"
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
		t.Errorf("docs/reference/prechecks.md is not up to date: run make docs")
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
