package installer

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// NeedsOf returns what a host with these roles needs of a cluster's Needs, sorted: files and images of the tasks for its
// roles, also of those that only the first such host runs, since any can become the first. Images that pods on any node
// may need, of charts and of cluster DNS, are every node's. Charts are no host's: the machine that installs applies them.
func NeedsOf(c *manifest.Cluster, roles []manifest.Role) []manifest.Need {
	const dns = "coredns" // its pods run anywhere, and on every node while the network is proven
	node := slices.Contains(roles, manifest.RoleCluster)
	var needs []manifest.Need
	for _, phase := range Plan(c) {
		for _, task := range phase.Tasks {
			own := slices.ContainsFunc(task.Roles, func(r manifest.Role) bool { return slices.Contains(roles, r) })
			for _, n := range task.Needs() {
				anywhere := n.Kind == manifest.ItemImage && (len(task.Charts) > 0 || n.Name == dns)
				if n.Kind != manifest.ItemChart && (own || node && anywhere) {
					needs = append(needs, n)
				}
			}
		}
	}
	slices.SortFunc(needs, func(a, b manifest.Need) int {
		return strings.Compare(a.Kind+" "+a.Name, b.Kind+" "+b.Name)
	})
	return slices.Compact(needs)
}
