package manifest

import "go.yaml.in/yaml/v3"

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
	roots, problems := parseAll(file, data, fileLimits())
	if problems != nil {
		return nil, problems
	}
	var list []Document
	for _, root := range roots {
		if content := root.Content[0]; content.Tag != "!!null" {
			list = append(list, Document{file, content})
		}
	}
	return list, nil
}

// Inventory reads the document as an Inventory. Unlike our files it may contain secrets: password and privateKey (the
// content) under ssh, password under sudo. The error is Problems.
func (d Document) Inventory() (*Inventory, error) {
	return inventoryOf(&source{file: d.File, root: d.Root, foreign: true})
}

// Cluster reads the document as a Cluster, with settings as in ParseCluster. It may contain a secret: password under
// imageRegistry.auth. The error is Problems.
func (d Document) Cluster(settings ...string) (*Cluster, error) {
	return parseCluster(&source{file: d.File, root: d.Root, foreign: true}, settings)
}

// IsForeign reports whether the cluster comes from another program's file, whose bytes may contain secrets.
func (c *Cluster) IsForeign() bool { return c.src != nil && c.src.foreign }
