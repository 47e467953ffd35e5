package manual_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/errors.md anew; review the change")

// An area is a chapter of the page. A package belongs to the first area with the longest prefix of its directory.
type area struct {
	title string
	dirs  []string
	usual string // exit code of a message without a type of its own
	whole bool   // also messages without a remedy
}

func areas() []area {
	return []area{
		{"Command line", []string{"cmd/internal/usage"}, "64", true},
		{"Manifest, cluster file, inventory, lock, catalog", []string{"manifest", "cmd/internal/site"}, "10", true},
		{"Files of other tools", []string{"convert", "manifest/kubekey", "installer/provision"}, "10", true},
		{"Build: items, charts, completeness", []string{"builder", "proof", "discover"}, "10, 18 or 21", true},
		{"Build: downloads", []string{"fetch", "charts"}, "14", true},
		{"Git repositories: fetch, serve and push", []string{"git"}, "14 or 15", true},
		{"Build: operating system packages", []string{"fetch/packages"}, "14", false},
		{"Bundles and their parts", []string{"bundle", "internal/disk", "internal/capped"}, "11 or 1", true},
		{
			"Signatures and encryption",
			[]string{"proof/trust", "proof/encryption", "internal/pki"},
			"20, 24 or 1",
			false,
		},
		{"Push and registries", []string{"registry"}, "15", true},
		{"Registries of kkbundle", []string{
			"registry/service", "registry/embedded", "registry/worker",
			"registry/dirlock", "registry/serve", "registry/htpasswd", "registry/httpd", "registry/mirror",
		}, "1", true},
		{"Connections to hosts", []string{"installer/host"}, "13", true},
		{"Precheck", []string{"installer/precheck"}, "12", true},
		{"Install, upgrade, nodes, reset", []string{"installer"}, "16", true},
		{"The helper on hosts", []string{"installer/node"}, "16", false},
		{"Health", []string{"installer/health", "installer/diagnose"}, "23", true},
		{"Other commands", []string{"cmd", "internal"}, "1", true},
	}
}

// areaOf returns the number of a message's area.
func areaOf(list []area, m message) int {
	if m.code == 64 {
		return 0
	}
	best, length := len(list)-1, 0
	for i, a := range list {
		for _, d := range a.dirs {
			if (m.dir == d || strings.HasPrefix(m.dir, d+"/")) && len(d) > length {
				best, length = i, len(d)
			}
		}
	}
	return best
}

// verbs begin a remedy inside a message.
const verbs = `run|use|name|write|give|take|add|remove|check|wait|copy|build|install|correct|choose|set|put|leave|ask|want|bring|start|stop|change|delete|keep|select|make|` +
	`repeat|try|log|allow|raise|enable|disable|mount|free|read|update|upgrade|download|let|see|turn|move|rename|replace|restore|reset|shorten|split|create|sign|call|lower|` +
	`point|drop|connect|declare|spell|mark|open|restart|load|recreate|specify|reinstall|renew|unpack|decrypt|encrypt|chmod|publish|say|do not|did you mean`

var remedyInside = regexp.MustCompile(`^(.+?)[:;] ((?:either |first |then |please |only |or |and )?(?:` + verbs +
	`)\b.*)$`)

const (
	fewestWords         = 2 // of a message with a remedy
	fewestWithoutRemedy = 4 // of others: fewer only introduce another error
)

// An entry is a row of the page.
type entry struct {
	message
	area int
	code string
}

