package plan

import (
	"context"
	"path"
	"slices"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Planner is the plan for runs of it.
func Planner() engine.Planner {
	return engine.Planner{
		Distribution: Distribution, Access: siteregistry.NodeAccess, Files: siteregistry.Files(), Demands: Needed,
		Packages: PackagesOf,
	}
}

// Distribution returns the cluster's distribution.
func Distribution(c *manifest.Cluster) task.Distribution {
	if c.Kubernetes.Distribution == manifest.DistributionK3s {
		return k3sDistribution()
	}
	return kubeadmDistribution()
}

// kubeadmDistribution is Kubernetes as kubeadm sets it up.
func kubeadmDistribution() task.Distribution {
	return task.Distribution{
		Authority:       kube.ClusterCA,
		Kubectl:         []string{"kubectl", "--kubeconfig=" + kube.AdminConf},
		Parents:         []string{"/var/log/kubernetes"},
		Nodes:           kubeadmTasks,
		DNS:             addon.DNSSpreadTasks,
		Hardening:       hardeningTasks,
		Services:        func(c *manifest.Cluster) *manifest.Cluster { return c },
		Verifies:        func(tasks []task.Task) []task.Task { return tasks },
		Refuses:         func(string) error { return nil },
		AdminKubeconfig: func(ctx context.Context, t *task.Host) ([]byte, error) { return t.Read(ctx, kube.AdminConf) },
		QuorumWithout:   etcd.QuorumWithout,
		KeepDown:        func(context.Context, *task.Host) error { return nil },
	}
}

// kubeadmTasks returns the tasks that turn hosts into nodes.
func kubeadmTasks(c *manifest.Cluster) []task.Task {
	return slices.Concat(
		ContainerTasks(c),
		cri.ToolTasks(c),
		cri.PreloadTasks(c),
		etcd.ToolsTasks(c),
		[]task.Task{kubeadm.KubeletTask(c), kubeadm.PatchesTask()},
		kubeadm.SecurityTasks(),
		[]task.Task{kubeadm.InitTask(c), cluster.APITask()},
		endpoint.Tasks(c),
		[]task.Task{
			kubeadm.JoinTask("join-control-plane", task.OneByOne, manifest.RoleControlPlane),
			kubeadm.JoinTask("join-worker", task.Each, manifest.RoleWorker),
		},
		kubeadm.QuotaTasks(c),
		endpoint.LocalEndpointTasks(c),
		[]task.Task{
			cluster.LabelTask(),
			cluster.AdminConfTask(),
			kubeadm.CertsTimerTask(c),
			addon.DNSTask(),
		},
	)
}

// k3sDistribution is k3s: the runtime, the kubelet and the control plane in one program.
func k3sDistribution() task.Distribution {
	return task.Distribution{
		Authority:       k3s.CA,
		Kubectl:         []string{cri.K3sProgram, "kubectl", "--kubeconfig=" + k3s.Kubeconfig},
		OwnImages:       true,
		Parents:         []string{cri.K3sData, path.Dir(cri.K3sData), path.Dir(k3s.Dir)},
		Nodes:           k3sTasks,
		DNS:             func(*manifest.Cluster) []task.Task { return nil }, // k3s runs one pod of CoreDNS
		Hardening:       func(*manifest.Cluster) (before, after []task.Task) { return nil, nil },
		Services:        k3s.Services,
		Verifies:        k3s.Verifies,
		Refuses:         k3s.Refuses,
		AdminKubeconfig: k3s.AdminKubeconfig,
		QuorumWithout:   k3s.QuorumWithout,
		KeepDown:        k3s.KeepDown,
	}
}

// k3sTasks returns the tasks that turn hosts into nodes: servers one by one, because each joins etcd, then agents.
func k3sTasks(c *manifest.Cluster) []task.Task {
	return slices.Concat(
		withoutReplaced(c, []task.Task{
			k3s.Task(c, "k3s-server", task.OneByOne, manifest.RoleControlPlane),
			cluster.APITask(),
			k3s.Task(c, "k3s-agent", task.Each, manifest.RoleWorker),
		}),
		cri.PreloadTasks(c),
		[]task.Task{cluster.LabelTask(), cluster.AdminConfTask()},
	)
}

// hardeningTasks returns the tasks that secure a cluster before its addons are installed, and after.
func hardeningTasks(c *manifest.Cluster) (before, after []task.Task) {
	if !task.IsHardened(c) {
		return []task.Task{kubeadm.EncryptTask()}, nil
	}
	return []task.Task{kubeadm.EncryptTask(), addon.NamespacesTask(c)}, []task.Task{kubeadm.ModesTask()}
}
