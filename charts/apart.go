package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/kkbundle/kkbundle/charts/sandbox"
)

// Charts are rendered for a cluster in a sandbox process, as a build renders them: a template can loop or allocate
// without an end. Helm's actions render within the process that calls them, so they are given a chart whose templates
// are the rendered texts.

const (
	renderTask = "render-chart"
	aloneTask  = "render-chart-alone"
	renderTime = time.Minute
)

// MaxRendered is the most bytes of a chart's rendered files, for a build and for a cluster; the largest charts have a
// few MiB.
const MaxRendered = 64 << 20

// Tasks returns the work that this package gives to sandbox processes. Main of a program that installs charts gives
// it to them: see package sandbox.
func Tasks() sandbox.Tasks { return sandbox.Tasks{renderTask: renderWork, aloneTask: aloneWork} }

// A renderRequest is the rendering of the chart whose archive follows.
type renderRequest struct {
	Values       json.RawMessage
	Release      chartutil.ReleaseOptions
	Capabilities *chartutil.Capabilities
}

// renderWork returns the rendered files by name.
func renderWork(w sandbox.Work) (any, error) {
	var r renderRequest
	if err := json.Unmarshal(w.Request, &r); err != nil {
		return nil, err
	}
	values, err := decodeValues(r.Values)
	if err != nil {
		return nil, err
	}
	loaded, err := Load(bytes.NewReader(w.Input))
	if err != nil {
		return nil, err
	}
	c := loaded.helm
	if err := chartutil.ProcessDependenciesWithMerge(c, values); err != nil {
		return nil, fmt.Errorf("dependencies: %w", err)
	}
	all, err := chartutil.ToRenderValuesWithSchemaValidation(c, values, r.Release, r.Capabilities, false)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.RenderWithClientProvider(c, all, asking{w.Ask})
	if err != nil {
		return nil, err
	}
	var total int
	for _, text := range files {
		total += len(text)
	}
	if total > MaxRendered {
		return nil, fmt.Errorf("%w: more than %d bytes rendered", ErrTooLarge, MaxRendered)
	}
	return files, nil
}

// An aloneRequest is the rendering, without a cluster, of the chart whose archive follows.
type aloneRequest struct {
	Values  json.RawMessage
	Options RenderOptions // without values
}

// aloneWork returns a Rendering.
func aloneWork(w sandbox.Work) (any, error) {
	var r aloneRequest
	if err := json.Unmarshal(w.Request, &r); err != nil {
		return nil, err
	}
	values, err := decodeValues(r.Values)
	if err != nil {
		return nil, err
	}
	r.Options.Values = values
	return Render(bytes.NewReader(w.Input), r.Options)
}

// RenderApart is Render in a sandbox process, of a chart whose templates may be anybody's.
func RenderApart(ctx context.Context, c *Chart, o RenderOptions) (*Rendering, error) {
	encoded, err := encodeValues(o.Values)
	if err != nil {
		return nil, err
	}
	o.Values = nil
	r := &Rendering{}
	return r, renderIn(ctx, sandbox.Job{Task: aloneTask, Request: aloneRequest{encoded, o}}, c, r)
}

