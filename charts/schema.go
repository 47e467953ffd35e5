package charts

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
)

// Unchecked returns the paths of the chart and of its subcharts whose values schema was dropped: it refers to another
// file or to a server, or is no schema. Helm follows such references when it checks values, so that a chart could make
// this machine read its files and call addresses. The values of these charts are not checked.
func (c *Chart) Unchecked() []string { return c.unchecked }

// dropSchemas removes the schemas that are not whole by themselves from a chart and its subcharts, and returns the
// charts' paths. The chart's raw files stay.
func dropSchemas(c *chart.Chart) []string {
	var dropped []string
	if len(c.Schema) > 0 && checkSchema(c.Schema) != nil {
		c.Schema = nil
		dropped = append(dropped, c.ChartFullPath())
	}
	for _, sub := range c.Dependencies() {
		dropped = append(dropped, dropSchemas(sub)...)
	}
	return dropped
}

// checkSchema compiles a schema like Helm, under the same name, without loading anything. Every reference is loaded
// by the compiler: a schema that compiles here makes Helm load nothing.
func checkSchema(data []byte) (err error) {
	defer func() {
		if r := recover(); r != nil { // as Helm does: the compiler panics on some malformed schemas
			err = fmt.Errorf("schema: %v", r)
		}
	}()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	const name = "file:///values.schema.json"
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(name, doc); err != nil {
		return err
	}
	_, err = compiler.Compile(name)
	return err
}

var errNotLoaded = errors.New("references to other files and servers are not followed")

// noLoader is a jsonschema.URLLoader that loads nothing.
type noLoader struct{}

// Load returns an error.
func (noLoader) Load(string) (any, error) { return nil, errNotLoaded }
