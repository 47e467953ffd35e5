package manual_test

import (
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRepositoryLinks follows every relative link of the Markdown files of the repository, to the heading where it
// names one.
func TestRepositoryLinks(t *testing.T) {
	t.Parallel()
	checked := 0
	walk(t, filepath.Join("..", "..", ".."), func(path string, d fs.DirEntry) error {
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(withoutCode(string(text)), -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
				continue
			}
			if u.IsAbs() {
				continue
			}
			checked++
			to := path
			if u.Path != "" {
				to = filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path))
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s: there is no such file", path, m[1])
			} else if u.Fragment != "" && !hasHeading(t, to, u.Fragment) {
				t.Errorf("%s: %s: the page has no such heading", path, m[1])
			}
		}
		return nil
	})
	if checked < 100 {
		t.Errorf("%d links", checked)
	}
}

// walk visits the directories and files of a source tree. It leaves out hidden ones at the top, and those that make
// writes.
//
// go test runs a test again if a directory that the test has read has changed, and every git command changes the top.
// Therefore another process lists the top.
func walk(t *testing.T, root string, visit func(file string, d fs.DirEntry) error) {
	t.Helper()
	names, err := exec.CommandContext(t.Context(), "ls", root).Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name == "bin" || name == "dist" {
			continue
		}
		err := filepath.WalkDir(filepath.Join(root, name), func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return visit(file, d)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// withoutCode leaves out fenced blocks.
func withoutCode(text string) string {
	return regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
}

// hasHeading reports whether a page has a heading that GitHub gives this anchor.
func hasHeading(t *testing.T, file, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(withoutCode(string(text)), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		if strings.ReplaceAll(name, " ", "-") == anchor {
			return true
		}
	}
	return false
}
