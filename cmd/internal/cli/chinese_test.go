package cli_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// stampGrammar is the last line of a Chinese page: the English page beside it, and the sha256 of the text that it was
// made from.
var stampGrammar = regexp.MustCompile(`\n<!-- from ([A-Za-z0-9-]+\.md) sha256:([0-9a-f]{64}) -->\n$`)

// withoutChinese returns the pages of these parts that have no Chinese twin yet: testdata/without-chinese.txt, which
// only gets shorter.
func withoutChinese(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/without-chinese.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// TestChinesePages wants a Chinese twin beside README and each page of Start, Site and Day two, made from its present
// text, with the same commands. A page that lags is read again, and gets the stamp that the error names: no target of
// make does this.
func TestChinesePages(t *testing.T) {
	t.Parallel()
	for _, problem := range chineseProblems(pages(t), withoutChinese(t)) {
		t.Error(problem)
	}
}

// chineseProblems compares the Chinese pages with the English ones.
func chineseProblems(all map[string]string, missing []string) (list []string) {
	for _, page := range slices.Sorted(maps.Keys(all)) {
		twin := strings.TrimSuffix(page, ".md") + ".zh.md"
		chinese, translated := all[twin]
		dir := path.Dir(page)
		if strings.HasSuffix(page, ".zh.md") {
			if _, ok := all[strings.TrimSuffix(page, ".zh.md")+".md"]; !ok {
				list = append(list, page+": the English page is gone")
			}
			continue
		}
		switch {
		case page != "README.md" && dir != "docs/start" && dir != "docs/site" && dir != "docs/day-two":
		case translated && slices.Contains(missing, page):
			list = append(list, page+": it has a Chinese twin: take it off testdata/without-chinese.txt")
		case translated:
			list = append(list, lag(page, all[page], twin, chinese)...)
		case !slices.Contains(missing, page):
			list = append(list, fmt.Sprintf("%s: there is no %s", page, twin))
		}
	}
	return list
}

// generated are tables that make docs writes into pages: the Chinese page links to them.
var generated = regexp.MustCompile(`(?s)<!-- The lab's results: .*?<!-- The end of the table. -->`)

// lag lists the faults of a page's Chinese twin: older than the English text, other commands, no record of its source.
func lag(page, english, twin, chinese string) (list []string) {
	stamp := fmt.Sprintf("<!-- from %s sha256:%x -->", path.Base(page),
		sha256.Sum256([]byte(generated.ReplaceAllString(english, ""))))
	switch m := stampGrammar.FindStringSubmatch(chinese); {
	case m == nil || m[1] != path.Base(page):
		list = append(list, fmt.Sprintf(
			"%s: the last line has to say which English text the page was made from, such as %s", twin, stamp))
	case !strings.HasSuffix(chinese, stamp+"\n"):
		list = append(list, fmt.Sprintf("%s lags behind %s: bring it up to date, then end it with %s", twin, page,
			stamp))
	}
	want, have := commandsOf(page, english), commandsOf(twin, chinese)
	for i := range max(len(want), len(have)) {
		if i >= len(want) || i >= len(have) || want[i] != have[i] {
			return append(list, fmt.Sprintf("%s: command %d differs from that of %s:\n%q\n%q", twin, i+1, page,
				slices.Concat(want[min(i, len(want)):], []string{""})[0],
				slices.Concat(have[min(i, len(have)):], []string{""})[0]))
		}
	}
	return list
}

// commandsOf returns the calls of kkbundle in a page, without their comments.
func commandsOf(page, text string) (list []string) {
	for _, b := range docsBlocks(page, text) {
		for _, line := range b.commandLines() {
			for _, c := range shellCommands(line) {
				list = append(list, strings.Join(c.words, " "))
			}
		}
	}
	return list
}

// TestChinesePagesThatLagAreNamed shows each problem that the comparison finds.
func TestChinesePagesThatLagAreNamed(t *testing.T) {
	t.Parallel()
	const english = "# Push\n\n    kkbundle push a.kkb    # to a registry\n"
	stamp := fmt.Sprintf("\n<!-- from push.md sha256:%x -->\n", sha256.Sum256([]byte(english)))
	for _, c := range []struct {
		chinese string
		missing []string
		want    string // part of the only problem; "" for none
	}{
		{"# 推送\n\n    kkbundle push a.kkb    # 到镜像仓库\n" + stamp, nil, ""},
		{"# 推送\n\n    kkbundle push b.kkb\n" + stamp, nil, "command 1 differs"},
		{"# 推送\n" + stamp, nil, "command 1 differs"},
		{"# 推送\n\n    kkbundle push a.kkb\n", nil, "the last line has to say"},
		{"# 推送\n\n    kkbundle push a.kkb\n" + stamp + "more\n", nil, "the last line has to say"},
		{
			"# 推送\n\n    kkbundle push a.kkb\n" + strings.Replace(stamp, "push.md", "pull.md", 1), nil,
			"the last line has to say",
		},
		{
			"# 推送\n\n    kkbundle push a.kkb\n\n<!-- from push.md sha256:" + strings.Repeat("0", 64) + " -->\n", nil,
			"lags behind docs/site/push.md",
		},
		{"# 推送\n\n    kkbundle push a.kkb\n" + stamp, []string{"docs/site/push.md"}, "take it off testdata"},
		{"", nil, "there is no docs/site/push.zh.md"},
		{"", []string{"docs/site/push.md"}, ""},
	} {
		all := map[string]string{"docs/site/push.md": english, "docs/build/other.md": "# Other\n"}
		if c.chinese != "" {
			all["docs/site/push.zh.md"] = c.chinese
		}
		list := chineseProblems(all, c.missing)
		if c.want == "" && len(list) != 0 || c.want != "" && (len(list) != 1 || !strings.Contains(list[0], c.want)) {
			t.Errorf("%q, want %q: %q", c.chinese, c.want, list)
		}
	}
	table := "# Push\n\n    kkbundle push a.kkb    # to a registry\n<!-- The lab's results: make docs writes this table. -->\n| a |\n<!-- The end of the table. -->"
	if list := lag("docs/site/push.md", table, "docs/site/push.zh.md", "# 推送\n\n    kkbundle push a.kkb\n"+
		stamp); len(list) != 0 {
		t.Errorf("a generated table: %q", list)
	}
	if list := chineseProblems(map[string]string{"docs/site/old.zh.md": "x"}, nil); len(list) != 1 ||
		!strings.Contains(list[0], "English page is gone") {
		t.Errorf("%q", list)
	}
}
