package document_test

import (
	"fmt"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// All problems of a file are reported at once, with their places: those of its shape, and those that a check adds.
func ExampleDecode() {
	var file struct {
		APIVersion string   `yaml:"apiVersion" kk:"required"`
		Kind       string   `yaml:"kind" kk:"required"`
		Color      string   `yaml:"color" enum:"red,green"`
		Legs       []string `yaml:"legs" kk:"required"`
	}
	tree, err := document.Parse("table.yaml", []byte(`apiVersion: example/v1
kind: Table
color: geen
legs: [oak, oak]
legz: [oak]
`), document.FileLimits())
	if err != nil {
		fmt.Println(err)
		return
	}
	table := document.Format{
		APIVersion: "example/v1", Kind: "Table", Limits: document.FileLimits(),
		Foreign: func(*document.Tree) error { return nil },
	}
	err = document.Decode(tree, table, &file, func(c *document.Checker) {
		first := map[string]int{}
		for i, leg := range file.Legs {
			if at, twice := document.Earlier(first, leg, i); twice {
				c.Add(document.Index("legs", i), "%s is there twice, first on %s", leg,
					c.Place(document.Index("legs", at)))
			}
		}
	})
	fmt.Println(err)
	// Output:
	// table.yaml:3:8: color: must be red or green, is "geen"; did you mean green?
	// table.yaml:4:13: legs[1]: oak is there twice, first on line 4
	// table.yaml:5:1: unknown field "legz"; did you mean legs?
}
