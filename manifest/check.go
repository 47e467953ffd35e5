package manifest

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// Problem returns an error about the value at a path of the cluster file, with its position, for checks that need more
// than the file. Paths are written as in messages, such as components[runc].
func (c *Cluster) Problem(path, message string) error { return problemAt(c.src, path, message) }

// Problem returns an error about the value at a path of the manifest, like Cluster.Problem.
func (b *Bundle) Problem(path, message string) error { return problemAt(b.src, path, message) }

// Problem returns an error about the value at a path of the inventory, like Cluster.Problem.
func (inv *Inventory) Problem(path, message string) error { return problemAt(inv.src, path, message) }

// ParseCatalog reads a Catalog. The error is Problems.
func ParseCatalog(file string, data []byte) (*catalogfile.Catalog, error) {
	k := &catalogfile.Catalog{}
	return decode(file, data, KindCatalog, k, func(c *checker) { k.Check(c.Words) })
}

// MarshalCatalog returns a catalog as YAML after a header of comments. The same entries give the same bytes.
func MarshalCatalog(k *catalogfile.Catalog, header string) ([]byte, error) {
	out := *k
	out.APIVersion, out.Kind = APIVersion, KindCatalog
	body, err := yaml.Marshal(&out)
	if err != nil {
		return nil, fmt.Errorf("write the catalog: %w", err)
	}
	return append([]byte(header), body...), nil
}

func problemAt(src *document.Tree, path, message string) error {
	c := checkerOf(src)
	c.Add(path, "%s", message)
	return c.Found
}

// checker checks what files of several kinds have. Each kind of file has a checker of its own on top of it.
type checker struct{ *scalar.Words }

// checkerOf returns a checker for what was read from a tree.
func checkerOf(src *document.Tree) *checker {
	return &checker{&scalar.Words{Checker: &document.Checker{Tree: src}}}
}

const (
	// APIVersion is the apiVersion of every file this package reads.
	APIVersion = "kkbundle.io/v1"
	// MaxLockSize is the maximal size of a Lock; 100,000 pins are about 45 MiB.
	MaxLockSize = 64 << 20
)

func formatOf(kind string) document.Format {
	f := document.Format{APIVersion: APIVersion, Kind: kind, Limits: document.FileLimits(), Foreign: foreign}
	if kind == KindLock {
		f.Limits = lockLimits()
	}
	if kind == KindBundle || kind == KindCluster {
		f.Reference = values.ReferencePattern
	}
	return f
}

// lockLimits allows for 20 values in each of 100,000 pins.
func lockLimits() document.Limits { return document.Limits{Size: MaxLockSize, Values: 2_000_000} }

// decode reads a file of one kind into out and makes its checks beyond the types. The error is Problems.
func decode[T any](file string, data []byte, kind string, out *T, check func(*checker)) (*T, error) {
	src, err := document.Parse(file, data, formatOf(kind).Limits)
	if err != nil {
		return nil, err
	}
	return decodeTree(src, kind, out, check)
}

// decodeTree is decode for a parsed file.
func decodeTree[T any](src *document.Tree, kind string, out *T, check func(*checker)) (*T, error) {
	err := document.Decode(src, formatOf(kind), out, func(c *document.Checker) {
		check(&checker{&scalar.Words{Checker: c}})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