// entries returns the rows: sorted, each text once in its area.
func entries(list []area, messages []message) []entry {
	var rows []entry
	seen := map[string]bool{}
	for _, m := range messages {
		m.text, m.remedy = oneLine(m.text), oneLine(m.remedy)
		words := constantWords(m.text)
		introduces := strings.HasSuffix(m.text, ": <error>")
		m.text = strings.TrimSuffix(m.text, ": <error>")
		if m.remedy == "" || constantWords(m.remedy) == 0 {
			m.remedy = ""
			if split := remedyInside.FindStringSubmatch(m.text); split != nil && constantWords(split[1]) > 0 {
				m.text, m.remedy = split[1], split[2]
			}
		}
		e := entry{message: m, area: areaOf(list, m)}
		fewest := fewestWithoutRemedy
		// errors of arguments and of files that the reader wrote
		if list[e.area].usual == "64" || list[e.area].usual == "10" {
			fewest = fewestWords
		}
		listed := words >= fewestWords && m.remedy != "" || words >= fewest && list[e.area].whole && !introduces
		key := fmt.Sprint(e.area, named.ReplaceAllString(m.text, "<>"), m.remedy)
		if !listed || seen[key] || strings.HasPrefix(m.text, "want ") && m.remedy == "" {
			continue
		}
		seen[key] = true
		if e.code = "usually " + list[e.area].usual; m.code > 0 {
			e.code = fmt.Sprint(m.code)
		}
		rows = append(rows, e)
	}
	slices.SortFunc(rows, func(a, b entry) int {
		return cmp.Or(a.area-b.area, strings.Compare(sortKey(a.text), sortKey(b.text)), strings.Compare(a.text, b.text),
			strings.Compare(a.remedy, b.remedy))
	})
	return rows
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// sortKey is a message from its first constant word on.
func sortKey(text string) string {
	key := named.ReplaceAllString(text, " ")
	return strings.ToLower(strings.TrimLeft(key, " :,;.()/-`\"'"))
}

func errorsPage(list []area, rows []entry) string {
	var b strings.Builder
	b.WriteString(`# Error messages

Generated by ` + "`make docs`" + ` from the source. Paste a message into the search of [the manual](../README.md): hosts, files and numbers in it do not matter.

A message is printed as ` + "`kkbundle: …`" + `, its remedy in the same line or in a line ` + "`-> …`" + ` below. Parts that differ are ` + "`<names>`" + ` here. Several
messages can stand one after the other, separated by colons: the first ones name the object, the last one is the cause.

Left out: words that only introduce another message, messages of libraries and other programs, and messages without a remedy of the readers of packages and
signatures and of the helper on hosts, which describe bytes. A text that the program puts together from variables is not seen.

[Exit codes](exit-codes.md): a number stands for the type of the error. "usually" stands for the code of most commands that print the message; a command can end with
another code, because the table of codes looks at the whole chain of errors.
`)
	for i, a := range list {
		first := true
		for _, e := range rows {
			if e.area != i {
				continue
			}
			if first {
				fmt.Fprintf(&b, "\n## %s\n\n| message | remedy | exit code |\n|---|---|---|\n", a.title)
				first = false
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", codeSpan(e.text), inCell(e.remedy), e.code)
		}
	}
	return b.String()
}

func codeSpan(s string) string {
	s = strings.ReplaceAll(s, "|", `\|`)
	if strings.Contains(s, "`") {
		return "`` " + s + " ``"
	}
	return "`" + s + "`"
}

func inCell(s string) string {
	parts := strings.Split(s, "`")
	for i := range parts {
		if parts[i] = strings.ReplaceAll(parts[i], "|", `\|`); i%2 == 0 || len(parts)%2 == 0 {
			parts[i] = strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`, "[", `\[`).Replace(parts[i])
		}
	}
	return strings.Join(parts, "`")
}

// TestErrorsPage holds docs/reference/errors.md.
func TestErrorsPage(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	list := areas()
	rows := entries(list, readSource(t, root).messages())
	if len(rows) < 600 || len(rows) > 2000 {
		t.Errorf("%d messages", len(rows))
	}
	file := filepath.Join(root, "docs", "reference", "errors.md")
	want := errorsPage(list, rows)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != want {
		t.Errorf("%s is not up to date (%v): run make docs", file, err)
	}
}
