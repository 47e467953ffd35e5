package manual_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/manual"
	"github.com/kkbundle/kkbundle/internal/browsertest"
)

// A hit is a result of the search.
type hit struct {
	Path, Anchor, Title string
	Message             bool
}

// find asks the page's search.
func find(t *testing.T, b *browsertest.Browser, query string) (hits []hit) {
	t.Helper()
	quoted, err := json.Marshal(query)
	if err != nil {
		t.Fatal(err)
	}
	answer := b.Eval("JSON.stringify(manualFind(" + string(quoted) + "))")
	if err := json.Unmarshal([]byte(answer), &hits); err != nil {
		t.Fatalf("%q: %v: %s", query, err, answer)
	}
	return hits
}

// loadIndex puts the cursor into the search and waits for its index.
func loadIndex(b *browsertest.Browser) {
	b.Eval(`new Promise(r => { const old = manualIndex; manualIndex = d => { old(d); r(); }; document.getElementById("q").focus(); document.getElementById("q").dispatchEvent(new Event("focus")); })`)
}

// printedErrors are errors as commands and tests of commands printed them, and a part of the message that the page has.
func printedErrors() map[string]string {
	return map[string]string{
		"kkbundle: site/manifest.yaml is a YAML file, not a bundle\n  -> name the file that kkbundle build wrote, NAME-VERSION.kkb":                        "is a YAML file, not a bundle",
		"kkbundle: 0.0.0.0:5000 is reachable from other hosts: use --tls-auto, or --tls-cert and --tls-key; --plain-http allows it without TLS, if you tr": "is reachable from other hosts",
		"kkbundle: lock file site/manifest.lock.yaml does not exist: run `kkbundle lock site/manifest.yaml`":                                               "does not exist",
		`invalid argument "4XB" for "--split" flag: "4XB" is not a size: write a whole number and a unit, such as 700MB`:                                   "is not a size",
		"kkbundle: site/manifest.yaml, site/cluster.yaml, site/inventory.yaml: not replaced, because init replaces no file: name another directory":        "init replaces no file",
		"open bundle junk.kkb: damaged bundle: there is no seek table at the end: the file is truncated, or not a bundle (at byte 5 of the file)":          "there is no seek table at the end",
		`kkbundle: site/cluster.yaml:10:12: kubernetes.version: "v1.29.x" is not a version; write v and three numbers, as in v1.36.3`:                      "is not a version",
		"kkbundle: m: the directory is not empty; remove it or name another one":                                                                           "the directory is not empty",
		"kkbundle: --parallel 0: want 1 or more":             "--parallel",
		"kkbundle: name the bundle to write with -o":         "name the bundle to write with -o",
		"kkbundle: name the private key with --key":          "name the private key with --key",
		`--fail-on takes block or warn, not "never"`:         "--fail-on takes",
		`kkbundle: "file:web" matches no item of the bundle`: "matches no item of the bundle",
		"127.0.0.1:1 cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: check its name and port and that it is up; if this network needs a proxy": "cannot be reached",
		"cp1 belongs to a cluster that kkbundle has not made: it has /etc/kubernetes/admin.conf, /var/lib/etcd":                                                      "belongs to a cluster that kkbundle has not made",
		"--decrypt and --encrypt-to exclude each other":           "--decrypt and --encrypt-to exclude each other",
		`n.yaml:5:1: unknown field "imags"; did you mean images?`: "unknown field",
	}
}

