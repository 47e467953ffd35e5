package manifest

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Document is one YAML document of a file. A reader of another program's files builds a Document in the shape of ours
// out of its nodes, or of new ones with their lines and columns, so that problems are found and placed as in our files.
type Document struct {
	// File is as in Problem.
	File string
	Root *yaml.Node
}

// ParseDocuments reads the documents of a file, with the same bounds as our files. Empty documents are left out. The
// error is Problems.
func ParseDocuments(file string, data []byte) ([]Document, error) {
	roots, err := document.ParseAll(file, data, document.FileLimits())
	if err != nil {
		return nil, err
	}
	var list []Document
	for _, root := range roots {
		list = append(list, Document{file, root})
	}
	return list, nil
}

// Inventory reads the document as an Inventory. Unlike our files it may contain secrets: password and privateKey (the
// content) under ssh, password under sudo. The error is Problems.
func (d Document) Inventory() (*Inventory, error) {
	return inventoryOf(&document.Tree{File: d.File, Root: d.Root, Foreign: true})
}

// Cluster reads the document as a Cluster, with settings as in ParseCluster. It may contain a secret: password under
// imageRegistry.auth. The error is Problems.
func (d Document) Cluster(settings ...string) (*Cluster, error) {
	return parseCluster(&document.Tree{File: d.File, Root: d.Root, Foreign: true}, settings)
}

// IsForeign reports whether the cluster comes from another program's file, whose bytes may contain secrets.
func (c *Cluster) IsForeign() bool { return c.src != nil && c.src.Foreign }

// Convertible returns the program whose file data is, if package convert can read it, or "".
func Convertible(data []byte) string {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return ""
	}
	return convertible(&document.Tree{Root: doc.Content[0]})
}

// foreign returns an error for a file that package convert can read.
func foreign(src *document.Tree) error {
	if program := convertible(src); program != "" {
		return fmt.Errorf("this is a file of %s; kkbundle convert %s makes files of kkbundle from it", program,
			src.File)
	}
	return nil
}

// convertible returns the program whose file src is, if package convert can read it, or "".
func convertible(src *document.Tree) string {
	text := func(path string) string {
		if v := src.Node(path); v != nil {
			return v.Value
		}
		return ""
	}
	group, _, _ := strings.Cut(text("apiVersion"), "/")
	switch kind := text("kind"); {
	case group == "kubekey.kubesphere.io":
		return "KubeKey"
	case group == "content.hauler.cattle.io":
		return "Hauler"
	case kind == "ZarfPackageConfig", kind == "ZarfInitConfig":
		return "Zarf"
	}
	return ""
}
