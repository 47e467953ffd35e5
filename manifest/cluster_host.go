package manifest

import (
	"strings"
	"sync"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// ForHost returns the cluster as configured on one host of an inventory: the cluster settings in the inventory's vars,
// groupVars and the host's own entry override the cluster file, and the command line's settings override both. It
// returns c itself for a host without settings. The error is Problems.
func (c *Cluster) ForHost(inv *Inventory, h Host) (*Cluster, error) {
	if len(h.settings) == 0 || c.file == nil {
		return c, nil
	}
	src := c.file
	for _, one := range h.settings {
		n := inv.src.Node(one.path)
		if n == nil {
			continue
		}
		laid, err := src.Over(n, document.Layer{Name: one.name, File: inv.src.File})
		if err != nil {
			return nil, err
		}
		src = laid
	}
	own, err := parseCluster(src, c.sets)
	if err != nil {
		return nil, err
	}
	own.Catalogs, own.Base = c.Catalogs, c.Base // read from separate files
	return own, nil
}

// ForHosts returns ForHost for many hosts of one inventory, with defaults filled in; equal results are computed once.
// Hosts without settings of their own share one cluster, as do all hosts without an inventory. The function is safe for
// concurrent use.
func (c *Cluster) ForHosts(inv *Inventory) func(Host) (*Cluster, error) {
	type answer struct {
		cluster *Cluster
		err     error
	}
	var mu sync.Mutex
	known := map[string]answer{}
	shared := c.WithDefaults()
	return func(h Host) (*Cluster, error) {
		if inv == nil || len(h.settings) == 0 || c.file == nil {
			return shared, nil
		}
		var paths strings.Builder
		for _, one := range h.settings {
			paths.WriteString(one.path + "\n")
		}
		mu.Lock()
		defer mu.Unlock()
		a, ok := known[paths.String()]
		if !ok {
			if a.cluster, a.err = c.ForHost(inv, h); a.err == nil {
				a.cluster = a.cluster.WithDefaults()
			}
			known[paths.String()] = a
		}
		return a.cluster, a.err
	}
}

// Values lists every setting with a value, defaults included, in the order of the schema.
func (c *Cluster) Values() []document.Value {
	return document.Values(c.src, c.WithDefaults())
}
