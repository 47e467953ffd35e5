package installer

import (
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// Plan returns everything that an installation of the cluster does, in order. Where CheckInstall refuses the cluster, tasks
// of it are planned: they only say what they need.
func Plan(c *manifest.Cluster) []Phase {
	c = c.WithDefaults()
	init := []Task{osPackagesTask(c), hostsTask(), swapTask(c), kernelTask(c), routeTask(c)}
	if c.ImageRegistry.Type != "existing" {
		init = append([]Task{certificatesTask()}, init...)
	}
	install := slices.Concat(storageHostTasks(c), registryTasks(c), etcdTasks(c), nodeTasks(c), networkTasks(c), addonTasks(c))
	if c.Kubernetes.Distribution == "kubernetes" {
		install = append(install, verifyTasks(c)...)
	}
	return []Phase{
		{Name: "pre_hook", Tasks: []Task{hookTask("pre_install")}},
		{Name: "precheck", Tasks: []Task{precheckTask()}},
		{Name: "init", Tasks: init},
		{Name: "install", Tasks: install},
		{Name: "post_hook", Tasks: []Task{hookTask("post_install")}},
	}
}

// registryTasks make the place where hosts pull from, and fill it.
func registryTasks(c *manifest.Cluster) []Task {
	var tasks []Task
	switch c.ImageRegistry.Type {
	case "existing":
		return []Task{existingRegistryTask()}
	case "none":
		return []Task{preloadTask()}
	case "harbor":
		tasks = []Task{harborTask(), seedTask()}
	default:
		tasks = []Task{registryTask(), seedTask()}
	}
	if c.ImageRegistry.VIP != "" {
		tasks = append(tasks, registryAddressTask())
	}
	return tasks
}

// nodeTasks make nodes of a cluster out of hosts.
func nodeTasks(c *manifest.Cluster) []Task {
	if c.Kubernetes.Distribution == "k3s" {
		return append(endpointTasks(c), k3sTask("k3s-server", manifest.RoleControlPlane), k3sTask("k3s-agent", manifest.RoleWorker))
	}
	return slices.Concat(
		[]Task{containerTask(c), kubeletTask(c)},
		endpointTasks(c),
		[]Task{
			initTask(c),
			apiTask(),
			joinTask("join-control-plane", OneByOne, manifest.RoleControlPlane),
			joinTask("join-worker", Each, manifest.RoleWorker),
			labelTask(),
			adminConfTask(),
			dnsTask(),
		},
	)
}

// containerTask installs the runtime that the cluster asks for.
func containerTask(c *manifest.Cluster) Task {
	switch c.CRI.Type {
	case "docker":
		return dockerTask()
	case "crio":
		return crioTask()
	}
	return runtimeTask()
}

// addonTasks install what runs in the cluster.
func addonTasks(c *manifest.Cluster) []Task {
	tasks := serviceTasks(c)
	for _, a := range c.Addons {
		tasks = append(tasks, addonTask(a))
	}
	return tasks
}

func phaseNames(phases []Phase) string {
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
