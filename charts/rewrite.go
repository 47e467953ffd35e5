package charts

import (
	"bytes"
	"fmt"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// A Rewrite changes a chart's rendered objects before they reach the cluster. Helm's record of the release has the
// changed objects, so that a rollback with the helm command keeps them.
type Rewrite struct {
	// YAML returns the changed text of a stream of objects.
	YAML func(text []byte) ([]byte, error)
	// Mark identifies the change. A release made with another mark is upgraded.
	Mark string
}

// Run implements Helm's postrender.PostRenderer, which Helm calls for all objects except hooks.
func (r *Rewrite) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	text, err := r.YAML(rendered.Bytes())
	if err != nil {
		return nil, err
	}
	return bytes.NewBuffer(text), nil
}

// hookDriver stores releases, and rewrites their hooks before it. Helm runs the hooks of a release after it has stored
// the release, and from the same object.
type hookDriver struct {
	driver.Driver
	rewrite *Rewrite
}

// Create stores a new revision.
func (d hookDriver) Create(key string, r *release.Release) error {
	for _, h := range r.Hooks {
		text, err := d.rewrite.YAML([]byte(h.Manifest))
		if err != nil {
			return fmt.Errorf("hook %s: %w", h.Name, err)
		}
		h.Manifest = string(text)
	}
	return d.Driver.Create(key, r)
}

// chartDriver stores releases with the chart that they were rendered from.
type chartDriver struct {
	driver.Driver
	chart *chart.Chart
}

// Create stores a new revision. Later updates of it are of the same object.
func (d chartDriver) Create(key string, r *release.Release) error {
	r.Chart = d.chart
	return d.Driver.Create(key, r)
}
