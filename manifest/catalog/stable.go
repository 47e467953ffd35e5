package catalog

import (
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// Stable says where upstream names its newest versions of a component.
type Stable struct {
	Version string // the one that the file has
	Minor   string // address of a text that is the newest version of the same minor release
	Latest  string // the same of all
}

// StableOf returns that for a component's file, by its name and reference (its URL). It returns false where the catalog
// knows no such thing.
func StableOf(name, ref string) (Stable, bool, error) {
	k, err := builtin()
	if err != nil {
		return Stable{}, false, err
	}
	one, ok := k.Components[name]
	if !ok || one.File == nil || one.File.Stable == "" {
		return Stable{}, false, nil
	}
	before, _, _ := strings.Cut(one.File.URL[manifest.AllPlatforms], "{version}")
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
