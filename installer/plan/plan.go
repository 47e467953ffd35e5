package plan

import (
	"context"
	"slices"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/authority"
	"github.com/kkbundle/kkbundle/installer/clusterapi"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// PrecheckTask stops the run if a check fails.
func PrecheckTask() task.Task {
	return task.Task{
		Name:     "precheck",
		Where:    task.Here,
		InDryRun: true,
		Do:       func(ctx context.Context, t *task.Host) error { return t.Site.Precheck(ctx) },
	}
}

// LastPhase is the phase of the operator's last scripts.
const LastPhase = "post_hook"

// Plan returns all tasks of an installation of the cluster, in order. CheckInstall reports whether they can run.
func Plan(c *manifest.Cluster) []task.Phase {
	c = c.WithDefaults()
	init := []task.Task{
		machine.PackagesTask(c), machine.LabelsTask(), machine.HostsTask(), machine.ClockTask(),
		machine.SwapTask(c), machine.KernelTask(c), machine.RouteTask(c),
		machine.LinksTask(c, network.All().Primary(c).Links()),
	}
	if c.ImageRegistry.Type.Installed() {
		init = append([]task.Task{siteregistry.CertificatesTask()}, init...)
	}
	if authority.HasOwnCA(c) {
		init = append([]task.Task{authority.CheckTask()}, init...)
	}
	d := Distribution(c)
	install := slices.Concat(addon.StorageHostTasks(c), RegistryTasks(c), etcd.Tasks(c), d.Nodes(c), etcd.NodeTasks(c),
		leafTimerTasks(c), addon.NetworkTasks(c), d.DNS(c), addonTasks(c))
	return []task.Phase{
		{Name: "pre_hook", Tasks: []task.Task{engine.HookTask("pre_install")}},
		{Name: "precheck", Tasks: []task.Task{PrecheckTask()}},
		{Name: "init", Tasks: init},
		{Name: "install", Tasks: install},
		{Name: task.VerifyPhase, Tasks: d.Verifies(VerifyTasks(c))},
		{Name: LastPhase, Tasks: []task.Task{engine.HookTask("post_install")}},
	}
}

// RegistryTasks install the site's registry and fill it.
func RegistryTasks(c *manifest.Cluster) []task.Task {
	r := siteregistry.Of(c)
	if r.Tasks == nil {
		return nil
	}
	tasks := r.Tasks(c)
	if task.HasRegistryVIP(c) {
		tasks = append(tasks, siteregistry.AddressTask(), siteregistry.AnswersTask())
	}
	return tasks
}

// ContainerTasks install the cluster's container runtime.
func ContainerTasks(c *manifest.Cluster) []task.Task {
	return withoutReplaced(c, cri.RuntimeOf(c).Tasks(c))
}

// withoutReplaced leaves the CNI plugins to the pod network that replaces them.
func withoutReplaced(c *manifest.Cluster, tasks []task.Task) []task.Task {
	replaced := network.All().Primary(c).ReplacedPlugins(c)
	for i := range tasks {
		// The task's own steps have the list that it was made with.
		tasks[i].Files = slices.DeleteFunc(slices.Clone(tasks[i].Files), func(p task.Place) bool {
			return slices.Contains(replaced, p.Path)
		})
	}
	return tasks
}

// addonTasks install the cluster's own services and its addons.
func addonTasks(c *manifest.Cluster) []task.Task {
	d := Distribution(c)
	tasks, last := d.Hardening(c)
	tasks = append(tasks, addon.ServiceTasks(d.Services(c))...)
	for _, a := range c.Addons {
		tasks = append(tasks, addon.Task(a))
	}
	return slices.Concat(tasks, []task.Task{removedTask()}, clusterapi.Tasks(c), last)
}

// VerifyTasks prove that the cluster works, and leave nothing behind. Fewer apply without kkbundle's pod network.
func VerifyTasks(c *manifest.Cluster) []task.Task {
	tasks := []task.Task{health.WaitTask(health.CheckNodes, task.NodeReadyTimeout, health.NodesAreReady)}
	images := health.LeadTask("verify-images", func(ctx context.Context, t *task.Host) error {
		return health.ImagesAreBundled(ctx, t, siteregistry.ReducedIndexes)
	})
	proofs := append([]task.Task{kubeadm.JoinProofTask(), images}, kubeadm.SecurityChecks()...)
	if c.CNI.Type.Installed() {
		tasks = append(tasks, health.WaitTask(health.CheckPods, health.PodsWait, health.PodsAreReady))
		dns := task.Task{
			Name:  "verify-dns",
			Roles: []manifest.Role{manifest.RoleCluster},
			Do: func(ctx context.Context, t *task.Host) error {
				return task.Eventually(ctx, health.DNSWait,
					func(ctx context.Context) error { return health.DNSAnswers(ctx, t) })
			},
		}
		proofs = append([]task.Task{
			dns, health.LeadTask("verify-outside-names", health.OutsideNames),
			health.NetworkTask(), health.VolumesTask(),
		}, proofs...)
	}
	if task.HasRegistryVIP(c) {
		proofs = append(proofs, health.VerifyRegistryTask())
	}
	tasks = append(tasks, health.LeadTask("verify-cluster", health.SurveyTask))
	for _, one := range proofs {
		tasks = append(tasks, health.AsFindings(one))
	}
	return append(tasks, task.Task{
		Name: "verify-result", Where: task.Here,
		Do: func(_ context.Context, t *task.Host) error {
			if list := t.Site.Findings(); !list.Healthy() {
				return &health.UnhealthyError{Findings: list}
			}
			return nil
		},
	})
}
