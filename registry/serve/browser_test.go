package serve_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/internal/browsertest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// browserSite is a server with some of everything, and with names that would like to be more than names.
func browserSite(t *testing.T) *site {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Index.Name, b.Index.Version = "site", "1.4.0"
	for i, ref := range []string{
		"docker.io/library/nginx:1.29", "quay.io/cilium/cilium:v1.19.0",
		"registry.k8s.io/kube-apiserver:v1.34.3",
		"registry.k8s.io/a-very-long-path/of-many-words/that-does-not-fit/on-one-line-of-a-telephone/kube-something:v1.34.3-build.20261121",
	} {
		b.Image(ref, bundletest.RandomImage(t, int64(i), 2, 100_000))
	}
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	b.File("https://dl.k8s.io/v1.34.3/bin/linux/amd64/kubelet", "kubelet", nil, []byte("kubelet"))
	b.File("https://deb.example/pool/c/conntrack_1.4_amd64.deb", "conntrack_1.4_amd64.deb", nil, []byte("no package"))
	b.File("https://rpm.example/os/conntrack-1.4.x86_64.rpm", "conntrack-1.4.x86_64.rpm", nil, []byte("no package"))
	for i, name := range hostileNames() {
		b.File("https://hostile.example/"+name, "x", nil, []byte(fmt.Sprint(i)))
	}
	b.File("javascript:window.hacked=1//", "x", nil, []byte("link"))
	return start(t, serve.Options{}, b.Bundle().Path)
}

func hostileNames() []string {
	return []string{
		`<script>window.hacked=1</script>`, `<img src=x onerror=window.hacked=1>`, `"><svg onload=window.hacked=1>`,
		`' onmouseover='window.hacked=1`,
		`</title><script>window.hacked=1</script>`, `{{.Host}}${window.hacked=1}`, `<style>body{display:none}</style>`,
		`<base href="https://evil.example">`,
		"\u202egnp.exe", `<iframe src="javascript:parent.hacked=1"></iframe>`,
	}
}

// TestBrowser holds that the page works in a real browser: it shows what is there, searches while somebody types,
// copies commands, fits a telephone, and takes names for what they are. Nothing on the way is refused by the page's
// policy, and no script fails.
func TestBrowser(t *testing.T) {
	t.Parallel()
	b := browsertest.Open(t)
	s := browserSite(t)
	const visible = `[...document.querySelectorAll("#items .item")].filter(x => x.offsetParent).length`
	typed := func(text string) string {
		return b.Eval(`{const q = document.getElementById("q"); q.value = ` + string(mustJSON(t, text)) +
			`; q.dispatchEvent(new Event("input")); ` + visible + `}`)
	}
	b.Look(1280, 900, "light")
	b.Visit(s.URL + "/")
	if n := b.Eval(visible); n != "20" {
		t.Errorf("%s items are to be seen, want 20", n)
	}
	for text, want := range map[string]string{
		"nginx": "1", "KUBE registry": "2", "sha256:": "20",
		"nothing has this": "0", "<script>": "2", "": "20",
	} {
		if n := typed(text); n != want {
			t.Errorf("%q: %s items, want %s", text, n, want)
		}
	}
	if typed("nginx"); !strings.Contains(b.Eval(`document.getElementById("shown").textContent`), "1 on this page") {
		t.Errorf("it does not say how many there are: %s", b.Eval(`document.getElementById("shown").textContent`))
	}
	b.Shoot("typed")
	label := b.Eval(`{const c = document.querySelector(".item:not([hidden]) .copy"); c.click(); new Promise(r => setTimeout(() => r(c.textContent), 50))}`)
	if label != "Copied" && label != "Selected" {
		t.Errorf("the button says %q", label)
	}
	if label == "Selected" && !strings.HasPrefix(b.Eval("getSelection().toString()"), "docker pull ") {
		t.Errorf("%q is selected", b.Eval("getSelection().toString()"))
	}
	b.Eval(`document.querySelector("form").requestSubmit()`)
	b.Loaded()
	if got := b.Eval("location.search") + " " + b.Eval(visible); got != "?q=nginx 1" {
		t.Errorf("Enter leads to %s", got)
	}
	b.Quiet("the page")
	for _, path := range []string{
		"/", "/?q=hostile",
		"/?q=%22%3E%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E&kind=%22%3E", "/files/", "/files/hostile.example/",
		"/files/deb.example/pool/c/", "/charts/", "/apt/", "/yum/rpm.example/",
	} {
		name := strings.Trim(strings.NewReplacer("/", "_", "?", "_", "%", "").Replace(path), "_")
		b.Visit(s.URL + path)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{360, 1280} {
				b.Look(width, 900, scheme)
				if got := b.Eval("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
					t.Errorf("%s is %s pixels wide in a window of %d", path,
						b.Eval("document.documentElement.scrollWidth"), width)
				}
				b.Shoot(fmt.Sprintf("%.20s-%d-%s", name, width, scheme))
			}
		}
		if text := b.Eval("document.body.textContent"); strings.Contains(text, "\u202e") {
			t.Errorf("%s: a name is shown backwards", path)
		}
		hover := `for (const e of document.querySelectorAll("*")) { e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true})); }`
		if got := b.Eval(hover +
			` [window.hacked, document.scripts.length, document.querySelectorAll("main img, main svg, main style, iframe, base, a[href^='javascript:']").length].join()`); got != ",1,0" {
			t.Errorf("%s: a name is more than a name: %s", path, got)
		}
		b.Quiet(path)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
