package manifest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Names of files are what packages of distributions have, and one plain path element that no shell expands.
func TestFileNames(t *testing.T) {
	const text = "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: 1.0.0}\nplatforms: [linux/amd64]\nfiles: [{name: %q, url: 'https://h/a'}]\n"
	for name, ok := range map[string]bool{
		"containerd.io_2.2.1-1~ubuntu.24.04~noble_amd64.deb": true,
		"libfoo-1.0~rc1-2.el9.x86_64.rpm":                    true,
		"a~":                                                 true,
		"~":                                                  false,
		"~root":                                              false,
		"~/.ssh":                                             false,
		"a~/b":                                               false,
		"..~":                                                false,
		"a~\\b":                                              false,
		"a b":                                                false,
		"a~" + strings.Repeat("b", 127):                      false,
	} {
		_, err := ParseBundle("b", fmt.Appendf(nil, text, name))
		if (err == nil) != ok || !ok && !strings.Contains(err.Error(), "is not a file name; use ") {
			t.Errorf("%q: %v", name, err)
		}
		if ok && (filepath.Base(name) != name || !filepath.IsLocal(name)) {
			t.Errorf("%q is no plain path element", name)
		}
	}
	// Versions become tags, which cannot have it.
	if _, err := ParseBundle("b", []byte(strings.Replace(fmt.Sprintf(text, "a"), "1.0.0", "1.0~rc1", 1))); err == nil ||
		!strings.Contains(err.Error(), "is not a version") {
		t.Errorf("a version with ~: %v", err)
	}
}
