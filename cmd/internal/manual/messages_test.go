package manual_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// A message is an error that the source constructs. Parts that are known only at run time are <names>.
type message struct {
	text, remedy string
	code         int    // 0: the usual one of its package
	dir          string // of its package
	kind         string // type of the error, or the function that made it
}

// A source is the packages of kkbundle, parsed and not type-checked.
type source struct {
	files     map[string][]*ast.File // by directory
	constants map[string]string      // by directory.name: string constants and errors.New of package-level variables
	codes     map[string]int         // by package.Type: exit codes of cmd/internal/cli/exit.go
	typed     map[string]bool        // directory.Type: has an Error method
}

// skipped reports whether errors of a directory never reach the person at the command line as they are written.
func skipped(dir string) bool {
	return strings.HasPrefix(dir, "testdata") || strings.HasPrefix(dir, ".") && dir != "." ||
		strings.HasSuffix(dir, "test") ||
		slices.Contains([]string{"cmd/internal/release", "cmd/kkbundle-node"}, dir)
}

func readSource(t *testing.T, root string) *source {
	t.Helper()
	s := &source{
		files: map[string][]*ast.File{}, constants: map[string]string{}, codes: map[string]int{},
		typed: map[string]bool{},
	}
	set := token.NewFileSet()
	walk(t, root, func(file string, d fs.DirEntry) error {
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			if skipped(name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		s.files[path.Dir(name)] = append(s.files[path.Dir(name)], f)
		return err
	})
	for dir, files := range s.files {
		for _, f := range files {
			s.declared(dir, f)
		}
	}
	for _, f := range s.files["cmd/internal/cli"] {
		s.exitCodes(f)
	}
	return s
}

// declared keeps string constants and types with an Error method.
func (s *source) declared(dir string, f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok || d.Tok != token.CONST && d.Tok != token.VAR || len(v.Values) != len(v.Names) {
					continue
				}
				for i, n := range v.Names {
					if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
						s.constants[dir+"."+n.Name], _ = strconv.Unquote(lit.Value)
					}
					if c, ok := v.Values[i].(*ast.CallExpr); ok && nameOf(c.Fun) == "errors.New" {
						s.constants[dir+"."+n.Name] = s.text(dir, c.Args[0])
					}
				}
			}
		case *ast.FuncDecl:
			if d.Recv != nil && d.Name.Name == "Error" {
				s.typed[dir+"."+receiver(d)] = true
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// exitCodes reads rows like {13, "text", func(err error) bool { return asError[*host.SudoError](err) }}.
func (s *source) exitCodes(f *ast.File) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "exitClasses" {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			row, ok := n.(*ast.CompositeLit)
			if !ok || row.Type != nil || len(row.Elts) != 3 {
				return true
			}
			lit, ok := row.Elts[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			code, _ := strconv.Atoi(lit.Value)
			ast.Inspect(row.Elts[2], func(n ast.Node) bool {
				if x, ok := n.(*ast.IndexExpr); ok {
					if star, ok := x.Index.(*ast.StarExpr); ok {
						s.codes[strings.TrimPrefix(nameOf(star.X), "cli.")] = code
					}
				}
				return true
			})
			return true
		})
	}
}

// nameOf returns an identifier with its package.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return nameOf(e.X) + "." + e.Sel.Name
	case *ast.StarExpr:
		return nameOf(e.X)
	case *ast.IndexExpr:
		return nameOf(e.X)
	}
	return ""
}

// codeOf returns the exit code of a type of a package, 0 without a row of its own.
func (s *source) codeOf(dir, typ string) int {
	if code := s.codes[path.Base(dir)+"."+typ]; code > 0 {
		return code
	}
	if dir == "cmd/internal/cli" {
		return s.codes[typ]
	}
	return 0
}

// text returns a string expression with <names> for what is known only at run time.
func (s *source) text(dir string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return e.Value
		}
		t, _ := strconv.Unquote(e.Value)
		return t
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return s.text(dir, e.X) + s.text(dir, e.Y)
		}
	case *ast.ParenExpr:
		return s.text(dir, e.X)
	case *ast.Ident:
		if c, ok := s.constants[dir+"."+e.Name]; ok {
			return c
		}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			for d := range s.files {
				if path.Base(d) == x.Name {
					if c, ok := s.constants[d+"."+e.Sel.Name]; ok {
						return c
					}
				}
			}
		}
	case *ast.CallExpr:
		switch name := nameOf(e.Fun); {
		case name == "fmt.Sprintf" || name == "fmt.Errorf" || name == "usage.Errorf":
			return s.format(dir, e.Args)
		case name == "errors.New" && len(e.Args) == 1:
			return s.text(dir, e.Args[0])
		case name == "plain.Count" && len(e.Args) == 2:
			return "<n> " + s.text(dir, e.Args[1]) + "s"
		}
	}
	return placeholder(e)
}

