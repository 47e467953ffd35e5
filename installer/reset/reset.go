package reset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
)

// Reset removes the cluster from the hosts and undoes the installation's changes. It works on hosts with a partial
// installation, and can be run again. Images in the registry stay unless WithData is set. Not undone are changes by
// hooks, loaded kernel modules, and packet filter rules that the proxy's container made on a host without the iptables
// command; a reboot removes the last two.
//
// An unreachable or failing host does not keep the others from being reset; the error joins those of all such hosts.
func Reset(ctx context.Context, o engine.Options) error {
	r, err := begin.New(o, engine.Resetting())
	if err != nil {
		return err
	}
	_, err = r.Start(ctx, func(ctx context.Context) error { return reset(ctx, r) })
	return err
}

// reset handles each host independently.
func reset(ctx context.Context, r *engine.Run) error {
	wanted := slices.DeleteFunc(r.Connected(), func(t *task.Host) bool { return !r.IsWanted(t) })
	err := r.OnAll(wanted, func(_ int, t *task.Host) error { return RefuseAdopted(task.InTask(ctx, resetPhase), t) })
	if err != nil {
		return err
	}
	err = begin.InPhase(r, resetPhase, func() error {
		return r.OnAll(wanted, func(_ int, t *task.Host) error { return Host(ctx, r, t) })
	})
	if err != nil || r.DryRun || len(wanted) < len(r.Hosts) {
		return err // a cluster remains, or may remain
	}
	return r.Dir.Remove(task.AdminConfFile)
}

// Host resets one host.
func Host(ctx context.Context, r *engine.Run, t *task.Host) error {
	if err := refuseOthers(task.InTask(ctx, resetPhase), t); err != nil {
		return err
	}
	for _, task := range resetTasks() {
		if err := r.TaskOn(ctx, resetPhase, task, t); err != nil {
			return err
		}
	}
	if r.DryRun {
		return nil
	}
	return begin.Forget(task.InTask(ctx, resetPhase), t)
}

const resetPhase = "reset"

// resetTasks lists the removals in order. Paths that others use, too, are only removed on hosts with stamps.
func resetTasks() []task.Task {
	return []task.Task{
		{Name: "foreign", Done: noForeign, Do: removeForeign},
		{Name: "kubernetes", Done: installed(kubernetesPaths), Do: removeKubernetes},
		{Name: "services", Done: installed(taskPaths), Do: removeTasks},
		{Name: "data", Done: noDataLeft, Do: removeDataLeft},
		{Name: "network", Done: installed(networkPaths), Do: removeNetwork},
		// containerd ends when its CNI directory is removed
		{Name: "runtime", Done: cri.IsContainerdRestored, Do: cri.RestoreContainerd},
		{Name: "registry", Done: noRegistry, Do: removeRegistry},
		{Name: "host", Done: isRestored, Do: restoreHost},
		{Name: "files", Done: noFiles, Do: removeFiles},
		// last: a repeated reset knows by it that a killed one had the right to begin
		{Name: "owner", Done: noOwner, Do: removeOwner},
	}
}

// installed is the Done of removals on hosts with stamps. A dry run looks for the paths and reports those that exist.
func installed(paths func(*task.Site) []string) func(context.Context, *task.Host) (bool, error) {
	return func(ctx context.Context, t *task.Host) (bool, error) {
		done, err := begin.NotInstalled(ctx, t)
		if err == nil && !done && t.Site.DryRun {
			_, err = t.AnyExists(ctx, paths(t.Site)...)
		}
		return done, err
	}
}

func kubernetesPaths(r *task.Site) []string {
	return []string{task.UnitDir + "kubelet.service", "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd"}
}

func networkPaths(r *task.Site) []string {
	links, paths := leftOnEveryNode()
	for i, link := range links {
		links[i] = "/sys/class/net/" + link
	}
	return slices.Concat(links, []string{"/etc/cni", "/var/lib/cni"}, paths)
}

