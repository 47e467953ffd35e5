package manual_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"golang.org/x/net/html"

	"github.com/kkbundle/kkbundle"
	"github.com/kkbundle/kkbundle/cmd/internal/manual"
)

const testVersion = "v9.8.7-test"

var ours = sync.OnceValues(func() (manual.Site, error) { return manual.New(kkbundle.Documentation(), testVersion) })

func ourSite(t *testing.T) manual.Site {
	t.Helper()
	s, err := ours()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A parsed page lists the links and the loaded resources of an HTML page.
type parsed struct {
	ids    []string
	links  []string // of <a>
	loads  []string // of everything else
	policy string
}

func parse(t *testing.T, body []byte) parsed {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var p parsed
	for n := range root.Descendants() {
		attributes := map[string]string{}
		for _, a := range n.Attr {
			attributes[a.Key] = a.Val
			switch {
			case a.Key == "id":
				p.ids = append(p.ids, a.Val)
			case a.Key == "href" && n.Data == "a":
				p.links = append(p.links, a.Val)
			case slices.Contains([]string{
				"href", "src", "srcset", "data", "action", "formaction", "poster",
				"background", "ping",
			}, a.Key):
				p.loads = append(p.loads, a.Val)
			case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
				p.loads = append(p.loads, "inline:"+a.Val)
			}
		}
		switch {
		case n.Type == html.ElementNode && n.Data == "style", n.Data == "script" && n.FirstChild != nil:
			p.loads = append(p.loads, "inline:"+n.Data)
		case n.Data == "meta" && attributes["http-equiv"] == "Content-Security-Policy":
			p.policy = attributes["content"]
		}
	}
	return p
}

// problems returns links and anchors that lead nowhere, and whatever a page would load from another host.
func problems(t *testing.T, s manual.Site) (list []string, links int) {
	t.Helper()
	all := map[string]parsed{}
	for _, name := range s.Names() {
		if path.Ext(name) == ".html" {
			all[name] = parse(t, s[name])
		}
	}
	for name, p := range all {
		if !strings.Contains(p.policy, "default-src 'none'") {
			list = append(list, name+": no policy")
		}
		if sorted := slices.Sorted(slices.Values(p.ids)); len(slices.Compact(sorted)) != len(p.ids) {
			list = append(list, name+": an id is there twice")
		}
		for _, l := range p.loads {
			if u, err := url.Parse(l); err != nil || u.IsAbs() || u.Host != "" ||
				s[path.Join(path.Dir(name), u.Path)] == nil {
				list = append(list, name+" loads "+l)
			}
		}
		for _, l := range p.links {
			u, err := url.Parse(l)
			if err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" {
				continue // followed by people only
			}
			links++
			to := path.Join(path.Dir(name), u.Path)
			if u.Path == "" {
				to = name
			}
			if target, found := all[to]; err != nil || u.IsAbs() || !found ||
				u.Fragment != "" && !slices.Contains(target.ids, u.Fragment) {
				list = append(list, name+" leads to "+l)
			}
		}
	}
	return list, links
}

// TestLinks follows every link and anchor of the site, and holds that no page loads anything from another host.
func TestLinks(t *testing.T) {
	t.Parallel()
	list, links := problems(t, ourSite(t))
	for _, p := range list {
		t.Error(p)
	}
	if links < 3000 {
		t.Errorf("only %d links", links)
	}
}