// placeholder names a value.
func placeholder(e ast.Expr) string {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
		if name == "Name" || name == "Err" || name == "Text" {
			name = nameOf(e.X)
			name = name[strings.LastIndexByte(name, '.')+1:]
		}
	case *ast.CallExpr:
		name = nameOf(e.Fun)
		name = name[strings.LastIndexByte(name, '.')+1:]
		arguments := []string{
			"Join", "Size", "Line", "Lines", "Clip", "Base", "Quote", "string", "clean", "shorten",
			"Shorten", "len", "list", "TrimSpace", "Round", "Itoa", "Keys", "Sorted",
		}
		if sel, ok := e.Fun.(*ast.SelectorExpr); ok && len(e.Args) == 0 &&
			slices.Contains([]string{"String", "Error", "Digest", "Name", "Load"}, sel.Sel.Name) {
			return placeholder(sel.X)
		}
		if len(e.Args) > 0 && slices.Contains(arguments, name) {
			return placeholder(e.Args[0])
		}
	case *ast.IndexExpr:
		return placeholder(e.X)
	case *ast.StarExpr:
		return placeholder(e.X)
	case *ast.SliceExpr:
		return placeholder(e.X)
	case *ast.BinaryExpr:
		return placeholder(e.X)
	}
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	switch name = b.String(); name {
	case "err", "error", "errs", "problems", "cause", "fault":
		name = "error"
	case "t", "h", "host":
		name = "host"
	case "o", "x", "v", "s", "e", "f", "c", "p", "a", "b", "r", "u", "m", "it", "l", "k", "q", "w", "g", "y", "z", "":
		name = "…"
	}
	return "<" + name + ">"
}

var verb = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?[a-zA-Z%]`)

// format fills a format with placeholders.
func (s *source) format(dir string, args []ast.Expr) string {
	if len(args) == 0 {
		return ""
	}
	i := 0
	return verb.ReplaceAllStringFunc(s.text(dir, args[0]), func(v string) string {
		if v == "%%" {
			return "%"
		}
		if i++; i >= len(args) {
			return "<…>"
		}
		value := s.text(dir, args[i])
		if strings.HasSuffix(v, "q") {
			return `"` + value + `"`
		}
		return value
	})
}

// messages returns what the source constructs.
func (s *source) messages() []message {
	var list []message
	for _, dir := range slices.Sorted(maps.Keys(s.files)) {
		formats := s.formatters(dir)
		for _, f := range s.files[dir] {
			for _, d := range f.Decls {
				list = append(list, s.method(dir, d)...)
				list = append(list, s.calls(dir, d, formats)...)
			}
		}
	}
	return list
}

// formatters returns the package's own functions that make an error of a format: name to the position of the format.
func (s *source) formatters(dir string) map[string]int {
	own := map[string]int{}
	for _, f := range s.files[dir] {
		if slices.ContainsFunc(f.Imports,
			func(i *ast.ImportSpec) bool { return strings.HasSuffix(i.Path.Value, `/manifest/document"`) }) {
			own["Add"] = 1 // document.Checker's
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			at, names := 0, []string{}
			for _, p := range fn.Type.Params.List {
				for _, n := range p.Names {
					names = append(names, n.Name)
				}
			}
			if at = slices.Index(names, "format"); at < 0 || fn.Name.Name == "Errorf" && dir == "cmd/internal/usage" {
				continue
			}
			makes := strings.EqualFold(fn.Name.Name, "add") || fn.Name.Name == "problem"
			if fn.Type.Results != nil {
				for _, r := range fn.Type.Results.List {
					makes = makes || strings.HasSuffix(strings.ToLower(nameOf(r.Type)), "error")
				}
			}
			if makes {
				own[fn.Name.Name] = at
			}
		}
	}
	return own
}

// calls returns the errors that a declaration makes.
func (s *source) calls(dir string, d ast.Decl, formats map[string]int) (list []message) {
	done := map[ast.Node]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok && !done[n] {
			list = append(list, s.literal(dir, lit)...)
			return true
		}
		c, ok := n.(*ast.CallExpr)
		if !ok || done[n] {
			return true
		}
		name := nameOf(c.Fun)
		short := name[strings.LastIndexByte(name, '.')+1:]
		at, own := formats[short]
		switch {
		case name == "plain.Advise" && len(c.Args) == 2:
			list = append(list, message{
				text: s.text(dir, c.Args[0]), remedy: s.text(dir, c.Args[1]), dir: dir,
				kind: "Advise",
			})
			done[c.Args[0]] = true
		case name == "usage.Errorf":
			list = append(list, message{text: s.format(dir, c.Args), code: 64, dir: dir, kind: name})
		case name == "fmt.Errorf":
			list = append(list, message{text: s.format(dir, c.Args), dir: dir, kind: name})
		case name == "errors.New" && len(c.Args) == 1:
			list = append(list, message{text: s.text(dir, c.Args[0]), dir: dir, kind: name})
		case short == "report" && len(c.Args) > 1:
			list = append(list, message{text: s.text(dir, c.Args[len(c.Args)-1]), dir: dir, kind: "report"})
		case own && len(c.Args) > at:
			list = append(list, message{text: s.format(dir, c.Args[at:]), dir: dir, kind: "own"})
		}
		return true
	})
	return list
}

