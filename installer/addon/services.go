package addon

import (
	"errors"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/peers"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Cluster services, by their names in the catalog.
const (
	NodeDNS        = "node-local-dns"
	metricsServer  = "metrics-server"
	localVolumes   = "localpv-provisioner"
	nfsProvisioner = "nfs-subdir-external-provisioner"
)

// Storage classes, and the local one's directory on nodes.
const (
	localClass = "local"
	nfsClass   = "nfs"
	LocalPath  = "/var/openebs/local"
)

// ServiceTasks installs the cluster's own services.
func ServiceTasks(c *manifest.Cluster) []task.Task {
	var tasks []task.Task
	if len(c.CRI.RuntimeClasses) > 0 {
		tasks = append(tasks, runtimeClassesTask())
	}
	if c.DNS.NodeLocal {
		tasks = append(tasks, nodeDNSTask())
	}
	if c.ImageDistribution.Peers.Used() {
		tasks = append(tasks, peers.LoginTask())
	}
	own := OwnCharts(c)
	for _, one := range []struct {
		wanted bool
		name   string
	}{
		{c.ImageDistribution.Peers.Used(), peers.Spegel},
		{c.Metrics, metricsServer},
		{c.Storage.Local, localVolumes},
		{c.Storage.NFS, nfsProvisioner},
	} {
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

// metricsChart accesses kubelets without verifying their certificates, which kubeadm's kubelets sign themselves.
// metrics-server reads no secrets, and its token is valid for kubelets' metrics only.
func metricsChart() OwnChart {
	return OwnChart{component: metricsServer, values: func(s environment) (map[string]any, error) {
		images, err := catalog.PickImages(s.cluster, metricsServer, "metrics-server")
		if err != nil {
			return nil, err
		}
		return map[string]any{"image": images[0].Value(), "args": []any{"--kubelet-insecure-tls"}}, nil
	}}
}

// spegelChart leaves containerd's configuration to the cri package, and keeps nothing on the hosts. The image is named
// by its tag, as the registry has it: a release's chart has the digest of the index of all platforms.
func spegelChart() OwnChart {
	return OwnChart{component: peers.Spegel, values: func(s environment) (map[string]any, error) {
		images, err := catalog.PickImages(s.cluster, peers.Spegel, peers.Spegel)
		if err != nil {
			return nil, err
		}
		image := images[0].Value()
		image["digest"] = ""
		return map[string]any{
			"image":               image,
			"clusterDomain":       s.cluster.DNS.Domain + ".",
			"basicAuthSecretName": peers.Secret,
			// The pods read their login when they start.
			"podAnnotations": map[string]any{marks.PeersLoginAnnotation: s.peersLogin},
			"updateStrategy": map[string]any{
				"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": "10%"},
			},
			"service": map[string]any{
				"registry": map[string]any{"hostPort": manifest.PeersHostPort, "nodePort": manifest.PeersNodePort},
			},
			"spegel": map[string]any{
				"containerdMirrorAdd": false, "debugWebEnabled": false, "persistence": map[string]any{"enabled": false},
			},
		}, nil
	}}
}

// localChart provides volumes in directories of the nodes. The provisioner's daily report to its makers is off.
func localChart() OwnChart {
	return OwnChart{component: localVolumes, privileged: true, values: func(s environment) (map[string]any, error) {
		images, err := catalog.PickImages(s.cluster, localVolumes, "provisioner-localpv", "linux-utils")
		if err != nil {
			return nil, err
		}
		named := func(i catalog.ImageName) map[string]any { // the chart concatenates registry and repository
			return map[string]any{"registry": i.Registry + "/", "repository": i.Repository, "tag": i.Tag}
		}
		return map[string]any{
			"localpv":   map[string]any{"image": named(images[0]), "basePath": LocalPath},
			"helperPod": map[string]any{"image": named(images[1])},
			"hostpathClass": map[string]any{
				"name": localClass, "enabled": true, "isDefaultClass": isDefault(s.cluster, localClass),
				"basePath": LocalPath,
			},
			"analytics": map[string]any{"enabled": false},
		}, nil
	}}
}

// nfsChart provides volumes in directories of the NFS server.
func nfsChart() OwnChart {
	return OwnChart{component: nfsProvisioner, privileged: true, values: func(s environment) (map[string]any, error) {
		images, err := catalog.PickImages(s.cluster, nfsProvisioner, nfsProvisioner)
		if err != nil {
			return nil, err
		}
		export := map[string]any{"path": s.cluster.Storage.NFSPath, "server": "nfs"}
		switch {
		case len(s.nfs) > 0:
			export["server"] = s.nfs[0].IP.String()
		case len(s.nodes) > 0:
			return nil, errors.New("storage.nfs needs an NFS server: add a host to groups.nfs of the inventory")
		}
		return map[string]any{
			"image": images[0].Value(),
			"nfs":   export,
			"storageClass": map[string]any{
				"name": nfsClass, "defaultClass": isDefault(s.cluster, nfsClass), "accessModes": "ReadWriteMany",
			},
		}, nil
	}}
}

// isDefault reports whether class is the cluster's default storage class. Local volumes take precedence, because they
// are faster and need no other host.
func isDefault(c *manifest.Cluster, class string) bool {
	switch class {
	case localClass:
		return c.Storage.Local
	case nfsClass:
		return c.Storage.NFS && !c.Storage.Local
	}
	return false
}
