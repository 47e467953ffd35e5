package manifest

import (
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// valuesKey is the key of the table in a manifest. It is not expanded itself.
const valuesKey = "values"

// expandBundle resolves the table of a manifest, and expands the rest of it. Without a table the set is nil, and
// nothing is expanded.
func expandBundle(src *document.Tree, data []byte, resolve ResolveFunc) (*values.Set, error) {
	if !isBundle(src) || src.Node(valuesKey) == nil {
		return nil, nil //nolint:nilnil // a manifest without values is the normal case
	}
	var table values.Table
	err := document.DecodeAt(src, formatOf(KindBundle).Limits, valuesKey, &table,
		func(c *document.Checker) { table.Check(c, valuesKey) })
	if err != nil {
		return nil, err
	}
	set, err := resolve(table, src)
	if err != nil {
		return nil, err
	}
	return set, set.Tree(src, data, bundleRule, valuesKey)
}

// isBundle reports whether a file says that it is a manifest. Another file, as of Zarf, may have values of its own.
func isBundle(src *document.Tree) bool {
	version, kind := src.Node("apiVersion"), src.Node("kind")
	return version != nil && kind != nil && version.Value == APIVersion && kind.Value == KindBundle
}

// bundleRule says which values a manifest may have where.
func bundleRule(path string, v values.Value) string {
	switch {
	case v.Secret:
		return secretPlaces
	case !v.IsAt(values.Site):
		return ""
	case !mayVary(path):
		return "is given at the site, and this must be known when the bundle is built; write at: build"
	case v.Made:
		return noExample
	}
	return ""
}

const (
	secretPlaces = "is secret, and this text is shown and recorded; only values files and Kubernetes YAML can have it"
	noExample    = "is given at the site, and this is checked when the bundle is built, too; write an example or a default for it"
)

// mayVary reports whether the site may decide a setting of a manifest: how something is deployed, and not which files
// and images the bundle has.
func mayVary(path string) bool {
	rest, ok := strings.CutPrefix(path, "deploy[")
	_, key, _ := strings.Cut(rest, "].")
	switch key {
	case "namespace", "release", "wait", "timeout", "onFailure":
		return ok
	}
	return false
}

// clusterRule says which values a cluster file may have.
func clusterRule(_ string, v values.Value) string {
	switch {
	case v.Secret:
		return secretPlaces
	case v.Made:
		return noExample
	}
	return ""
}

// ParseClusterWith is ParseCluster of a file with values of a manifest; nil expands nothing.
func ParseClusterWith(set *values.Set, file string, data []byte, settings ...string) (*Cluster, error) {
	src, err := document.Parse(file, data, document.FileLimits())
	if err != nil {
		return nil, err
	}
	if err := set.Tree(src, data, clusterRule); err != nil {
		return nil, err
	}
	return parseCluster(src, settings)
}

// ExpandForeign returns the text of another program's cluster file with values of a manifest.
func ExpandForeign(set *values.Set, file string, data []byte) ([]byte, error) {
	return set.WholeYAML(file, data, clusterRule)
}

// LockedValue is a value that was given to lock or build.
type LockedValue struct {
	Name  string          `yaml:"name" kk:"required" doc:"Name of the value."`
	Value document.Scalar `yaml:"value" doc:"The value, as text."`
	// Default means that nobody gave it.
	Default bool `yaml:"default,omitempty" doc:"The value is the default of the manifest."`
}

// LockedValues returns the values of the build that a lock records.
func LockedValues(set *values.Set) []LockedValue {
	var list []LockedValue
	for _, v := range set.List() {
		if v.IsAt(values.Build) {
			list = append(list, LockedValue{v.Name, document.Scalar(v.Text), v.Layer == values.FromDefault})
		}
	}
	return list
}

// Given returns the values of the lock: those that somebody gave, which count again when the manifest is read; with
// defaults, all that the bundle was built with.
func (l *Lock) Given(defaults bool) []values.Given {
	var list []values.Given
	for _, v := range l.Values {
		if defaults || !v.Default {
			list = append(list, values.Given{Name: v.Name, Text: string(v.Value), Layer: values.FromLock})
		}
	}
	return list
}

// changedValues describes the values that differ from those of a manifest.
func (l *Lock) changedValues(b *Bundle) []string {
	now := map[string]string{}
	for _, v := range LockedValues(b.Set) {
		now[v.Name] = string(v.Value)
	}
	var changed []string
	for _, v := range l.Values {
		text, ok := now[v.Name]
		if ok && text == string(v.Value) {
			delete(now, v.Name)
			continue
		}
		if ok {
			changed = append(changed, "value "+v.Name+" (was "+document.Shorten(string(v.Value))+", is "+
				document.Shorten(text)+")")
			delete(now, v.Name)
		} else {
			changed = append(changed, "value "+v.Name+" (no longer defined)")
		}
	}
	for _, v := range LockedValues(b.Set) {
		if _, missing := now[v.Name]; missing {
			changed = append(changed, "value "+v.Name+" (new)")
		}
	}
	return changed
}
