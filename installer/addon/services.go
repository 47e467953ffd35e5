package addon

import (
	"errors"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// What every workload of a cluster uses, by the catalog's names.
const (
	NodeDNS        = "node-local-dns"
	metricsServer  = "metrics-server"
	localVolumes   = "localpv-provisioner"
	nfsProvisioner = "nfs-subdir-external-provisioner"
)

// The storage classes that an installation makes, and where the local one's volumes are on nodes.
const (
	localClass = "local"
	nfsClass   = "nfs"
	LocalPath  = "/var/openebs/local"
)

// ServiceTasks install the parts of a cluster that every workload uses.
func ServiceTasks(c *manifest.Cluster) []task.Task {
	var tasks []task.Task
	if c.DNS.NodeLocal {
		tasks = append(tasks, nodeDNSTask())
	}
	own := OwnCharts(c)
	for _, one := range []struct {
		wanted bool
		name   string
	}{{c.Metrics, metricsServer}, {c.Storage.Local, localVolumes}, {c.Storage.NFS, nfsProvisioner}} {
		if one.wanted {
			t := own[one.name].task(one.name)
			if one.name == localVolumes {
				t.Leaves = task.Leaves{Data: []string{LocalPath}}
			}
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// metricsChart asks kubelets without checking their certificates: kubeadm's kubelets sign their own, and nobody could tell one
// from another. What metrics-server reads is not secret, and it sends kubelets a token that is of use for that alone.
func metricsChart() OwnChart {
	return OwnChart{component: metricsServer, values: func(s surroundings) (map[string]any, error) {
		images, err := pick(s.cluster, metricsServer, "metrics-server")
		if err != nil {
			return nil, err
		}
		return map[string]any{"image": images[0].value(), "args": []any{"--kubelet-insecure-tls"}}, nil
	}}
}

// localChart makes volumes in directories of the nodes. The provisioner would report to its makers once a day.
func localChart() OwnChart {
	return OwnChart{component: localVolumes, privileged: true, values: func(s surroundings) (map[string]any, error) {
		images, err := pick(s.cluster, localVolumes, "provisioner-localpv", "linux-utils")
		if err != nil {
			return nil, err
		}
		named := func(i imageName) map[string]any { // the chart joins registry and repository as they are
			return map[string]any{"registry": i.registry + "/", "repository": i.repository, "tag": i.tag}
		}
		return map[string]any{
			"localpv":   map[string]any{"image": named(images[0]), "basePath": LocalPath},
			"helperPod": map[string]any{"image": named(images[1])},
			"hostpathClass": map[string]any{
				"name": localClass, "enabled": true, "isDefaultClass": isDefault(s.cluster, localClass), "basePath": LocalPath,
			},
			"analytics": map[string]any{"enabled": false},
		}, nil
	}}
}

// nfsChart makes volumes in directories of the NFS server.
func nfsChart() OwnChart {
	return OwnChart{component: nfsProvisioner, privileged: true, values: func(s surroundings) (map[string]any, error) {
		images, err := pick(s.cluster, nfsProvisioner, nfsProvisioner)
		if err != nil {
			return nil, err
		}
		export := map[string]any{"path": s.cluster.Storage.NFSPath, "server": "nfs"}
		switch {
		case len(s.nfs) > 0:
			export["server"] = s.nfs[0].IP.String()
		case len(s.nodes) > 0:
			return nil, errors.New("no host is in groups.nfs of the inventory, and storage.nfs needs one that serves NFS")
		}
		return map[string]any{
			"image": images[0].value(),
			"nfs":   export,
			"storageClass": map[string]any{
				"name": nfsClass, "defaultClass": isDefault(s.cluster, nfsClass), "accessModes": "ReadWriteMany",
			},
		}, nil
	}}
}

// isDefault tells whether a storage class is the one for claims that name none: there is one such class at most. Volumes on
// nodes come first, because they are faster and need no other host.
func isDefault(c *manifest.Cluster, class string) bool {
	switch class {
	case localClass:
		return c.Storage.Local
	case nfsClass:
		return c.Storage.NFS && !c.Storage.Local
	}
	return false
}
