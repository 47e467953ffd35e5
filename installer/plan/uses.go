package plan

import (
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/manifest"
)

// ChartUses returns the charts of an install with their settings, so that a build can render them the same way. Paths
// of values are relative to the cluster file.
func ChartUses(c *manifest.Cluster) ([]manifest.ChartUse, error) {
	c = c.WithDefaults()
	var uses []manifest.ChartUse
	own := addon.OwnCharts(c)
	for _, need := range Needs(c) {
		if need.Kind != manifest.ItemChart {
			continue
		}
		more, err := own[need.Name].Uses(c)
		if err != nil {
			return nil, err
		}
		uses = append(uses, more...)
	}
	for _, a := range c.Addons {
		if a.Chart != "" {
			uses = append(uses, manifest.ChartUse{
				Chart: a.Chart, Release: a.Release, Namespace: a.Namespace,
				Values: a.Values,
			})
		}
	}
	return uses, nil
}
