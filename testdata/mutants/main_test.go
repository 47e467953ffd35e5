package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJudge wants a survivor without a reason to be named, whatever its line number, and a share below the goal to
// fail.
func TestJudge(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pkg/a.go", "package a\n\n\tif n > 0 {\n\tfor n < 9 {\n")
	write("survivors.txt", "# why\n\npkg/a.go CONDITIONALS_BOUNDARY `if n > 0 {`: zero gives the same\n"+
		"pkg/a.go CONDITIONALS_NEGATION `for n < 9 {`: caught: hangs\n")
	reasons, err := readReasons("survivors.txt")
	if err != nil || len(reasons) != 2 {
		t.Fatal(reasons, err)
	}
	for name, tt := range map[string]struct {
		survivor string // beside 30 that are caught
		want     string // in the error; "" for none
	}{
		"a reason": {`{"line":3,"type":"CONDITIONALS_BOUNDARY","status":"LIVED"}`, ""},
		"another kind": {
			`{"line":3,"type":"CONDITIONALS_NEGATION","status":"LIVED"}`,
			"pkg/a.go:3: CONDITIONALS_NEGATION `if n > 0 {`: LIVED",
		},
		"another line":     {`{"line":4,"type":"CONDITIONALS_BOUNDARY","status":"LIVED"}`, "pkg/a.go:4"},
		"no test runs it":  {`{"line":4,"type":"CONDITIONALS_BOUNDARY","status":"NOT COVERED"}`, "NOT COVERED"},
		"perhaps a hang":   {`{"line":4,"type":"CONDITIONALS_BOUNDARY","status":"TIMED OUT"}`, "TIMED OUT"},
		"a hang":           {`{"line":4,"type":"CONDITIONALS_NEGATION","status":"TIMED OUT"}`, ""},
		"does not compile": {`{"line":4,"type":"CONDITIONALS_BOUNDARY","status":"NOT VIABLE"}`, ""},
	} {
		killed := strings.Repeat(`{"line":3,"type":"CONDITIONALS_NEGATION","status":"KILLED"},`, 30)
		var r result
		if err := json.Unmarshal([]byte(`{"files":[{"file_name":"a.go","mutations":[`+killed+tt.survivor+`]}]}`),
			&r); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := judge("pkg", r, reasons, &out); (err == nil) != (tt.want == "") ||
			err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if seen := strings.HasPrefix(out.String(), "pkg: 31 of 31 "); seen != (name == "a hang") ||
			!seen && !strings.HasPrefix(out.String(), "pkg: 30 of 3") {
			t.Errorf("%s: %q", name, out.String())
		}
	}
	few := result{}
	if err := json.Unmarshal([]byte(
		`{"files":[{"file_name":"a.go","mutations":[{"line":3,"type":"CONDITIONALS_BOUNDARY","status":"LIVED"}]}]}`),
		&few); err != nil {
		t.Fatal(err)
	}
	if err := judge("pkg", few, reasons, &strings.Builder{}); err == nil ||
		!strings.Contains(err.Error(), "less than 95 %") {
		t.Errorf("none caught: %v", err)
	}
	if err := judge("pkg", result{}, reasons, &strings.Builder{}); err == nil {
		t.Error("nothing was changed, and nobody is told")
	}
	write("survivors.txt", "pkg/a.go if n > 0\n")
	if _, err := readReasons("survivors.txt"); err == nil {
		t.Error("a line of another form is passed over")
	}
}
