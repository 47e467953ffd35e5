package fetch

import (
	"strings"
	"testing"
)

// TestFeedTags: the tags of a feed of releases are read, and a text in another form has none. The feed is a stand-in in
// GitHub's form.
func TestFeedTags(t *testing.T) {
	t.Parallel()
	entry := func(href string) string {
		return `<entry><id>x</id><link rel="alternate" href="` + href + `"/></entry>`
	}
	const open, end = `<feed xmlns="http://www.w3.org/2005/Atom"><link href="https://github.com/a/b/releases/tag/not-an-entry"/>`, `</feed>`
	for text, want := range map[string]string{
		open + entry("https://github.com/a/b/releases/tag/v1.2.3") + entry(
			"https://github.com/a/b/releases/tag/kustomize%2Fv5") + end: "v1.2.3 kustomize/v5",
		open + entry("https://github.com/a/b/tree/v1") + entry(
			"https://github.com/a/b/releases/tag/%zz") + end: "",
		"<html><body>not found</body></html>": "",
		"":                                    "",
		// cut
		open + entry("https://github.com/a/b/releases/tag/v1"): "",
		`<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>` +
			open + entry("https://github.com/a/b/releases/tag/&b;") + end: "",
	} {
		if got := strings.Join(feedTags([]byte(text)), " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