// TestBrowser opens the manual in a real browser, from a directory and from a server: nothing is refused by its
// policy, no script fails, pages fit telephones, and the search leads to the right page.
func TestBrowser(t *testing.T) {
	t.Parallel()
	b := browsertest.Open(t)
	dir := filepath.Join(t.TempDir(), "manual")
	if err := ourSite(t).Write(dir); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(manual.Handler("/docs/", ours))
	defer server.Close()
	for _, root := range []string{"file://" + dir + "/index.html", server.URL + "/docs/"} {
		b.Look(1280, 900, "light")
		b.Visit(root)
		loadIndex(b)
		for query, want := range map[string]string{
			"reset": "day-two/reset.html", "exit codes": "reference/exit-codes.html",
			"inventory": "site/inventory.html", "etcd backup": "reference/commands.html",
			"bastion":    "recipes/bastion.html",
			"--htpasswd": "reference/commands.html", "preche": "site/precheck.html",
			"镜像仓库": "site/registry-hosts.zh.html", "encrypted bundles": "build/encryption.html",
		} {
			if hits := find(t, b, query); !slices.ContainsFunc(hits[:min(3, len(hits))],
				func(h hit) bool { return h.Path == want }) {
				t.Errorf("%s: %q leads to %+v, want %s", root, query, hits[:min(3, len(hits))], want)
			}
		}
		for printed, want := range printedErrors() {
			hits := find(t, b, printed)
			if i := slices.IndexFunc(hits,
				func(h hit) bool { return h.Message && strings.Contains(h.Title, want) }); i < 0 || i > 2 {
				t.Errorf("%s: %q is number %d, want %q among the first three of %+v", root, printed, i+1, want,
					hits[:min(4, len(hits))])
			}
		}
		if hits := find(t, b, "xyzzyplugh"); len(hits) > 0 {
			t.Errorf("found for nothing: %v", hits)
		}
		b.Eval(`{const q = document.getElementById("q"); q.value = "upgrade rollback"; q.dispatchEvent(new Event("input")); q.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown"})); q.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));}`)
		b.Loaded()
		if got := b.Eval("location.pathname"); !strings.Contains(got, "upgrade.html") {
			t.Errorf("%s: Enter leads to %s", root, got)
		}
		label := b.Eval(`{const c = document.querySelector(".copy"); c.click(); new Promise(r => setTimeout(() => r(c.textContent), 50))}`)
		if label != "Copied" && label != "Selected" {
			t.Errorf("%s: the button says %q", root, label)
		}
		b.Quiet(root)
	}
	if !testing.Short() {
		shots(t, b, server.URL+"/docs/")
	}
}

// shots looks at pages in windows of all sizes.
func shots(t *testing.T, b *browsertest.Browser, root string) {
	t.Helper()
	for _, name := range []string{
		"index.html", "reference/commands.html", "reference/prechecks.html",
		"site/install.html", "readme.zh.html", "changelog.html", "reference/errors.html", "reference/glossary.html",
		"format/bundle.html", "build/catalog.html",
	} {
		b.Visit(root + name)
		for _, width := range []int{390, 1280, 1680} {
			for _, scheme := range []string{"light", "dark"} {
				b.Look(width, 900, scheme)
				if got := b.Eval("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
					t.Errorf("%s is %s pixels wide in a window of %d", name,
						b.Eval("document.documentElement.scrollWidth"), width)
				}
				b.Shoot(fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(name, "/", "_"), width, scheme))
			}
		}
		b.Paper(794, 1123)
		if got := b.Eval(`[...document.querySelectorAll("header, nav, .copy")].filter(x => x.offsetParent).length`); got != "0" {
			t.Errorf("%s: %s parts that paper does not need are printed", name, got)
		}
		b.Shoot(strings.ReplaceAll(name, "/", "_") + "-print")
		b.Quiet(name)
	}
	b.Look(390, 900, "light")
	b.Visit(root + "reference/errors.html#command-line")
	b.Shoot("errors-table-390")
	b.Visit(root)
	loadIndex(b)
	for _, width := range []int{390, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			b.Look(width, 900, scheme)
			b.Eval(`{const q = document.getElementById("q"); q.value = "registry mirror"; q.dispatchEvent(new Event("input"));}`)
			b.Shoot(fmt.Sprintf("results-%d-%s", width, scheme))
		}
	}
	b.Look(390, 900, "light")
	b.Eval(`document.getElementById("q").value = ""; document.getElementById("q").dispatchEvent(new Event("input")); document.getElementById("menu").click();`)
	b.Shoot("menu-390")
}
