package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// RuntimeClass is a further runtime of the nodes' containerd, which pods select with runtimeClassName.
type RuntimeClass struct {
	// Name is the name of the RuntimeClass and of its handler.
	Name string `yaml:"name" kk:"required" doc:"Name for runtimeClassName of pods, such as nvidia."`
	// Type is the containerd shim's name; empty is DefaultRuntimeType.
	Type string `yaml:"type,omitempty" doc:"containerd's runtime_type, such as io.containerd.kata.v2. Default io.containerd.runc.v2."`
	// Binary is a program on the hosts: the OCI runtime of DefaultRuntimeType, the shim of other types.
	Binary string `yaml:"binary,omitempty" doc:"Path of a program on the hosts: the OCI runtime with io.containerd.runc.v2, the shim with other types. Default runc, or the shim in PATH. kkbundle does not install it."`
	// Options are options of the shim.
	Options map[string]string `yaml:"options,omitempty" doc:"Options of the shim, such as ConfigPath: /etc/kata/configuration.toml. true and false are booleans."`
	// NodeSelector limits pods of the class to nodes with these labels.
	NodeSelector map[string]LabelValue `yaml:"nodeSelector,omitempty" doc:"Labels of the nodes on which pods of this class run. Default every node."`
}

// DefaultRuntimeType is containerd's shim for runc and other OCI runtimes.
const DefaultRuntimeType = "io.containerd.runc.v2"

// runcHandler is the name of containerd's default handler.
const runcHandler = "runc"

var (
	runtimeTypePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)*\.v[0-9]+$`) }) //nolint:gochecknoglobals // compiled once
	optionPattern      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`) })              //nolint:gochecknoglobals // compiled once
)

// runtimeClasses checks names and the values that become parts of containerd's configuration.
func (c clusterChecker) runtimeClasses(at string, list []RuntimeClass) {
	var names []string
	for i, r := range list {
		path := document.Index(at, i)
		switch {
		case !document.IsName(r.Name, false):
			c.Add(document.Join(path, "name"), "%q is not a name; use lower case letters, digits and -",
				document.Shorten(r.Name))
		case r.Name == runcHandler:
			c.Add(document.Join(path, "name"), "runc is the default runtime of all pods; choose another name")
		case slices.Contains(names, r.Name):
			c.Add(document.Join(path, "name"), "%s is there twice", r.Name)
		}
		names = append(names, r.Name)
		if r.Type != "" && !runtimeTypePattern().MatchString(r.Type) {
			c.Add(document.Join(path, "type"), "%q is not a runtime type; write one such as io.containerd.kata.v2",
				document.Shorten(r.Type))
		}
		c.runtimeClass(path, r)
	}
}

func (c clusterChecker) runtimeClass(at string, r RuntimeClass) {
	if r.Binary != "" && (!path.IsAbs(r.Binary) || !isPlainText(r.Binary)) {
		c.Add(document.Join(at, "binary"), "%q: write an absolute path", document.Shorten(r.Binary))
	}
	for _, name := range sortedKeys(r.Options) {
		if !optionPattern().MatchString(name) || !isPlainText(r.Options[name]) {
			c.AddKey(document.Key(document.Join(at, "options"), name),
				"is not an option; write NAME: VALUE with letters, digits and _ in the name, and one line")
		}
	}
	if _, there := r.Options["BinaryName"]; there && r.Binary != "" {
		c.AddKey(document.Key(document.Join(at, "options"), "BinaryName"), "is the same as binary; keep one")
	}
	for _, name := range sortedKeys(r.NodeSelector) {
		if !isQualified(name) {
			c.AddKey(document.Key(document.Join(at, "nodeSelector"), name), "%q is not a label name",
				document.Shorten(name))
		}
	}
}

// isPlainText reports whether s is one line of printable text.
func isPlainText(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