// TestProblemsAreFound shows that TestLinks would see them.
func TestProblemsAreFound(t *testing.T) {
	t.Parallel()
	s, err := manual.New(fstest.MapFS{"docs/README.md": {Data: []byte(
		"# A\n\n## Start\n\n[b](b.md#no) [c](#nowhere)\n")}, "docs/b.md": {Data: []byte("# B\n")}}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	s["b.html"] = []byte(`<meta http-equiv="Content-Security-Policy" content="default-src 'none'"><img src="https://x.example/a.png"><p style="color:red" id=a></p><p id=a></p>`)
	delete(s, "assets/manual.js")
	list, _ := problems(t, s)
	for _, want := range []string{
		"index.html leads to b.html#no", "index.html leads to #nowhere", "b.html loads https://x.example/a.png",
		"b.html loads inline:color:red",
		"b.html: an id is there twice", "index.html loads assets/manual.js",
	} {
		if !slices.Contains(list, want) {
			t.Errorf("not found: %s in %q", want, list)
		}
	}
}

// TestEveryPageIsListed holds that the navigation leads to every English page, and that each page has the version.
func TestEveryPageIsListed(t *testing.T) {
	t.Parallel()
	s := ourSite(t)
	home := parse(t, s["index.html"])
	for _, name := range s.Names() {
		if path.Ext(name) != ".html" {
			continue
		}
		if !bytes.Contains(s[name], []byte("kkbundle "+testVersion+"</title>")) {
			t.Errorf("%s lacks the version", name)
		}
		isTwin := strings.HasPrefix(name, "zh/") || strings.HasSuffix(name, ".zh.html")
		isFile := strings.HasSuffix(name, ".yaml.html") || strings.HasPrefix(name, "format/delta")
		if !isTwin && !isFile && !slices.Contains(home.links, name) {
			t.Errorf("%s is in no chapter of docs/README.md", name)
		}
	}
}

// TestMarkdown holds what is ours about the pages.
func TestMarkdown(t *testing.T) {
	t.Parallel()
	s, err := manual.New(fstest.MapFS{
		"docs/README.md":     {Data: []byte("# Documentation\n\n## Start\n\n[B page](sub/b.md) [code](../main.go)\n")},
		"docs/README.zh.md":  {Data: []byte("# 文档\n\n## 开始\n\n[B](sub/b.zh.md)\n")},
		"docs/sub/b.zh.md":   {Data: []byte("# 乙\n")},
		"docs/sub/a.svg":     {Data: []byte("<svg/>")},
		"docs/sub/site.yaml": {Data: []byte("a: <b>\n")},
		"docs/sub/b.md": {Data: []byte(
			"# `b` & c\n\nnames below:\n`code` and (\n`more`) 一\n二\n\n<!-- not run: x -->\n    kkbundle <a>\n\n## Two: words\n\n## Two: words\n\n<b onclick=x>raw</b> [s](site.yaml) ![p](a.svg) " +
				"[main](../../main.go#x) [home](../README.md)\n\n| message | code |\n|---|---|\n| `no <file>` | 1 |\n")},
	}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	page := string(s["sub/b.html"])
	for _, want := range []string{
		"names below:\n<code>code</code>", "(\n<code>more", "一二", `<h2 id="two-words">`, `<h2 id="two-words-1">`,
		`href="../sub/site.yaml.html"`, `<code>kkbundle &lt;a&gt;</code>`, `<tr id="m`,
		`href="../index.html"`, `src="../sub/a.svg"`, `href="../sub/b.zh.html">中文`, `aria-current="page">B page`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	if n := strings.Count(page, "<tbody>"); n != 1 {
		t.Errorf("a table has %d bodies", n)
	}
	for _, never := range []string{"not run", "onclick", "main.go"} {
		if strings.Contains(page, never) {
			t.Errorf("%s in\n%s", never, page)
		}
	}
	if chinese := string(s["sub/b.zh.html"]); !strings.Contains(chinese, `<html lang="zh">`) ||
		!strings.Contains(chinese, "<p>开始</p>") || !strings.Contains(chinese, ">English<") {
		t.Errorf("the Chinese page is not in the Chinese manual:\n%s", chinese)
	}
	if _, err := manual.New(fstest.MapFS{"docs/README.md": {Data: []byte("# A\n\n![p](https://x.example/a.png)\n")}},
		"v1"); err == nil {
		t.Error("a picture of another host is taken")
	}
	if _, err := manual.New(fstest.MapFS{"docs/x.md": {Data: []byte("# A\n")}}, "v1"); err == nil {
		t.Error("there is a manual without a first page")
	}
}

// TestIndex holds the size of the search's index, and that it is JSON in a call.
func TestIndex(t *testing.T) {
	t.Parallel()
	script := ourSite(t)["assets/index.js"]
	var x struct {
		Pages    [][3]string
		Sections [][]any
	}
	text := strings.TrimSuffix(strings.TrimPrefix(string(script), "manualIndex("), ");\n")
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatal(err)
	}
	if len(x.Pages) < 50 || len(x.Sections) < 500 || len(script) > 3<<19 {
		t.Errorf("%d pages, %d sections, %d bytes", len(x.Pages), len(x.Sections), len(script))
	}
	t.Logf("%d pages, %d sections, %d bytes", len(x.Pages), len(x.Sections), len(script))
	huge := fstest.MapFS{"docs/README.md": {Data: []byte("# A\n\n" + strings.Repeat("word ", 1<<19))}}
	if _, err := manual.New(huge, "v1"); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("an index of any size is made: %v", err)
	}
}

// TestWrite writes into a new and into an empty directory, and never over what is there.
func TestWrite(t *testing.T) {
	t.Parallel()
	s := ourSite(t)
	empty, full := filepath.Join(t.TempDir(), "a", "b"), t.TempDir()
	for range 2 {
		if err := s.Write(empty); err != nil {
			t.Fatal(err)
		}
		for _, name := range s.Names() {
			if have, err := os.ReadFile(filepath.Join(empty, name)); err != nil || !bytes.Equal(have, s[name]) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := errors.Join(os.RemoveAll(empty), os.Mkdir(empty, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(full); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("%v", err)
	}
	left, err := os.ReadDir(filepath.Dir(empty))
	if entries, err2 := os.ReadDir(full); errors.Join(err, err2) != nil || len(entries) != 1 || len(left) != 1 {
		t.Errorf("%v %v in %v, %v", err, err2, entries, left)
	}
}

// TestHandler serves pages with their type and policy, and nothing else.
func TestHandler(t *testing.T) {
	t.Parallel()
	h := manual.Handler("/docs/", ours)
	for path, want := range map[string]string{
		"/docs/": "text/html; charset=utf-8", "/docs/start/bundle.html": "text/html; charset=utf-8",
		"/docs/assets/manual.css": "text/css; charset=utf-8",
		"/docs/assets/index.js":   "text/javascript; charset=utf-8", "/docs/nothing": "", "/docs/../etc/passwd": "",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		if want == "" {
			if w.Code != http.StatusNotFound {
				t.Errorf("%s: %d", path, w.Code)
			}
			continue
		}
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != want ||
			!strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		again := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		again.Header.Set("If-None-Match", w.Header().Get("ETag"))
		w = httptest.NewRecorder()
		h.ServeHTTP(w, again)
		if w.Code != http.StatusNotModified {
			t.Errorf("%s: %d for the same again", path, w.Code)
		}
	}
	broken := manual.Handler("/docs/", func() (manual.Site, error) { return nil, fs.ErrInvalid })
	w := httptest.NewRecorder()
	broken.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/docs/", http.NoBody))
	if w.Code != http.StatusInternalServerError {
		t.Errorf("%d", w.Code)
	}
}
