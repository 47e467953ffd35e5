package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

// TestOneWayIn finds commands that would use a bundle that nobody vouches for: bundles are opened where trust is
// checked.
func TestOneWayIn(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{
		"*.go", "../site/*.go", "../../../builder/*.go", "../../../bundle/extract/*.go",
		"../../../bundle/pull/*.go", "../../../bundle/diff/*.go",
	} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	allowed := map[string]string{
		"complete.go":                 "lists names for a shell, and uses nothing of the bundle",
		"openbundle.go":               "checks",
		"verify.go":                   "checks before it reads, and takes warnings for errors",
		"chain.go":                    "opens what deltas are applied to, for openbundle.go; the result is checked",
		"web.go":                      "checks, as openbundle.go does",
		"copy.go":                     "looks at the bundle of --add, which it has just built; the others are checked",
		"cache.go":                    "reads which blobs to keep, and none of them",
		"../../../builder/closure.go": "looks at the bundle that build has just written",
		"overwrite.go":                "reads which bundle would be replaced",
		"parts.go":                    "tells whether the parts or their list are wrong, and uses nothing of the bundle",
		"sign.go":                     "signs the bundle, and needs nobody's signature",
	}
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := s.X.(*ast.Ident)
			opens := ok && pkg.Name == "bundle" &&
				slices.Contains([]string{"Open", "OpenWith", "NewReader", "NewReaderWith", "NewStream", "VerifyStream"},
					s.Sel.Name)
			if !opens && s.Sel.Name != "openUnchecked" {
				return true
			}
			if found[file] = true; allowed[file] == "" {
				t.Errorf("%s uses bundle.%s: use openBundle or openStream, which look at signatures", file, s.Sel.Name)
			}
			return true
		})
	}
	if len(found) < len(allowed) {
		t.Errorf("found %v only: this test looks in the wrong place", found)
	}
}

// TestTrustFlags wants --trust wherever a bundle is used.
func TestTrustFlags(t *testing.T) {
	t.Parallel()
	// whose arguments have other names
	more := []string{"kkbundle diff", "kkbundle pull", "kkbundle delta", "kkbundle patch"}
	// the one vouches, the other compares files with their list
	without := []string{"kkbundle sign", "kkbundle parts verify"}
	checked := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		uses := slices.Contains(more, c.CommandPath()) || strings.Contains(c.Use, "BUNDLE") &&
			!slices.Contains(without, c.CommandPath())
		if has := c.Flags().Lookup("trust") != nil; has != uses {
			t.Errorf("%s: has --trust: %t, want %t", c.CommandPath(), has, uses)
		}
		if uses {
			checked++
		}
	}
	walk(newRootCmd(&globals{Console: terminal.NewConsole(terminal.Streams{
		In: strings.NewReader(""), Out: io.Discard,
		Err: io.Discard,
	})}))
	if checked < 5 {
		t.Errorf("only %d commands use a bundle", checked)
	}
}

func TestSignerName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"ops": true, "a": true, "team-2": true, "": false, "001": false, "2nd": false, "Ops": false, "a.b": false,
		"../a": false, "a/b": false, strings.Repeat("a", 64): false,
	} {
		if signerName(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}