// renderIn has a sandbox process do a task over a chart.
func renderIn(ctx context.Context, job sandbox.Job, c *Chart, answer any) error {
	var archive bytes.Buffer
	if err := c.Archive(&archive); err != nil {
		return err
	}
	job.Input, job.Size = &archive, int64(archive.Len())
	reply, err := job.Do(ctx, renderTime)
	if errors.Is(err, sandbox.ErrTime) {
		return fmt.Errorf("rendering took longer than %s: a template loops", renderTime)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(reply.Answer, answer)
}

// renderFiles has a sandbox process render a chart. Its lookups are answered by the cluster.
func (s state) renderFiles(ctx context.Context, c *Chart, values map[string]any, how chartutil.ReleaseOptions,
	caps *chartutil.Capabilities,
) (map[string]string, error) {
	config, err := s.cfg.RESTClientGetter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	encoded, err := encodeValues(values)
	if err != nil {
		return nil, err
	}
	lookup := engine.NewLookupFunction(config)
	var files map[string]string
	err = renderIn(ctx, sandbox.Job{
		Task: renderTask, Request: renderRequest{encoded, how, caps},
		Answer: func(_ context.Context, question json.RawMessage) (any, error) {
			var l lookedUp
			if err := json.Unmarshal(question, &l); err != nil {
				return nil, err
			}
			return lookup(l.APIVersion, l.Kind, l.Namespace, l.Name)
		},
	}, c, &files)
	return files, err
}

// rendered returns a chart that Helm renders into files: each of its templates is a text. It has the definitions of c
// and of its subcharts. c has the dependencies that values enable.
func rendered(c *chart.Chart, files map[string]string) *chart.Chart {
	metadata := *c.Metadata
	metadata.Dependencies = nil
	flat := &chart.Chart{Metadata: &metadata}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := strings.ReplaceAll(files[name], "{{", `{{"{{"}}`)
		flat.Templates = append(flat.Templates, &chart.File{
			Name: strings.TrimPrefix(name, c.ChartFullPath()+"/"),
			Data: []byte(text),
		})
	}
	for i, crd := range c.CRDObjects() {
		flat.Files = append(flat.Files, &chart.File{
			Name: fmt.Sprintf("crds/%04d-%s", i, path.Base(crd.Filename)),
			Data: crd.File.Data,
		})
	}
	return flat
}

// encodeValues encodes values as JSON in which a number with a point or an exponent is a float64: Helm prints 1e+06
// for one, and 1000000 for an int64.
func encodeValues(values map[string]any) (json.RawMessage, error) {
	return json.Marshal(withPoints(values))
}

func withPoints(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = withPoints(value)
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, value := range v {
			out = append(out, withPoints(value))
		}
		return out
	case float64:
		return json.Number(strconv.FormatFloat(v, 'e', -1, 64))
	}
	return v
}

// decodeValues decodes the values of encodeValues.
func decodeValues(data []byte) (map[string]any, error) {
	in := json.NewDecoder(bytes.NewReader(data))
	in.UseNumber()
	var values map[string]any
	if err := in.Decode(&values); err != nil {
		return nil, err
	}
	typed, err := withTypes(values)
	if err != nil {
		return nil, err
	}
	values, _ = typed.(map[string]any)
	return values, nil
}

func withTypes(v any) (_ any, err error) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if v[key], err = withTypes(value); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, value := range v {
			if v[i], err = withTypes(value); err != nil {
				return nil, err
			}
		}
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return v.Float64()
		}
		return v.Int64()
	}
	return v, nil
}

// lookedUp is a question of a template to the cluster.
type lookedUp struct{ APIVersion, Kind, Namespace, Name string }

// asking implements engine.ClientProvider: the parent process answers lookups.
type asking struct {
	ask func(question, answer any) error
}

// GetClientFor returns a client for a kind.
func (a asking) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return askingClient{ask: a.ask, about: lookedUp{APIVersion: apiVersion, Kind: kind}}, true, nil
}

// askingClient is a client for a kind, in a namespace. Helm calls no other methods.
type askingClient struct {
	dynamic.NamespaceableResourceInterface

	ask   func(question, answer any) error
	about lookedUp
}

// Namespace returns a client for the namespace.
func (c askingClient) Namespace(name string) dynamic.ResourceInterface {
	c.about.Namespace = name
	return c
}

// Get returns an object.
func (c askingClient) Get(_ context.Context, name string, _ metav1.GetOptions,
	_ ...string,
) (*unstructured.Unstructured, error) {
	c.about.Name = name
	object, err := c.content()
	return &unstructured.Unstructured{Object: object}, err
}

// List returns all objects.
func (c askingClient) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	content, err := c.content()
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetUnstructuredContent(content)
	return list, nil
}

func (c askingClient) content() (map[string]any, error) {
	var data json.RawMessage
	if err := c.ask(c.about, &data); err != nil {
		return nil, err
	}
	var content map[string]any
	if err := utiljson.Unmarshal(data, &content); err != nil {
		return nil, err
	}
	if len(content) == 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, c.about.Name)
	}
	return content, nil
}
