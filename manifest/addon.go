package manifest

import (
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// defaultAddonTimeout is the helm command's default.
const defaultAddonTimeout = scalar.Duration(5 * time.Minute)

// Addon is a chart, or YAML, to install into a cluster: addons of a cluster file, and deploy of a manifest.
type Addon struct {
	// Chart is the name of a chart in the bundle.
	Chart string `yaml:"chart,omitempty" doc:"Name of a chart in the bundle. An entry has a chart or manifests."`
	// Manifests are paths of Kubernetes YAML files to apply instead of a chart.
	Manifests []string `yaml:"manifests,omitempty" local:"carried" doc:"Files of Kubernetes YAML that are applied, instead of a chart."`
	Namespace string   `yaml:"namespace,omitempty" doc:"Namespace; created if missing. Default default."`
	// Release is the chart's name by default.
	Release string `yaml:"release,omitempty" doc:"Name of the release; required for manifests. Default the chart's name."`
	// Values are paths of values files, relative to the file that names them; later ones win.
	Values []string `yaml:"values,omitempty" local:"carried" doc:"Values files; later ones win."`
	// Wait requires the entry's pods to be ready before the next entry; ready by default.
	Wait AddonWait `yaml:"wait,omitempty" enum:"ready,none" doc:"ready: its pods must be ready before the next entry begins. Default ready."`
	// Timeout is the limit for that, 5m by default.
	Timeout scalar.Duration `yaml:"timeout,omitempty" doc:"Longest time until its pods are ready. Default 5m."`
	// OnFailure decides about a chart that fails; rollback by default.
	OnFailure FailurePolicy `yaml:"onFailure,omitempty" enum:"rollback,keep" doc:"After a failure of a chart: rollback to the previous release, or keep the failed one for inspection. Default rollback."`
	// Group leaves the entry out where that group of the bundle is off. So does the group of its chart.
	Group string `yaml:"group,omitempty" doc:"Group of the bundle; where it is off, the entry is not installed. A chart's own group counts, too."`
}

func addonsWithDefaults(list []Addon) []Addon {
	list = slices.Clone(list)
	for i := range list {
		a := &list[i]
		a.Namespace = orDefault(a.Namespace, "default")
		a.Release = orDefault(a.Release, a.Chart)
		a.Values, a.Manifests = slices.Clone(a.Values), slices.Clone(a.Manifests)
		a.Wait = orDefault(a.Wait, WaitReady)
		a.Timeout = orDefault(a.Timeout, defaultAddonTimeout)
		if a.Chart != "" {
			a.OnFailure = orDefault(a.OnFailure, FailureRollback)
		}
	}
	return list
}

// Deployments returns the entries of deploy with their defaults.
func (b *Bundle) Deployments() []Addon { return addonsWithDefaults(b.Deploy) }

const maxRelease = 53 // characters of a release name, Helm's own limit

// addons checks the list at a path: addons of a cluster file, or deploy of a manifest.
func (c *checker) addons(at string, list []Addon) {
	first := map[[2]string]int{}
	for i, a := range list {
		path := document.Index(at, i)
		if a.Namespace != "" && !document.IsName(a.Namespace, false) {
			c.Add(document.Join(path, "namespace"), "%q is not a namespace; use lower case letters, digits and hyphens",
				document.Shorten(a.Namespace))
		}
		c.addon(path, a)
		release := orDefault(a.Release, a.Chart)
		if release != "" && (!document.IsName(release, true) || len(release) > maxRelease) {
			c.Add(path, "%q is not a release name; write release with lower case letters, digits and hyphens, at most %d", document.Shorten(release), maxRelease)
		}
		id := [2]string{orDefault(a.Namespace, "default"), release}
		if before, twice := first[id]; twice {
			c.Add(path, "release %s in namespace %s is there twice, first on %s; write another release name",
				document.Shorten(release), document.Shorten(id[0]), c.Place(document.Index(at, before)))
		} else {
			first[id] = i
		}
	}
}

// addon checks that an entry is of exactly one kind, with that kind's settings.
func (c *checker) addon(path string, a Addon) {
	switch {
	case a.Chart == "" && len(a.Manifests) == 0:
		c.Add(path, "chart is missing; write the name of a chart in the bundle, or manifests")
		return
	case a.Chart != "" && len(a.Manifests) > 0:
		c.AddKey(document.Join(path, "manifests"), "has a chart already; write two entries")
		return
	case a.Chart == "" && a.Release == "":
		c.Add(path, "release is missing; manifests have no name of their own")
	}
	for _, one := range []struct {
		name string
		set  bool
	}{{"values", len(a.Values) > 0}, {"onFailure", a.OnFailure != ""}} {
		if a.Chart == "" && one.set {
			c.AddKey(document.Join(path, one.name), "belongs to a chart; leave it out")
		}
	}
	if a.Timeout != 0 && a.Wait == WaitNone {
		c.AddKey(document.Join(path, "timeout"), "belongs to wait: ready; leave it out")
	}
}