// literal returns the message of a literal of an error type that carries its reason and its remedy in fields.
func (s *source) literal(dir string, lit *ast.CompositeLit) []message {
	name := nameOf(lit.Type)
	if !strings.HasSuffix(name, "Error") || len(lit.Elts) < 2 {
		return nil
	}
	m := message{dir: dir, kind: name, code: s.codeOf(dir, name)}
	if strings.Contains(name, ".") {
		m.code = s.codes[name]
	}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			switch nameOf(kv.Key) {
			case "Reason", "What", "Why", "Text":
				m.text = s.text(dir, kv.Value)
			case "Do", "Advice", "Instead", "Remedy", "Fix", "hint":
				m.remedy = s.text(dir, kv.Value)
			}
		}
	}
	if n := len(lit.Elts); m.text == "" && slices.Contains([]string{
		"RefusedError", "NoWayBackError", "MoveError",
		"RotationError", "WithoutError", "KeepError", "UnsupportedError",
	}, name[strings.LastIndexByte(name, '.')+1:]) {
		if _, keyed := lit.Elts[0].(*ast.KeyValueExpr); !keyed {
			m.text, m.remedy = s.text(dir, lit.Elts[n-2]), s.text(dir, lit.Elts[n-1])
		}
	}
	return []message{m}
}

// method returns the messages of an Error method with the first remedy of the type's Hint method.
func (s *source) method(dir string, d ast.Decl) (list []message) {
	fn, ok := d.(*ast.FuncDecl)
	if !ok || fn.Recv == nil || fn.Name.Name != "Error" || fn.Body == nil {
		return nil
	}
	typ := receiver(fn)
	remedy := strings.Join(s.returned(dir, typ, "Hint"), "; or: ")
	for _, text := range s.returned(dir, typ, "Error") {
		list = append(list, message{text: text, remedy: remedy, code: s.codeOf(dir, typ), dir: dir, kind: typ})
	}
	return list
}

// returned returns the texts that a method returns.
func (s *source) returned(dir, typ, method string) (texts []string) {
	for _, f := range s.files[dir] {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != method || receiver(fn) != typ || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
					if text := s.text(dir, r.Results[0]); constantWords(text) > 0 {
						texts = append(texts, text)
					}
				}
				return true
			})
		}
	}
	return texts
}

var named = regexp.MustCompile(`"?<[^<>]*>"?`)

// constantWords counts the words of a message that are not placeholders.
func constantWords(text string) int {
	n := 0
	for _, w := range strings.Fields(named.ReplaceAllString(text, " ")) {
		if strings.ContainsFunc(w, unicode.IsLetter) {
			n++
		}
	}
	return n
}

// TestSourceIsRead holds the reading of errors with a source of known ones.
func TestSourceIsRead(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cmd/internal/cli/exit.go", `package cli
func exitClasses() []exitClass { return []exitClass{{13, "host", func(err error) bool { return asError[*host.SlowError](err) }}} }`)
	write("host/host.go", `package host
const unit = "u.service"
type SlowError struct { Limit int }
func (e *SlowError) Error() string { return fmt.Sprintf("no result within %s", e.Limit) }
func (e *SlowError) Hint() string { return "check its load" }
func refuse(format string, args ...any) error { return nil }
func f() error {
	_ = plain.Advise(fmt.Errorf("%s has no "+unit+": %w", t.Name, err), "start it")
	_ = usage.Errorf("%q is no size; write %d or more", text, 5)
	return refuse("%s refuses us", strings.Join(hosts, ", "))
}`)
	got := map[string]message{}
	for _, m := range readSource(t, root).messages() {
		got[m.text] = m
	}
	for text, want := range map[string]message{
		"no result within <limit>":             {remedy: "check its load", code: 13},
		"<host> has no u.service: <error>":     {remedy: "start it"},
		`"<text>" is no size; write 5 or more`: {code: 64},
		"<hosts> refuses us":                   {},
	} {
		if m, found := got[text]; !found || m.remedy != want.remedy || m.code != want.code {
			t.Errorf("%s: found %t: %+v in %+v", text, found, m, got)
		}
	}
}