// leftOnEveryNode returns the interfaces and paths of pod networks that are removed whichever one the cluster file
// names.
func leftOnEveryNode() (links, paths []string) {
	for _, n := range network.All().Always() {
		links, paths = append(links, n.Staying()...), append(paths, n.Leaves.Paths...)
	}
	return links, paths
}

// taskPaths returns the units and paths that tasks leave.
func taskPaths(r *task.Site) []string {
	var paths []string
	for _, phase := range plan.Plan(r.Cluster) {
		for _, step := range phase.Tasks {
			for _, unit := range step.Leaves.Units {
				paths = append(paths, task.UnitDir+unit)
			}
			paths = append(paths, step.Leaves.Paths...)
			if r.WithData {
				paths = append(paths, step.Leaves.Data...)
			}
		}
	}
	return paths
}

// removeKubernetes stops the kubelet and the pods and removes the cluster's state from the host, including etcd's.
func removeKubernetes(ctx context.Context, t *task.Host) error {
	if err := k3s.Stop(ctx, t); err != nil {
		return err
	}
	if _, err := t.Test(ctx, "pkill", "--exact", "kubeadm"); err != nil {
		return err
	}
	if err := resetKubeadm(ctx, t); err != nil {
		return err
	}
	if err := t.RemoveUnit(ctx, "kubelet.service"); err != nil {
		return err
	}
	if err := t.Unmount(ctx, "/var/lib/kubelet/"); err != nil {
		return err
	}
	return t.Empty(ctx, "/etc/systemd/system/kubelet.service.d", "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd",
		"/usr/libexec/kubernetes", "/var/log/pods", "/var/log/containers")
}

// resetKubeadm takes kube-vip's address off the host and runs kubeadm reset. kubeadm fails on a host that never got
// far; its removals are repeated by the caller.
func resetKubeadm(ctx context.Context, t *task.Host) error {
	kubeadm, err := t.Test(ctx, "test", "-x", "/usr/local/bin/kubeadm")
	if err != nil {
		return err
	}
	// All members are removed: asking the others to remove this one would wait for removed ones. A node that is being
	// deleted has no member any more.
	member := !t.Site.Scope.Whole() && !t.Site.Scope.Leaving
	vip, err := t.AnyExists(ctx, endpoint.KubeVIPManifest)
	if err != nil {
		return err
	}
	if kubeadm && member && vip { // through the address, which this host may have until it leaves it
		if _, err := t.Test(ctx, "kubeadm", "reset", "phase", "remove-etcd-member"); err != nil {
			return err
		}
		member = false
	}
	if err := endpoint.LeaveVIP(ctx, t); err != nil || !kubeadm {
		return err
	}
	args := []string{"kubeadm", "reset", "--force", "--cri-socket=" + cri.RuntimeOf(t.Site.Cluster).Socket}
	if !member {
		args = append(args, "--skip-phases=remove-etcd-member")
	}
	_, err = t.Test(ctx, args...)
	return err
}

// removeTasks removes the units and paths that tasks leave, the last task's first.
func removeTasks(ctx context.Context, t *task.Host) error {
	phases := plan.Plan(t.Site.Cluster)
	for _, phase := range slices.Backward(phases) {
		for _, task := range slices.Backward(phase.Tasks) {
			if err := removeLeaves(ctx, t, task.Leaves); err != nil {
				return fmt.Errorf("%s: %w", task.Name, err)
			}
		}
	}
	return nil
}

