package manifest

import (
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/include"
	"github.com/kkbundle/kkbundle/manifest/merge"
)

const withoutKey = "without"

// mergeIncluded merges a manifest over the files that it includes, and returns these. The tree keeps the places of all
// files. dir is the directory of the manifest; a manifest without one, nil, includes nothing.
func mergeIncluded(src *document.Tree, dir fs.FS) ([]Input, error) {
	if !isBundle(src) || src.Node(include.Key) == nil && src.Node(withoutKey) == nil {
		return nil, nil
	}
	files, err := include.Read(src, dir, func(t *document.Tree) error {
		if isBundle(t) {
			return nil
		}
		return fmt.Errorf("is no manifest; write apiVersion: %s and kind: %s, or leave it out", APIVersion, KindBundle)
	})
	var trees []*document.Tree
	for _, f := range files {
		trees = append(trees, f.Tree)
	}
	var inputs []Input
	byPlace := func(a, b include.File) int { return a.Place - b.Place }
	for _, f := range slices.SortedFunc(slices.Values(files), byPlace) {
		if f.Digest != "" { // the manifest itself has none
			inputs = append(inputs, Input{Path: f.Name, Digest: f.Digest})
		}
	}
	if err != nil {
		return inputs, err
	}
	root, err := merge.Files(trees, func(i int, root *yaml.Node) { moveLocal(root, path.Dir(files[i].Name)) },
		merge.Keys{Without: fieldNames(reflect.TypeFor[Without]())})
	if err == nil {
		src.Root = root
	}
	return inputs, err
}

// moveLocal makes the paths in an included file, which are relative to its directory, relative to the manifest. One
// that begins with a value's name may be absolute, or empty, and stays as it is.
func moveLocal(root *yaml.Node, dir string) {
	if dir == "." {
		return
	}
	document.EachLocalNode(root, reflect.TypeFor[Bundle](), func(_ document.Locality, n *yaml.Node) {
		switch {
		case n.Value == "", path.IsAbs(n.Value), strings.HasPrefix(n.Value, "${"):
		case strings.Contains(n.Value, "${"): // path.Join would take a name for a directory
			n.Value = dir + "/" + n.Value
		default:
			n.Value, n.Tag = path.Join(dir, n.Value), "!!str"
		}
	})
}
