package manual

import (
	"bytes"
	"fmt"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"html/template"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	markdown "github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// ourPriority is before the renderers of goldmark.
const ourPriority = 100

func newMarkdown() goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.Table),
		goldmark.WithParserOptions(markdown.WithAutoHeadingID()),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(pieces{}, ourPriority))))
}

// packageComment returns the comment of a Go package as Markdown.
func packageComment(source []byte) ([]byte, error) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", source, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		return nil, err
	}
	var p comment.Parser
	printer := comment.Printer{HeadingLevel: 2, HeadingID: func(*comment.Heading) string { return "" }}
	name := strings.ToUpper(f.Name.Name[:1]) + f.Name.Name[1:]
	return append([]byte("# "+name+" format\n\n"), printer.Markdown(p.Parse(f.Doc.Text()))...), nil
}

// render fills a page from its Markdown.
func (b *builder) render(p *page, source []byte) error {
	md := newMarkdown()
	ctx := markdown.NewContext(markdown.WithIDs(anchors{}))
	doc := md.Parser().Parse(text.NewReader(source), markdown.WithContext(ctx))
	if err := b.relink(p, doc, source); err != nil {
		return err
	}
	p.read(doc, source)
	var out bytes.Buffer
	if err := md.Renderer().Render(&out, source, doc); err != nil {
		return err
	}
	p.body = template.HTML(out.String()) // goldmark leaves out HTML of its input
	return nil
}

// relink makes links lead to pages of the site, and joins lines of Chinese. A link to a file that the site does not
// have becomes text.
func (b *builder) relink(p *page, doc ast.Node, source []byte) error {
	var outside []*ast.Link
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch l := n.(type) {
		case *ast.Link:
			to, inside := b.target(p, string(l.Destination))
			if l.Destination = []byte(to); !inside {
				outside = append(outside, l)
			}
		case *ast.Text:
			joinHan(l, source)
		case *ast.Image:
			to, inside := b.target(p, string(l.Destination))
			if !inside || strings.Contains(to, ":") {
				return ast.WalkStop, fmt.Errorf("picture %s is not a file below docs", l.Destination)
			}
			l.Destination = []byte(to)
		}
		return ast.WalkContinue, nil
	})
	for _, l := range outside {
		for c := l.FirstChild(); c != nil; c = l.FirstChild() {
			l.Parent().InsertBefore(l.Parent(), l, c)
		}
		l.Parent().RemoveChild(l.Parent(), l)
	}
	return err
}

// joinHan drops a line break between two Chinese characters, which browsers show as a blank.
func joinHan(t *ast.Text, source []byte) {
	next, ok := t.NextSibling().(*ast.Text)
	if !ok || !t.SoftLineBreak() {
		return
	}
	last, _ := utf8.DecodeLastRune(t.Value(source))
	first, _ := utf8.DecodeRune(next.Value(source))
	if util.IsEastAsianWideRune(last) && util.IsEastAsianWideRune(first) {
		t.SetSoftLineBreak(false)
	}
}

// target returns the address of a link's destination. It is not inside if the site does not have the file.
func (b *builder) target(p *page, destination string) (address string, inside bool) {
	u, err := url.Parse(destination)
	if err != nil || u.IsAbs() {
		return destination, err == nil
	}
	if u.Path == "" {
		return destination, true
	}
	source := path.Join(path.Dir(p.source), u.Path)
	to := strings.TrimPrefix(source, "docs/")
	if target := b.pages[source]; target != nil {
		to = target.path
	} else if b.site[to] == nil {
		return "", false
	}
	to = p.root() + to
	if u.Fragment != "" {
		to += "#" + u.EscapedFragment()
	}
	return to, true
}

// linked keeps the chapters of a page and the links below them, for the navigation.
func (p *page) linked(doc ast.Node, source []byte) {
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch l := n.(type) {
		case *ast.Heading:
			if l.Level == 2 {
				p.chapters = append(p.chapters, group{Title: plainText(l, source)})
			}
		case *ast.Link:
			if len(p.chapters) > 0 {
				last := &p.chapters[len(p.chapters)-1]
				last.Links = append(last.Links, navLink{
					Title: plainText(l, source),
					Path:  strings.TrimPrefix(string(l.Destination), p.root()),
				})
			}
		}
		return ast.WalkContinue, nil
	})
}

// root returns the relative path of the site's root.
func (p *page) root() string { return strings.Repeat("../", strings.Count(p.path, "/")) }