func removeLeaves(ctx context.Context, t *task.Host, l task.Leaves) error {
	if l.Undo != nil {
		if err := l.Undo(ctx, t); err != nil {
			return err
		}
	}
	for _, unit := range l.Units {
		if err := t.RemoveUnit(ctx, unit); err != nil {
			return err
		}
	}
	for _, link := range l.Links {
		if _, err := t.Test(ctx, "ip", "link", "delete", link); err != nil {
			return err
		}
	}
	paths := l.Paths
	if t.Site.WithData {
		paths = slices.Concat(paths, l.Data)
	} else if err := t.RecordData(ctx, l.Data...); err != nil {
		return err
	}
	var spared []string
	if l.Spares != nil {
		var err error
		if spared, err = l.Spares(ctx, t); err != nil {
			return err
		}
	}
	for _, p := range paths {
		if slices.Contains(spared, p) {
			continue
		}
		if err := t.Remove(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// removeNetwork removes the pod network's interfaces, namespaces and configuration, and Kubernetes' filter rules.
func removeNetwork(ctx context.Context, t *task.Host) error {
	links, paths := leftOnEveryNode()
	for _, link := range append(links, "kube-ipvs0") {
		if _, err := t.Test(ctx, "ip", "link", "delete", link); err != nil {
			return err
		}
	}
	spaces, err := t.Output(ctx, "ip", "netns", "list")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(spaces)) {
		if name := strings.Fields(line); len(name) > 0 && strings.HasPrefix(name[0], "cni-") {
			if err := t.Run(ctx, "ip", "netns", "delete", name[0]); err != nil {
				return err
			}
		}
	}
	if err := t.RemoveRules(ctx, machine.IsKubernetes); err != nil {
		return err
	}
	for _, family := range []string{"ip", "ip6"} {
		if _, err := t.Test(ctx, "nft", "delete", "table", family, "kube-proxy"); err != nil {
			return err
		}
	}
	for _, path := range paths {
		if err := t.Remove(ctx, path); err != nil {
			return err
		}
	}
	return t.Empty(ctx, "/etc/cni", "/var/lib/cni")
}

func noRegistry(ctx context.Context, t *task.Host) (bool, error) {
	paths := []string{task.UnitDir + siteregistry.Unit, task.UnitDir + siteregistry.PushUnit}
	if t.Site.WithData {
		paths = append(paths, siteregistry.DataDir)
	}
	there, err := t.AnyExists(ctx, paths...)
	if err == nil && !there && t.Site.WithData { // a killed run may have left only the user
		there, err = hasRegistryAccount(ctx, t)
	}
	return !there, err
}

// removeRegistry removes the service, and its user unless that user's images stay.
func removeRegistry(ctx context.Context, t *task.Host) error {
	for _, unit := range []string{siteregistry.PushUnit, siteregistry.Unit} {
		if err := t.RemoveUnit(ctx, unit); err != nil {
			return err
		}
	}
	if t.Site.WithData {
		if err := t.Empty(ctx, siteregistry.DataDir); err != nil {
			return err
		}
	} else if stays, err := t.Test(ctx, "test", "-e", siteregistry.DataDir); err != nil || stays {
		return err
	}
	if there, err := hasRegistryAccount(ctx, t); err != nil || !there {
		return err
	}
	return t.Run(ctx, "userdel", siteregistry.Account)
}

func hasRegistryAccount(ctx context.Context, t *task.Host) (bool, error) {
	return t.Test(ctx, "getent", "passwd", siteregistry.Account)
}

// isRestored inspects the files: these changes come before the first stamp, and hosts without nodes get no stamps.
func isRestored(ctx context.Context, t *task.Host) (bool, error) {
	left, err := t.AnyExists(ctx, task.UnitDir+machine.RouteUnit, machine.SysctlPath, machine.EarlierSysctlPath,
		machine.ModulesPath, marks.SysctlBefore, marks.SwapMasked)
	if err != nil || left {
		return false, err
	}
	if restored, err := machine.HostsRestored(ctx, t); err != nil || !restored {
		return false, err
	}
	fstab, err := t.Read(ctx, "/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return bytes.Equal(fstab, machine.WithSwap(fstab)), err
}

// restoreHost undoes the changes to the host's own settings.
func restoreHost(ctx context.Context, t *task.Host) error {
	if err := t.RemoveUnit(ctx, machine.RouteUnit); err != nil {
		return err
	}
	if err := restoreParameters(ctx, t); err != nil {
		return err
	}
	if err := machine.RestoreHosts(ctx, t); err != nil {
		return err
	}
	return machine.RestoreSwap(ctx, t)
}

// restoreParameters restores the kernel's parameters. A parameter that the kernel refuses stays.
func restoreParameters(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, "rm", "-f", machine.SysctlPath, machine.EarlierSysctlPath, machine.ModulesPath); err != nil {
		return err
	}
	was, err := t.Read(ctx, marks.SysctlBefore)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	before := task.ParseSysctl(was)
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, err := t.Test(ctx, "sysctl", "--write", key+"="+before[key]); err != nil {
			return err
		}
	}
	return nil
}

// ownFiles returns the files and directories that only an installation creates.
func ownFiles() []string {
	return []string{
		task.ConfigDir, task.ProgramDir, task.EarlierProgramDir, engine.HooksOnHost, marks.Hooks,
		task.BeforeDir, marks.KubeadmConfig, task.ProvisionDir, marks.Received,
	}
}

// sharedFiles returns the files that others may have created on hosts without stamps.
func sharedFiles(r *task.Site) []string {
	var paths []string
	for _, phase := range plan.Plan(r.Cluster) {
		for _, task := range phase.Tasks {
			for _, f := range task.Files {
				paths = append(paths, f.Path)
			}
		}
	}
	return paths
}

func noFiles(ctx context.Context, t *task.Host) (bool, error) {
	left, err := t.AnyExists(ctx, task.StampDir, task.ConfigDir, task.ProgramDir, task.EarlierProgramDir, marks.Hooks,
		task.BeforeDir, marks.ContainerdBefore)
	return !left, err
}

// removeFiles removes the installation's own files. The stamps go last, because they show that there is something to
// remove. Directories that others use, too, stay unless they are empty.
func removeFiles(ctx context.Context, t *task.Host) error {
	nothing, err := begin.NotInstalled(ctx, t)
	if err != nil {
		return err
	}
	paths := ownFiles()
	if !nothing {
		kept, err := cri.KeptPaths(ctx, t)
		if err != nil {
			return err
		}
		if err := removeContainerdPlugins(ctx, t); err != nil {
			return err
		}
		shared := slices.DeleteFunc(sharedFiles(t.Site), func(p string) bool { return slices.Contains(kept, p) })
		paths = slices.Concat(paths, shared, []string{task.StampDir})
	}
	// last: without it, a repeated reset would take other containers for ours
	paths = append(paths, marks.ContainerdBefore)
	if err := t.Run(ctx, append([]string{"rm", "-rf", "--"}, paths...)...); err != nil {
		return err
	}
	if _, err := t.Test(ctx, "rmdir", "/opt/cni/bin", "/opt/cni",
		path.Dir(siteregistry.ComposePlugin), path.Dir(path.Dir(siteregistry.ComposePlugin)),
		"/etc/kubekey", path.Dir(addon.LocalPath)); err != nil {
		return err
	}
	if parents := slices.Concat(cri.RuntimeOf(t.Site.Cluster).Parents, t.Site.Distribution.Parents); len(parents) > 0 {
		if _, err := t.Test(ctx, append([]string{"rmdir"}, parents...)...); err != nil {
			return err
		}
	}
	return t.Systemctl(ctx, "daemon-reload")
}

// removeContainerdPlugins removes the empty directories that containerd makes at each start, unless the host has a
// containerd of its own.
func removeContainerdPlugins(ctx context.Context, t *task.Host) error {
	none, err := cri.IsContainerdRestored(ctx, t)
	if err == nil && none {
		_, err = t.Test(ctx, "rmdir", "/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd")
	}
	return err
}
