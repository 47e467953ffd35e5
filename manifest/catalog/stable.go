package catalog

import (
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Stable holds the addresses of upstream's newest versions of a component.
type Stable struct {
	Version string // the file's version
	Minor   string // address of a text with the newest version of the same minor release
	Latest  string // address of a text with the newest version of all
}

// StableOf returns the Stable of a component's file, by its name and reference (its URL). It returns false if the
// catalog has none.
func StableOf(name, ref string) (Stable, bool, error) {
	k, err := builtin()
	if err != nil {
		return Stable{}, false, err
	}
	one, ok := k.Components[name]
	if !ok || one.File == nil || one.File.Stable == "" {
		return Stable{}, false, nil
	}
	before, _, _ := strings.Cut(one.File.URL[scalar.AllPlatforms], "{version}")
	rest, ok := strings.CutPrefix(ref, before)
	version, _, _ := strings.Cut(rest, "/")
	v, err := semver.NewVersion(version)
	if !ok || err != nil {
		return Stable{}, false, nil //nolint:nilerr // what has no such version is another file of that name
	}
	minor := func(text string) string { return strings.ReplaceAll(one.File.Stable, "{minor}", text) }
	return Stable{
		Version: version,
		Minor:   minor(fmt.Sprintf("-%d.%d", v.Major(), v.Minor())),
		Latest:  minor(""),
	}, true, nil
}
