package manual

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

//go:embed assets
var assets embed.FS

const (
	indexPage  = "docs/README.md" // navigation of the English pages; the site's first page
	mostInside = 60               // headings of a page's table of contents; a longer one has chapters only
)

// A builder makes a site.
type builder struct {
	files   fs.FS
	version string
	pages   map[string]*page // by their source
	site    Site
}

// A page is one source file.
type page struct {
	source   string // path in the repository
	path     string // path in the site
	lang     string
	title    string
	body     template.HTML
	headings []heading
	sections []section
	chapters []group // headings of the second level, and the links below them
}

type heading struct {
	Level    int
	ID, Text string
}

// A group is a part of the navigation.
type group struct {
	Title string
	Links []navLink
}

// A navLink leads to a page. Path is relative to the site's root.
type navLink struct {
	Title, Path string
	Current     bool
}

// collect finds the pages and copies pictures and assets.
func (b *builder) collect() error {
	for source, at := range map[string]string{
		"README.md": "readme.html", "README.zh.md": "readme.zh.html", "CHANGELOG.md": "changelog.html",
		"bundle/doc.go": "format/bundle.html", "bundle/delta/doc.go": "format/delta.html",
	} {
		if _, err := fs.Stat(b.files, source); err == nil {
			b.add(source, at)
		}
	}
	err := fs.WalkDir(b.files, "docs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		at := strings.TrimPrefix(name, "docs/")
		switch path.Ext(name) {
		case ".md":
			at = strings.TrimSuffix(at, ".md") + ".html"
			if base := path.Base(at); strings.HasPrefix(base, "README.") {
				at = path.Join(path.Dir(at), "index."+strings.TrimPrefix(base, "README."))
			}
			b.add(name, at)
		case ".yaml", ".yml", ".sh":
			b.add(name, at+".html")
		case ".svg", ".png":
			data, err := fs.ReadFile(b.files, name)
			b.site[at] = data
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if b.pages[indexPage] == nil {
		return errors.New(indexPage + " is missing")
	}
	for _, name := range []string{"icon.svg", "manual.css", "manual.js"} {
		data, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return err
		}
		b.site["assets/"+name] = data
	}
	return nil
}

func (b *builder) add(source, at string) {
	lang := "en"
	if isChinese(source) {
		lang = "zh"
	}
	b.pages[source] = &page{source: source, path: at, lang: lang}
}

func isChinese(source string) bool {
	return strings.HasPrefix(source, "docs/zh/") || strings.HasSuffix(source, ".zh.md")
}

// twin returns the source of the same page in the other language, "" if there is none.
func (b *builder) twin(p *page) string {
	english := func(source string) string {
		return strings.Replace(strings.Replace(source, "docs/zh/", "docs/", 1), ".zh.md", ".md", 1)
	}
	for source, other := range b.pages {
		if other.lang != p.lang && english(source) == english(p.source) {
			return source
		}
	}
	return ""
}

// ordered returns the pages sorted by source.
func (b *builder) ordered() []*page {
	list := make([]*page, 0, len(b.pages))
	for _, source := range slices.Sorted(maps.Keys(b.pages)) {
		list = append(list, b.pages[source])
	}
	return list
}

// read parses a source file.
func (b *builder) read(p *page) error {
	text, err := fs.ReadFile(b.files, p.source)
	if err != nil {
		return err
	}
	switch path.Ext(p.source) {
	case ".md":
	case ".go":
		if text, err = packageComment(text); err != nil {
			return err
		}
	default:
		text = fmt.Appendf(nil, "# %s\n\n```\n%s\n```\n", path.Base(p.source), bytes.TrimRight(text, "\n"))
	}
	return b.render(p, text)
}

// navigation returns the groups that a page named README of a language lists, and then the project's own pages.
func (b *builder) navigation(lang string) []group {
	from := b.pages[indexPage]
	for _, source := range []string{"docs/zh/README.md", "docs/README.zh.md"} {
		if p := b.pages[source]; p != nil && lang == p.lang {
			from = p
		}
	}
	groups := slices.DeleteFunc(b.groups(from), func(g group) bool { return len(g.Links) == 0 })
	project := group{Title: "Project"}
	for _, l := range []struct{ source, title string }{
		{"README.md", "README"},
		{"README.zh.md", "README（中文）"},
		{"CHANGELOG.md", "Changelog"},
	} {
		if p := b.pages[l.source]; p != nil {
			project.Links = append(project.Links, navLink{Title: l.title, Path: p.path})
		}
	}
	return append(groups, project)
}

// pageData is the data of the template.
type pageData struct {
	Lang, Title, Version, Policy string
	Root                         string // relative path of the site's root
	Home                         string // first page of the language
	Twin, TwinName               string // the page in the other language
	Body                         template.HTML
	Groups                       []group
	Inside                       []heading
	Previous, Next               *navLink
}

// write renders the pages and the index of the search.
func (b *builder) write() error {
	t, err := template.ParseFS(assets, "assets/page.html")
	if err != nil {
		return err
	}
	groups := map[string][]group{"en": b.navigation("en"), "zh": b.navigation("zh")}
	for _, p := range b.ordered() {
		var out bytes.Buffer
		if err := t.Execute(&out, b.data(p, groups[p.lang])); err != nil {
			return err
		}
		b.site[p.path] = out.Bytes()
	}
	b.site["assets/index.js"], err = b.index()
	return err
}

func (b *builder) data(p *page, groups []group) pageData {
	d := pageData{
		Lang: p.lang, Title: p.title, Version: b.version, Policy: policy, Body: p.body, Home: "index.html",
		TwinName: "中文",
	}
	d.Root = p.root()
	if p.lang == "zh" {
		d.TwinName = "English"
		if home := b.pages["docs/zh/README.md"]; home != nil {
			d.Home = home.path
		}
	}
	if twin := b.pages[b.twin(p)]; twin != nil {
		d.Twin = twin.path
	}
	var flat []navLink
	for _, g := range groups {
		g.Links = slices.Clone(g.Links)
		for i := range g.Links {
			g.Links[i].Current = g.Links[i].Path == p.path
		}
		flat = append(flat, g.Links...)
		d.Groups = append(d.Groups, g)
	}
	if i := slices.IndexFunc(flat, func(l navLink) bool { return l.Current }); i >= 0 {
		if i > 0 {
			d.Previous = &flat[i-1]
		}
		if i+1 < len(flat) {
			d.Next = &flat[i+1]
		}
	}
	deepest := 3
	if len(p.headings) > mostInside {
		deepest = 2
	}
	for _, h := range p.headings {
		if h.Level > 1 && h.Level <= deepest {
			d.Inside = append(d.Inside, h)
		}
	}
	return d
}
