package capped_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/internal/capped"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	many := strings.Repeat
	for text, want := range map[string]string{
		`{"a":[{},{}],"b":"x\"[,{,["}`:                      "",
		`["` + many(`{,[,n`, 1<<20) + `"]`:                  "",
		`[` + many(`{},`, capped.MaxElements-1) + `{}]`:     "",
		`[` + many(`{},`, capped.MaxElements+1) + `{}]`:     "objects in lists",
		`[` + many("[] ,\n", capped.MaxElements+1) + `{}]`:  "objects in lists",
		`[` + many(`null,`, capped.MaxElements+1) + `null]`: "objects in lists",
		`[` + many(`0,`, capped.MaxValues+1) + `0]`:         "values",
		`["` + many(`\"`, 10):                               "unexpected end",
		`"\`:                                                "string escape",
	} {
		var v any
		err := capped.JSON([]byte(text), capped.MaxValues, &v)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.30s…: got %v, want %q", text, err, want)
		}
	}
}