// groups returns the links to pages of the site below each chapter of a page.
func (b *builder) groups(p *page) []group {
	known := make(map[string]bool)
	for _, other := range b.pages {
		known[other.path] = true
	}
	groups := make([]group, len(p.chapters))
	for i, c := range p.chapters {
		groups[i] = group{Title: c.Title, Links: slices.DeleteFunc(slices.Clone(c.Links),
			func(l navLink) bool { return !known[l.Path] })}
	}
	return groups
}

// anchors gives headings the anchors that GitHub gives them.
type anchors map[string]int

// Generate implements parser.IDs.
func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(string(value)))
	a[id]++
	if n := a[id]; n > 1 {
		id = fmt.Sprintf("%s-%d", id, n-1)
	}
	return []byte(id)
}

// Put implements parser.IDs.
func (a anchors) Put(value []byte) { a[string(value)]++ }

// pieces renders headings with a link, code with a button, and tables that scroll.
type pieces struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (pieces) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindHeading, renderHeading)
	r.Register(ast.KindCodeBlock, renderCode)
	r.Register(ast.KindFencedCodeBlock, renderCode)
	r.Register(tables.KindTable, renderTable)
	r.Register(tables.KindTableRow, renderRow)
	nothing := func(util.BufWriter, []byte, ast.Node, bool) (ast.WalkStatus, error) { return ast.WalkSkipChildren, nil }
	r.Register(ast.KindHTMLBlock, nothing)
	r.Register(ast.KindRawHTML, nothing)
}

func renderHeading(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	h, ok := n.(*ast.Heading)
	if !ok {
		return ast.WalkContinue, nil
	}
	id := idOf(h)
	if entering {
		_, err := fmt.Fprintf(w, "<h%d id=\"%s\">", h.Level, template.HTMLEscapeString(id))
		return ast.WalkContinue, err
	}
	_, err := fmt.Fprintf(w, " <a class=\"anchor\" href=\"#%s\" aria-label=\"Link to this section\">#</a></h%d>\n",
		template.HTMLEscapeString(id), h.Level)
	return ast.WalkContinue, err
}

func idOf(n ast.Node) string {
	if id, ok := n.AttributeString("id"); ok {
		if text, ok := id.([]byte); ok {
			return string(text)
		}
	}
	return ""
}

func renderCode(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	code := strings.TrimRight(string(n.Lines().Value(source)), "\n")
	_, err := fmt.Fprintf(w,
		"<div class=\"code\"><pre tabindex=\"0\"><code>%s</code></pre><button type=\"button\" class=\"copy\" hidden>Copy</button></div>\n",
		template.HTMLEscapeString(code))
	return ast.WalkSkipChildren, err
}

// manyColumns is the number above which a table needs narrower columns.
const manyColumns = 6

func renderTable(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		open := "<div class=\"table\"><table>\n"
		if class, ok := n.AttributeString("class"); ok {
			open = fmt.Sprintf("<div class=\"table\"><table class=\"%s\">\n", class)
		} else if head := n.FirstChild(); head != nil && head.ChildCount() > manyColumns {
			open = "<div class=\"table\"><table class=\"many\">\n"
		}
		_, err := w.WriteString(open)
		return ast.WalkContinue, err
	}
	end := "</table></div>\n"
	if n.ChildCount() > 1 {
		end = "</tbody>\n" + end
	}
	_, err := w.WriteString(end)
	return ast.WalkContinue, err
}

func renderRow(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		_, err := w.WriteString("</tr>\n")
		return ast.WalkContinue, err
	}
	row := "<tr>\n"
	if id := idOf(n); id != "" {
		row = strings.Replace(row, "<tr>", `<tr id="`+template.HTMLEscapeString(id)+`">`, 1)
	}
	_, err := w.WriteString(row)
	return ast.WalkContinue, err
}

// plainText returns the text below a node, without marks.
func plainText(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns no error
		switch t := n.(type) {
		case *ast.Text:
			if entering {
				text := util.ResolveEntityNames(util.ResolveNumericReferences(t.Value(source)))
				b.Write(util.UnescapePunctuations(text))
				if t.SoftLineBreak() || t.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.String:
			if entering {
				b.Write(t.Value)
			}
		case *ast.CodeBlock, *ast.FencedCodeBlock:
			if entering {
				b.Write(n.Lines().Value(source))
			}
		default:
			if !entering && (n.Type() == ast.TypeBlock || n.Kind() == tables.KindTableCell) {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.FieldsFunc(b.String(), unicode.IsSpace), " ")
}

// Heads of the first column of tables whose rows have anchors, and are found one by one.
const (
	headMessage = "message"
	headTerm    = "term"
)

// headOf returns the head of a table's first column.
func headOf(t *tables.Table, source []byte) string {
	if head := t.FirstChild(); head != nil && head.FirstChild() != nil {
		return plainText(head.FirstChild(), source)
	}
	return ""
}
