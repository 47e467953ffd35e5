package installer

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// Plan returns everything that an installation of the cluster does, in order. CheckInstall says whether it
// can be done.
func Plan(c *manifest.Cluster) []Phase {
	c = c.WithDefaults()
	init := []Task{osPackagesTask(c), hostsTask(), clockTask(), swapTask(c), kernelTask(c), routeTask(c), linksTask(c, networkOf(c).patterns)}
	if c.ImageRegistry.Type.Installed() {
		init = append([]Task{certificatesTask()}, init...)
	}
	if hasOwnCA(c) {
		init = append([]Task{authoritiesTask()}, init...)
	}
	d := distributionOf(c)
	install := slices.Concat(storageHostTasks(c), registryTasks(c), etcdTasks(c), d.nodes(c), etcdNodeTasks(c), networkTasks(c), d.dns(c), addonTasks(c))
	return []Phase{
		{Name: "pre_hook", Tasks: []Task{hookTask("pre_install")}},
		{Name: "precheck", Tasks: []Task{precheckTask()}},
		{Name: "init", Tasks: init},
		{Name: "install", Tasks: install},
		{Name: verifyPhase, Tasks: d.verifies(verifyTasks(c))},
		{Name: "post_hook", Tasks: []Task{hookTask("post_install")}},
	}
}

// registryTasks make the place where hosts pull from, and fill it.
func registryTasks(c *manifest.Cluster) []Task {
	r := siteRegistryOf(c)
	if r.tasks == nil {
		return nil
	}
	tasks := r.tasks(c)
	if isPaired(c) {
		tasks = append(tasks, registryAddressTask(), registryHoldersTask())
	}
	return tasks
}

// containerTasks install the runtime that the cluster asks for.
func containerTasks(c *manifest.Cluster) []Task { return runtimeOf(c).tasks(c) }

// addonTasks install what runs in the cluster.
func addonTasks(c *manifest.Cluster) []Task {
	d := distributionOf(c)
	tasks, last := d.hardening(c)
	tasks = append(tasks, serviceTasks(d.services(c))...)
	for _, a := range c.Addons {
		tasks = append(tasks, addonTask(a))
	}
	return slices.Concat(tasks, []Task{removedTask()}, last)
}

func phaseNames(phases []Phase) string {
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
