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

// preloadTask puts the images of each host's roles into its runtime, where there is no registry.
func preloadTask() Task {
	return Task{Name: "preload-images", Roles: []manifest.Role{manifest.RoleCluster}}
}

// registryAddressTask lets two registry hosts share an address.
func registryAddressTask() Task {
	return Task{Name: "registry-address", Roles: []manifest.Role{manifest.RoleRegistry}, Packages: []string{"keepalived"}}
}

// etcdTasks install etcd beside the cluster.
func etcdTasks(c *manifest.Cluster) []Task {
	if c.Etcd.Type != "external" {
		return nil
	}
	// etcd-vX.Y.Z-linux-ARCH/ is the directory of the archive; its name has the version and is left out.
	return []Task{{
		Name:  "etcd",
		Roles: []manifest.Role{manifest.RoleEtcd},
		Files: []Place{
			{"etcd", "etcd", "/usr/local/bin/etcd", executable},
			{"etcd", "etcdctl", "/usr/local/bin/etcdctl", executable},
			{"etcd", "etcdutl", "/usr/local/bin/etcdutl", executable},
		},
	}}
}

func dockerFiles() []Place {
	var files []Place
	for _, name := range []string{"docker", "dockerd", "docker-init", "docker-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		files = append(files, Place{"docker", "docker/" + name, "/usr/local/bin/" + name, executable})
	}
	return files
}

// dockerTask installs Docker, and what the kubelet talks to it through.
func dockerTask() Task {
	return Task{
		Name:     "docker",
		Roles:    []manifest.Role{manifest.RoleCluster},
		Files:    append(append(dockerFiles(), Place{"cri-dockerd", "cri-dockerd/cri-dockerd", "/usr/local/bin/cri-dockerd", executable}), pluginFiles()...),
		Images:   []string{"pause"},
		Packages: []string{"iptables"},
	}
}

// crioTask installs CRI-O, whose archive has the runtimes and CNI plugins that it is tested with.
func crioTask() Task {
	var files []Place
	for _, name := range []string{"conmon", "conmonrs", "crio", "crun", "pinns", "runc"} {
		files = append(files, Place{"crio", "cri-o/bin/" + name, "/usr/local/bin/" + name, executable})
	}
	return Task{Name: "crio", Roles: []manifest.Role{manifest.RoleCluster}, Files: append(files, pluginFiles()...), Images: []string{"pause"}}
}

// k3sTask installs k3s on the hosts of a role; the archive of images is read by k3s itself.
func k3sTask(name string, role manifest.Role) Task {
	return Task{
		Name:  name,
		Roles: []manifest.Role{role},
		Files: []Place{
			{"k3s", "", "/usr/local/bin/k3s", executable},
			{"k3s-images", "", "/var/lib/rancher/k3s/agent/images/k3s-airgap-images.tar.zst", 0o644},
		},
		Packages: nodePackages(),
	}
}

// endpointTasks give the API server an address that outlives a control plane.
func endpointTasks(c *manifest.Cluster) []Task {
	switch c.ControlPlaneEndpoint.Type {
	case "kube-vip":
		return []Task{{Name: "kube-vip", Roles: []manifest.Role{manifest.RoleControlPlane}, Images: []string{"kube-vip"}}}
	case "haproxy":
		return []Task{{Name: "haproxy", Roles: []manifest.Role{manifest.RoleWorker}, Images: []string{"haproxy"}}}
	}
	return nil
}
