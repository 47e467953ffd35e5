package installer

import (
	"fmt"

	"github.com/kkbundle/kkbundle/manifest"
)

// ChartUses returns how an install of the cluster uses charts, so that a build can render them the same way. Paths of
// values are relative to the cluster file.
func ChartUses(c *manifest.Cluster) ([]manifest.ChartUse, error) {
	var uses []manifest.ChartUse
	for _, need := range Needs(c) {
		if need.Kind != manifest.ItemChart {
			continue
		}
		if need.Name != flannelChart {
			uses = append(uses, plannedUse(need.Name))
			continue
		}
		values, err := flannelValues(c, nil)
		if err != nil {
			return nil, fmt.Errorf("values of %s: %w", need.Name, err)
		}
		uses = append(uses, manifest.ChartUse{Chart: flannelChart, Release: flannelChart, Namespace: flannelNamespace, Set: values})
	}
	for _, a := range c.Addons {
		uses = append(uses, manifest.ChartUse{Chart: a.Chart, Release: a.Release, Namespace: a.Namespace, Values: a.Values})
	}
	return uses, nil
}
