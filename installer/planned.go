package installer

import (
	"github.com/kkbundle/kkbundle/manifest"
)

// What install cannot do yet. Each task here says what it needs, so that a bundle with it can be built, checked and proven
// complete today; Cluster.CheckInstall refuses what asks for one. Whoever gives a task its Do deletes its row there.

const executable = 0o755

// planned tells whether the task only says what it needs.
func (t Task) planned() bool { return t.Do == nil }

// harborTask installs Harbor with the containers that its installer brings.
func harborTask() Task {
	return Task{
		Name:  "harbor",
		Roles: []manifest.Role{manifest.RoleRegistry},
		Files: append(dockerFiles(),
			Place{"docker-compose", "", "/usr/local/bin/docker-compose", executable},
			Place{"harbor", "", "/opt/harbor/installer.tgz", 0o644},
		),
		Packages: []string{"iptables"},
	}
}

// registryAddressTask lets two registry hosts share an address.
func registryAddressTask() Task {
	return Task{Name: "registry-address", Roles: []manifest.Role{manifest.RoleRegistry}, Packages: []string{"keepalived"}}
}

// storageHostTasks make the hosts ready for storage on the network.
func storageHostTasks(c *manifest.Cluster) []Task {
	if !c.Storage.NFS {
		return nil
	}
	return []Task{
		{Name: "nfs-server", Roles: []manifest.Role{manifest.RoleNFS}, Packages: []string{"nfs-server"}},
		{Name: "nfs-client", Roles: []manifest.Role{manifest.RoleCluster}, Packages: []string{"nfs-client"}},
	}
}

// networkTasks install the pod network. k3s has flannel in itself.
func networkTasks(c *manifest.Cluster) []Task {
	network := func(name string) []Task {
		switch {
		case name == "flannel" && c.Kubernetes.Distribution == "k3s", name == "none", name == "":
			return nil
		case name == "flannel":
			return []Task{flannelTask()}
		case name == "calico":
			t := chartOf("calico")
			t.Files = []Place{{"calicoctl", "", "/usr/local/bin/calicoctl", executable}}
			return []Task{t}
		case name == "cilium":
			t := chartOf("cilium")
			t.Images = append(t.Images, "hubble")
			return []Task{t}
		}
		return []Task{chartOf(name)}
	}
	if c.CNI.Type != "multus" {
		return network(c.CNI.Type)
	}
	return append(network(c.CNI.With), Task{Name: "multus", Roles: []manifest.Role{manifest.RoleCluster}, Images: []string{"multus"}})
}

// serviceTasks install the parts of a cluster that every workload uses.
func serviceTasks(c *manifest.Cluster) []Task {
	var tasks []Task
	if c.DNS.NodeLocal {
		tasks = append(tasks, Task{Name: "node-local-dns", Roles: []manifest.Role{manifest.RoleCluster}, Images: []string{"node-local-dns"}})
	}
	for _, one := range []struct {
		wanted bool
		name   string
	}{{c.Metrics, "metrics-server"}, {c.Storage.Local, "localpv-provisioner"}, {c.Storage.NFS, "nfs-subdir-external-provisioner"}} {
		if one.wanted {
			tasks = append(tasks, chartOf(one.name))
		}
	}
	return tasks
}

// chartOf installs a component's chart, whose images are in the catalog.
func chartOf(name string) Task {
	return Task{Name: name, Roles: []manifest.Role{manifest.RoleControlPlane}, Where: First, Images: []string{name}, Charts: []string{name}}
}

// plannedUse says how the chart of a planned task will be installed, as far as it decides which images there are.
func plannedUse(component string) manifest.ChartUse {
	use := manifest.ChartUse{Chart: component, Release: component, Namespace: "kube-system"}
	if component == "calico" {
		// The operator takes the images of the pods that it makes from this registry.
		use.Chart, use.Namespace = "tigera-operator", "tigera-operator"
		use.Set = map[string]any{"installation": map[string]any{"registry": "quay.io"}}
	}
	return use
}
