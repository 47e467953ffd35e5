package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/clusterapi"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Needed returns the items of the bundle that an installation of the cluster needs, sorted by kind and name, with their
// tasks and roles. The tasks declare them; the charts of addons come from the manifest and are not among them.
//
// Images of pods that may run on any node, of charts and of cluster DNS, are needed by every node.
func Needed(c *manifest.Cluster) []manifest.Demand {
	// coredns' pods run anywhere, and on every node during the network proof; the others run on each node.
	anywhere := append([]string{"coredns", addon.NodeDNS}, clusterapi.Images(c)...)
	for _, n := range network.All().Of(c) {
		anywhere = append(anywhere, n.Images...)
	}
	found := map[manifest.Need]*manifest.Demand{}
	for _, task := range Tasks(c) {
		for _, n := range task.Needs() {
			d := found[n]
			if d == nil {
				d = &manifest.Demand{Need: n}
				found[n] = d
			}
			if !slices.Contains(d.Tasks, task.Name) {
				d.Tasks = append(d.Tasks, task.Name)
			}
			d.Roles = append(d.Roles, task.Roles...)
			if n.Kind == manifest.ItemImage && (len(task.Charts) > 0 || slices.Contains(anywhere, n.Name)) {
				d.Roles = append(d.Roles, manifest.RoleCluster)
			}
		}
	}
	list := make([]manifest.Demand, 0, len(found))
	for _, d := range found {
		d.Roles = distinct(d.Roles)
		list = append(list, *d)
	}
	slices.SortFunc(list, func(a, b manifest.Demand) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return list
}

// distinct sorts roles, without repeats and without roles that are part of another.
func distinct(roles []manifest.Role) []manifest.Role {
	roles = slices.Clone(roles)
	if slices.Contains(roles, manifest.RoleCluster) {
		roles = slices.DeleteFunc(roles,
			func(r manifest.Role) bool { return r == manifest.RoleControlPlane || r == manifest.RoleWorker })
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

// Tasks returns the tasks of all phases, in order.
func Tasks(c *manifest.Cluster) []task.Task {
	var tasks []task.Task
	for _, phase := range Plan(c) {
		tasks = append(tasks, phase.Tasks...)
	}
	return tasks
}

// Needs returns the items of Needed without tasks and roles.
func Needs(c *manifest.Cluster) []manifest.Need {
	var needs []manifest.Need
	for _, d := range Needed(c) {
		needs = append(needs, d.Need)
	}
	return needs
}

// NeedsOf returns the items that a host with these roles needs, sorted: files and images of the tasks for its roles,
// also of tasks that only the first such host runs, since any host can become the first. No host needs charts: the
// machine that installs applies them.
func NeedsOf(c *manifest.Cluster, roles []manifest.Role) []manifest.Need {
	var needs []manifest.Need
	for _, d := range Needed(c) {
		if d.Kind != manifest.ItemChart && hasAny(roles, d.Roles) {
			needs = append(needs, d.Need)
		}
	}
	return needs
}

// hasAny reports whether roles contains one of the wanted.
func hasAny(roles, wanted []manifest.Role) bool {
	return slices.ContainsFunc(wanted, func(w manifest.Role) bool { return slices.Contains(roles, w) })
}

// PackagesOf returns the operating system packages that hosts with these roles need on a distribution, such as
// debian/12, sorted. No roles means all. A distribution that the catalog lacks is an error.
func PackagesOf(c *manifest.Cluster, roles []manifest.Role, distribution string) ([]string, error) {
	var purposes []string
	for _, task := range Tasks(c) {
		if len(roles) == 0 || len(task.Roles) == 0 || hasAny(roles, task.Roles) {
			purposes = append(purposes, task.Packages...)
		}
	}
	return catalog.Packages(c, purposes, distribution)
}
