package precheck_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/precheck"
)

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
