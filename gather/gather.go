// Package gather makes manifests of what is there: the images and charts of a registry or of a project of Harbor, and
// the images, Helm releases and objects of a cluster. It only reads. Of Secrets it uses Helm's releases, and counts the
// others.
package gather

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Result is a manifest to edit, with the files that it names.
type Result struct {
	// Bundle has no name, version and platforms.
	Bundle manifest.Bundle
	Files  []File
	Notes  []string // what is not in it, and what to look at before it is built
}

// A File lies beside the manifest.
type File struct {
	Path string // with slashes, below the manifest's directory
	Data []byte
	// Private files may have passwords.
	Private bool
}

// tidy sorts images and charts, and keeps each image once.
func (r *Result) tidy() {
	b := &r.Bundle
	slices.SortFunc(b.Images, func(a, c manifest.Image) int { return strings.Compare(a.Name, c.Name) })
	b.Images = slices.CompactFunc(b.Images, func(a, c manifest.Image) bool { return a.Name == c.Name })
	slices.SortStableFunc(b.Charts, func(a, c manifest.Chart) int {
		return cmp.Or(strings.Compare(a.Repo, c.Repo), strings.Compare(a.Name, c.Name),
			strings.Compare(a.Version, c.Version))
	})
}

// matcher returns a function that reports whether a tag, REPOSITORY:TAG, matches one of the patterns. A pattern without
// a slash is one of the part after the last slash. The error is that of a wrong pattern.
func matcher(patterns []string) (func(repository, tag string) bool, error) {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return nil, &PatternError{p, err}
		}
	}
	return func(repository, tag string) bool {
		if len(patterns) == 0 {
			return true
		}
		whole := repository + ":" + tag
		return slices.ContainsFunc(patterns, func(p string) bool {
			text := whole
			if !strings.Contains(p, "/") {
				text = path.Base(whole)
			}
			ok, _ := path.Match(p, text) // checked above
			return ok
		})
	}, nil
}

// A PatternError is a wrong pattern of tags.
type PatternError struct {
	Pattern string
	err     error
}

// Error names the pattern.
func (e *PatternError) Error() string { return "pattern " + e.Pattern + ": " + e.err.Error() }

// Unwrap returns path.ErrBadPattern.
func (e *PatternError) Unwrap() error { return e.err }
