package render_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/render"
)

// listHead is what docs/reference/prechecks.md begins with.
const listHead = `# Checks of kkbundle precheck

Generated from the checks: this page is the output of ` + "`kkbundle precheck list -o markdown`" + `.
[Precheck](../site/precheck.md) explains how to run and select them.

`

// TestListIsDocumented holds that docs/reference/prechecks.md has the checks that there are.
func TestListIsDocumented(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/reference/prechecks.md"
	b := bytes.NewBufferString(listHead)
	if err := render.List(b, precheck.List()); err != nil {
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
