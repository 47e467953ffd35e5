package serve

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/plain"
)

//go:embed assets
var assetFiles embed.FS

const (
	pageItems = 200 // items on one page
	mostQuery = 300 // bytes of a search that count; a reference has at most 255 before its tag
	mostWords = 8   // words of a search that count: every word is looked for in every item
)

// pagePolicy allows pages only our own style and script: names in a bundle are always text.
const pagePolicy = "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// A listed item is its description on the page.
type listed struct {
	Kind, Name, Digest string
	SHA256             string // of a file's bytes, "" for other items
	Platforms          []string
	Size               string
	Bundle             string // "" if there is only one
	entry              entry
}

type pageData struct {
	Host    string
	Bundles []pageBundle
	Kinds   []pageKind
	Apt     bool // there are Debian packages
	Yum     bool // there are RPM packages
	Manual  bool // is served at /docs/
	// Fingerprint is that of the authority at /ca.pem, "" without one.
	Fingerprint string
	Query       string
	Kind        string
	Total       int // that match the query
	From        int // number of the first item on the page, from 1
	To          int
	Prev        string
	Next        string
	Items       []pageItem
}

type pageBundle struct{ Name, Version, Digest, Size string }

type pageKind struct {
	Name     string
	Count    int
	Link     string
	Selected bool
}

type pageItem struct {
	listed
	Command string
	Link    string // of the content, or ""
}

// page shows the content to people. It works without a script, which adds search while typing and copy buttons.
func (s *Server) page(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	if r.URL.Path != "/" {
		plainError(w, notFound(codeUnknown, "nothing at this path; / lists the content"))
		return
	}
	all, err := sh.listOf.get(func() ([]listed, error) {
		return s.listItems(context.WithoutCancel(r.Context()),
			sh.books)
	})
	if err == nil {
		data := sh.pageData(r, all)
		data.Manual = s.manual != nil
		if s.authority != nil {
			data.Fingerprint = s.authority().Fingerprint
		}
		err = s.render(w, r, "page", data)
	}
	if err != nil {
		plainError(w, err)
	}
}

