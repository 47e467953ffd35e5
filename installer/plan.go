package installer

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// Plan returns everything that an installation of the cluster does, in order.
func Plan(c *manifest.Cluster) []Phase {
	c = c.WithDefaults()
	init := []Task{hostsTask(), swapTask(c), kernelTask(c), routeTask(c)}
	install := []Task{registryTask(), seedTask()}
	if c.ImageRegistry.Type == "existing" {
		install = []Task{existingRegistryTask()}
	} else {
		init = append([]Task{certificatesTask()}, init...)
	}
	install = append(install,
		runtimeTask(),
		kubeletTask(),
		initTask(),
		apiTask(),
		joinTask("join-control-plane", OneByOne, manifest.RoleControlPlane),
		joinTask("join-worker", Each, manifest.RoleWorker),
		labelTask(),
		adminConfTask(),
		dnsTask(),
	)
	if c.CNI.Type == "flannel" {
		install = append(install, flannelTask())
	}
	for _, a := range c.Addons {
		install = append(install, addonTask(a))
	}
	install = append(install, verifyTasks(c)...)
	return []Phase{
		{Name: "pre_hook", Tasks: []Task{hookTask("pre_install")}},
		{Name: "precheck", Tasks: []Task{precheckTask()}},
		{Name: "init", Tasks: init},
		{Name: "install", Tasks: install},
		{Name: "post_hook", Tasks: []Task{hookTask("post_install")}},
	}
}

// Needs returns what an installation of the cluster needs from a bundle: what its tasks declare, sorted, without
// repeats. The charts of addons are the manifest's business and not among them.
func Needs(c *manifest.Cluster) []manifest.Need {
	var needs []manifest.Need
	for _, phase := range Plan(c) {
		for _, task := range phase.Tasks {
			needs = append(needs, task.Needs()...)
		}
	}
	slices.SortFunc(needs, func(a, b manifest.Need) int {
		return strings.Compare(a.Kind+" "+a.Name, b.Kind+" "+b.Name)
	})
	return slices.Compact(needs)
}

func phaseNames(phases []Phase) string {
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
