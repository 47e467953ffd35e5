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
	init := []Task{osPackagesTask(c), hostsTask(), clockTask(), swapTask(c), kernelTask(c), routeTask(c), linksTask(c)}
	if c.ImageRegistry.Type.Installed() {
		init = append([]Task{certificatesTask()}, init...)
	}
	if hasOwnCA(c) {
		init = append([]Task{authoritiesTask()}, init...)
	}
	install := slices.Concat(storageHostTasks(c), registryTasks(c), etcdTasks(c), nodeTasks(c), etcdNodeTasks(c), networkTasks(c), dnsSpreadTasks(c), addonTasks(c))
	if isHardened(c) && !isK3s(c) {
		install = append(install, modesTask())
	}
	return []Phase{
		{Name: "pre_hook", Tasks: []Task{hookTask("pre_install")}},
		{Name: "precheck", Tasks: []Task{precheckTask()}},
		{Name: "init", Tasks: init},
		{Name: "install", Tasks: install},
		{Name: verifyPhase, Tasks: k3sVerifies(c, verifyTasks(c))},
		{Name: "post_hook", Tasks: []Task{hookTask("post_install")}},
	}
}

// registryTasks make the place where hosts pull from, and fill it.
func registryTasks(c *manifest.Cluster) []Task {
	var tasks []Task
	switch c.ImageRegistry.Type {
	case manifest.RegistryExisting:
		return []Task{existingRegistryTask()}
	case manifest.RegistryNone:
		return nil
	case manifest.RegistryHarbor:
		tasks = harborTasks(c)
	default:
		tasks = []Task{registryTask(), seedTask()}
	}
	if isPaired(c) {
		tasks = append(tasks, registryAddressTask(), registryHoldersTask())
	}
	return tasks
}

// nodeTasks make nodes of a cluster out of hosts.
func nodeTasks(c *manifest.Cluster) []Task {
	if isK3s(c) {
		return k3sTasks(c)
	}
	return slices.Concat(
		containerTasks(c),
		toolTasks(c),
		preloadTasks(c),
		etcdToolsTasks(c),
		[]Task{kubeletTask(c), patchesTask()},
		securityTasks(c),
		[]Task{initTask(c), apiTask()},
		endpointTasks(c),
		[]Task{
			joinTask("join-control-plane", OneByOne, manifest.RoleControlPlane),
			joinTask("join-worker", Each, manifest.RoleWorker),
		},
		localEndpointTasks(c),
		[]Task{
			labelTask(),
			adminConfTask(),
			certsTimerTask(c),
			dnsTask(),
		},
	)
}

// containerTasks install the runtime that the cluster asks for.
func containerTasks(c *manifest.Cluster) []Task {
	switch c.CRI.Type {
	case manifest.RuntimeDocker:
		return dockerTasks(c)
	case manifest.RuntimeCRIO:
		return []Task{crioTask(c)}
	}
	return []Task{runtimeTask()}
}

// addonTasks install what runs in the cluster.
func addonTasks(c *manifest.Cluster) []Task {
	var tasks []Task
	if isHardened(c) && !isK3s(c) {
		tasks = append(tasks, encryptTask(), namespacesTask(c))
	}
	tasks = append(tasks, serviceTasks(k3sBrings(c))...)
	for _, a := range c.Addons {
		tasks = append(tasks, addonTask(a))
	}
	return append(tasks, removedTask())
}

func phaseNames(phases []Phase) string {
	var names []string
	for _, p := range phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