// listItems surveys the items of every bundle. Sizes in a bundle with damaged manifests stay unknown.
func (s *Server) listItems(ctx context.Context, books []*book) ([]listed, error) {
	var all []listed
	for _, b := range books {
		contents, err := b.reader.Survey(ctx)
		if err != nil {
			s.log.Error("sizes of items are unknown", "bundle", b.path, "error", err)
		}
		index := b.reader.Index()
		for i := range index.Items {
			it := &index.Items[i]
			l := listed{
				Kind: it.Kind, Name: plain.Line(it.Ref), Digest: string(it.Descriptor.Digest), Size: "?",
				entry: entry{b, it},
			}
			if len(books) > 1 {
				l.Bundle = title(index)
			}
			if err == nil {
				l.Platforms, l.Size = contents[i].Platforms, plain.Size(contents[i].Size)
				if sum := contents[i].File; sum != "" {
					l.SHA256 = sum.Encoded()
				}
			}
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b listed) int {
		if c := kindRank(a.Kind) - kindRank(b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all, nil
}

func title(index bundle.Index) string { return strings.TrimSpace(index.Name + " " + index.Version) }

func kindRank(kind string) int {
	order := []string{
		bundle.KindImage, bundle.KindChart, bundle.KindFile, bundle.KindGit, bundle.KindReferrer, bundle.KindTool,
		bundle.KindManifest, bundle.KindLock,
	}
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}

func (sh *snapshot) pageData(r *http.Request, all []listed) pageData {
	query := r.URL.Query()
	d := pageData{Host: ourAddress(r), Kind: query.Get("kind")}
	d.Query = strings.ToValidUTF8(query.Get("q")[:min(len(query.Get("q")), mostQuery)], "")
	for _, b := range sh.books {
		index := b.reader.Index()
		d.Bundles = append(d.Bundles, pageBundle{
			index.Name, index.Version, string(b.reader.Digest()),
			plain.Size(b.reader.Size()),
		})
	}
	var fitting []listed
	counts := make(map[string]int)
	words := strings.Fields(strings.ToLower(d.Query))
	for _, l := range all {
		text := strings.ToLower(l.Name + " " + l.Digest + " " + l.SHA256 + " " + strings.Join(l.Platforms, " ") + " " +
			l.Bundle)
		if slices.ContainsFunc(words[:min(len(words), mostWords)],
			func(w string) bool { return !strings.Contains(text, w) }) {
			continue
		}
		counts[l.Kind]++
		if d.Kind == "" || d.Kind == l.Kind {
			fitting = append(fitting, l)
		}
	}
	d.Kinds = append(d.Kinds, pageKind{"all", sum(counts), pageLink(d.Query, "", 1), d.Kind == ""})
	for _, l := range all {
		d.Apt = d.Apt || isPackage(l.entry.item, aptSuffix)
		d.Yum = d.Yum || isPackage(l.entry.item, yumSuffix)
		if last := d.Kinds[len(d.Kinds)-1]; last.Name != l.Kind {
			d.Kinds = append(d.Kinds, pageKind{l.Kind, counts[l.Kind], pageLink(d.Query, l.Kind, 1), d.Kind == l.Kind})
		}
	}
	d.Total = len(fitting)
	d.cut(sh, fitting, query.Get("page"))
	return d
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// cut selects one page's items.
func (d *pageData) cut(sh *snapshot, fitting []listed, number string) {
	n, err := strconv.Atoi(number)
	if pages := (len(fitting) + pageItems - 1) / pageItems; err != nil || n < 1 || n > pages {
		n = 1
	}
	from := (n - 1) * pageItems
	to := min(len(fitting), from+pageItems)
	for _, l := range fitting[from:to] {
		it := pageItem{listed: l}
		it.Command, it.Link = d.command(sh, l.entry)
		d.Items = append(d.Items, it)
	}
	if d.From, d.To = from+1, to; len(fitting) == 0 {
		d.From = 0
	}
	if n > 1 {
		d.Prev = pageLink(d.Query, d.Kind, n-1)
	}
	if to < len(fitting) {
		d.Next = pageLink(d.Query, d.Kind, n+1)
	}
}

func pageLink(query, kind string, number int) string {
	v := url.Values{}
	for key, value := range map[string]string{"q": query, "kind": kind} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if number > 1 {
		v.Set("page", strconv.Itoa(number))
	}
	return "/?" + v.Encode()
}

// command returns a command that fetches an item from here, and the path of its content if that can be downloaded
// directly. Names are quoted for pasting into a shell.
func (d *pageData) command(sh *snapshot, e entry) (command, link string) {
	host := d.Host[strings.Index(d.Host, "://")+3:]
	switch e.item.Kind {
	case bundle.KindChart:
		return fmt.Sprintf("helm pull %s --repo %s/charts --version %s", quote(e.item.Name), d.Host,
			quote(e.item.Version)), ""
	case bundle.KindGit:
		return "git clone " + quote(d.Host+gitPath+e.item.Name+gitEnd), ""
	case bundle.KindImage, bundle.KindReferrer:
		ref, ok, err := destination("registry.invalid", *e.item)
		if err != nil || !ok {
			return "", ""
		}
		at := ":" + ref.Identifier()
		if _, digested := ref.(name.Digest); digested || sh.hides(ref, e) {
			at = "@" + string(e.item.Descriptor.Digest)
		}
		full := quote(host + "/" + ref.Context().RepositoryStr() + at)
		if e.item.Kind == bundle.KindReferrer {
			return "oras manifest fetch " + full, ""
		}
		return "docker pull " + full, ""
	}
	file, ok := filePath(e.book.reader.Index(), e.item)
	if !ok {
		return "", ""
	}
	link = escapePath("/files/" + file)
	return "curl -fLO " + quote(d.Host+link), link
}

// hides reports whether another bundle's item has the tag.
func (sh *snapshot) hides(ref name.Reference, e entry) bool {
	repo := sh.names().repositories[ref.Context().RepositoryStr()]
	return repo != nil && repo.tags[ref.Identifier()].item.Descriptor.Digest != e.item.Descriptor.Digest
}

var (
	plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_-]+$`)
	plainHost = regexp.MustCompile(`^[A-Za-z0-9.:_\[\]-]+$`)
)

// quote returns s as one word of a POSIX shell's command line.
func quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ourAddress returns the address that the client used.
func ourAddress(r *http.Request) string {
	scheme, host := "http://", r.Host
	if r.TLS != nil {
		scheme = "https://"
	}
	if !plainHost.MatchString(host) {
		host = "HOST"
	}
	return scheme + host
}

// render answers with a page.
func (s *Server) render(w http.ResponseWriter, r *http.Request, which string, data any) error {
	t, err := s.templates()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, which+".html", data); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	sendBytes(w, r, "text/html; charset=utf-8", b.Bytes())
	return nil
}

func parseTemplates() (*template.Template, error) {
	return template.ParseFS(assetFiles, "assets/*.html")
}

// assets are the pages' style and script.
func (s *Server) assets(w http.ResponseWriter, r *http.Request, _ *snapshot) {
	types := map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
	file := path.Base(r.URL.Path)
	body, err := assetFiles.ReadFile("assets/" + file)
	if err != nil || types[file] == "" {
		plainError(w, notFound(codeUnknown, "nothing at this path"))
		return
	}
	sendBytes(w, r, types[file], body)
}
