package marks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// TestPage: the tables of docs/resume.md are those of All; -update writes them.
func TestPage(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/resume.md", "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), begin)
	have, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatal("the page has no place for the tables")
	}
	var b strings.Builder
	for _, g := range groups() {
		b.WriteString("\n### " + g.title +
			"\n\n| mark | on | written | what the next run does | removed by |\n|---|---|---|---|---|\n")
		for _, m := range g.marks {
			gone := m.Gone
			if gone == "" {
				gone = "reset"
			}
			b.WriteString("| `" + m.Path + "` | " + string(m.At) + " | " + m.Written + " | " + m.Next + " | " + gone +
				" |\n")
		}
	}
	b.WriteString("\n")
	if *tasktest.Update {
		if err := os.WriteFile(file, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != b.String() {
		t.Errorf("%s does not have the tables of All: run go test ./installer/marks -run TestPage -update", file)
	}
}

// TestAll: each mark is there once, and the table says all of it.
func TestAll(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range All() {
		if m.Path == "" || m.At == "" || m.Written == "" || m.Next == "" || seen[string(m.At)+m.Path] {
			t.Errorf("%+v: it is there twice, or something is missing", m)
		}
		seen[string(m.At)+m.Path] = true
	}
	if !seen[string(API)+charts.MarkLabel] {
		t.Errorf("%s of releases is not in the table", charts.MarkLabel)
	}
	if precheck.MarkerDir != task.StampDir {
		t.Errorf("prechecks look for stamps in %s, not in %s", precheck.MarkerDir, task.StampDir)
	}
}

// below are the files that name marks and are below this package, with the marks that they name.
func below() map[string][]string {
	return map[string][]string{
		"host/helper.go":       {"/var/lib/kkbundle/bin/kkbundle-node"},
		"precheck/precheck.go": {"/var/lib/kkbundle/applied"},
		"task/before.go":       {task.BlockBegin, task.CommentedOut},
	}
}

// TestOneRoom: no other room of the installer makes the path of a mark. Rooms below this one have what theirs are:
// task the directories, and host the helper.
func TestOneRoom(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel("..", file)
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
			strings.HasPrefix(name, "marks/") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		found++
		for _, made := range pathsIn(parsed) {
			if strings.HasPrefix(name, "task/") && strings.HasPrefix(made, "task.") {
				continue
			}
			allowed := false
			for _, one := range below()[name] {
				allowed = allowed || made == one
			}
			if !allowed {
				t.Errorf("%s makes the path of a mark: %s; it belongs into installer/marks", name, made)
			}
		}
		return nil
	})
	if err != nil || found < 100 {
		t.Errorf("%d files, %v", found, err)
	}
}

// pathsIn returns the text of literals that have a mark's path, and of expressions that add a name to a directory of
// marks.
func pathsIn(f *ast.File) (list []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && hasMark(text) {
				list = append(list, text)
			}
		case *ast.BinaryExpr:
			if dir := markDir(n.X); dir != "" {
				list = append(list, dir+" + ...")
			}
		case *ast.CallExpr:
			if fun, ok := n.Fun.(*ast.SelectorExpr); ok && fun.Sel.Name == "Join" && len(n.Args) > 0 {
				if dir := markDir(n.Args[0]); dir != "" {
					list = append(list, "path.Join("+dir+", ...)")
				}
			}
		}
		return true
	})
	return list
}

// markDir returns the name of a directory of marks, "" if an expression is none.
func markDir(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok || x.Name != "task" {
		return ""
	}
	switch s.Sel.Name {
	case "StateDir", "StampDir", "BeforeDir", "ProvisionDir":
		return "task." + s.Sel.Name
	}
	return ""
}

// hasMark reports whether a text has the path of a mark, or its name in the API. Names that are words, such as lock,
// are left out.
func hasMark(text string) bool {
	for _, m := range All() {
		name := m.Path
		if i := strings.IndexFunc(name, func(r rune) bool { return r >= 'A' && r <= 'Z' }); i >= 0 &&
			!strings.HasPrefix(name, "DATA/") && name[0] != '#' {
			name = strings.TrimRight(name[:i], "/")
		}
		name = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "DATA/member/"), "DATA/"), "TIME")
		if m.At == Work || !strings.ContainsAny(name, "/-") && name[0] != '#' {
			continue
		}
		if rest, has := strings.CutPrefix(text, name); has && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}
