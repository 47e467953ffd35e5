package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
)

// An itemPattern is one --item: a reference or short name with * and ?, for one kind or all.
type itemPattern struct {
	text, kind string
	glob       *regexp.Regexp
}

// parseItemPattern reads [KIND:]GLOB; * is any text, slashes too.
func parseItemPattern(text string) (itemPattern, error) {
	p := itemPattern{text: text}
	kind, glob, ok := strings.Cut(text, ":")
	if ok && slices.Contains([]string{bundle.KindImage, bundle.KindChart, bundle.KindFile}, kind) {
		p.kind = kind
	} else {
		glob = text
	}
	if glob == "" {
		return p, fmt.Errorf("--item %q is empty", text)
	}
	quoted := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(glob))
	var err error
	p.glob, err = regexp.Compile("^(?:" + quoted + ")$")
	return p, err
}

func (p itemPattern) fits(it bundle.Item) bool {
	return (p.kind == "" || p.kind == it.Kind) && (p.glob.MatchString(it.Ref) || p.glob.MatchString(it.Name))
}

// itemSelection returns a filter for --item. A pattern without a match is an error.
func itemSelection(texts []string, items []bundle.Item) (func(bundle.Item) bool, error) {
	var patterns []itemPattern
	var errs []error
	for _, text := range texts {
		p, err := parseItemPattern(text)
		if err == nil && !slices.ContainsFunc(items, p.fits) {
			err = fmt.Errorf("--item %q matches no item of the bundle: kkbundle inspect lists them", text)
		}
		errs = append(errs, err)
		patterns = append(patterns, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &usage.Error{Err: err}
	}
	return func(it bundle.Item) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p itemPattern) bool { return p.fits(it) })
	}, nil
}

// platformFlags returns --platform in canonical form.
func platformFlags(texts []string) ([]string, error) {
	var out []string
	var errs []error
	for _, text := range texts {
		p, err := manifest.PlatformString(text)
		errs = append(errs, err)
		out = append(out, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usage.Errorf("--platform: %w", err)
	}
	return out, nil
}
