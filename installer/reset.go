package installer

import (
	"bytes"
	"context"
	_ "embed" // scripts
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
)

// Reset takes the cluster off the hosts and puts back what the installation changed. It works on hosts where an
// installation stopped half way, and can be run again. Images in the registry stay unless WithData is set. What it does
// not undo: what hooks did, kernel modules that were loaded, and packet filter rules that the proxy's container made on
// a host without the iptables command; a reboot takes the last two away.
//
// A host that cannot be reached, or where something fails, does not keep the others from being reset; the error joins
// those of all such hosts.
func Reset(ctx context.Context, o Options) error {
	r, err := newRun(o, resetting())
	if err != nil {
		return err
	}
	_, err = r.start(ctx, r.reset)
	return err
}

// reset resets every host for itself: there is nothing that hosts would have to wait for each other with.
func (r *run) reset(ctx context.Context) error {
	begin := r.Now()
	r.tell(Event{Phase: resetPhase, State: Started})
	wanted := slices.DeleteFunc(r.connected(), func(t *Target) bool { return !r.isWanted(t) })
	err := r.onAll(wanted, func(_ int, t *Target) error { return r.resetHost(ctx, t) })
	state := Done
	if err != nil {
		state = Failed
	}
	r.tell(Event{Phase: resetPhase, State: state, Duration: r.Now().Sub(begin)})
	if err != nil || r.DryRun || len(wanted) < len(r.targets) {
		return err // there is, or may be, still a cluster
	}
	return r.dir.remove(adminConfFile)
}

func (r *run) resetHost(ctx context.Context, t *Target) error {
	for _, task := range resetTasks() {
		if err := r.taskOn(ctx, resetPhase, task, t); err != nil {
			return err
		}
	}
	if r.DryRun {
		return nil
	}
	return t.forget(inTask(ctx, resetPhase))
}

const (
	resetPhase = "reset"
	unitDir    = "/etc/systemd/system/"
)

// resetTasks lists what is taken away, in order. What has a name that others use, too, is only touched on hosts where
// an installation has left its stamps.
func resetTasks() []Task {
	return []Task{
		{Name: "foreign", Done: noForeign, Do: removeForeign},
		{Name: "kubernetes", Done: installed((*Site).kubernetesPaths), Do: removeKubernetes},
		{Name: "services", Done: installed((*Site).leavings), Do: removeLeavings},
		{Name: "data", Done: noDataLeft, Do: removeDataLeft},
		{Name: "network", Done: installed((*Site).networkPaths), Do: removeNetwork},
		{Name: "registry", Done: noRegistry, Do: removeRegistry},
		{Name: "host", Done: isRestored, Do: restoreHost},
		{Name: "files", Done: noFiles, Do: removeFiles},
	}
}

// notInstalled tells that no task has left a stamp.
func notInstalled(ctx context.Context, t *Target) (bool, error) {
	there, err := t.test(ctx, "test", "-d", stampDir)
	return !there, err
}

// installed is Done of what is taken away where an installation has left its stamps. A dry run is told which of the paths are
// there.
func installed(paths func(*Site) []string) func(context.Context, *Target) (bool, error) {
	return func(ctx context.Context, t *Target) (bool, error) {
		done, err := notInstalled(ctx, t)
		if err == nil && !done && t.run.DryRun {
			_, err = t.anyOf(ctx, paths(t.run)...)
		}
		return done, err
	}
}

// kubernetesPaths are what removeKubernetes removes before all.
func (r *Site) kubernetesPaths() []string {
	return []string{unitDir + "kubelet.service", "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd"}
}

func (r *Site) networkPaths() []string {
	const links = "/sys/class/net/"
	return []string{links + "cni0", links + "flannel.1", "/etc/cni", "/var/lib/cni", "/run/flannel"}
}

// leavings are the units and paths that tasks say that they leave.
func (r *Site) leavings() []string {
	var paths []string
	for _, phase := range Plan(r.cluster) {
		for _, task := range phase.Tasks {
			for _, unit := range task.Leaves.Units {
				paths = append(paths, unitDir+unit)
			}
			paths = append(paths, task.Leaves.Paths...)
			if r.WithData {
				paths = append(paths, task.Leaves.Data...)
			}
		}
	}
	return paths
}

// removeKubernetes stops the kubelet and the pods and removes the cluster's state from the host, etcd's included.
func removeKubernetes(ctx context.Context, t *Target) error {
	if err := t.stopK3s(ctx); err != nil {
		return err
	}
	if _, err := t.test(ctx, "pkill", "--exact", "kubeadm"); err != nil {
		return err
	}
	kubeadm, err := t.test(ctx, "test", "-x", "/usr/local/bin/kubeadm")
	if err != nil {
		return err
	}
	if kubeadm {
		args := []string{"kubeadm", "reset", "--force", "--cri-socket=" + runtimeOf(t.run.cluster).socket}
		if t.run.scope.Whole() || t.run.scope.Leaving {
			// Every member goes: asking the others to let this one go would wait for those that have gone. A node that is being
			// deleted is a member no more.
			args = append(args, "--skip-phases=remove-etcd-member")
		}
		// It fails on a host where it never got far; what it would have removed is removed below.
		if _, err := t.test(ctx, args...); err != nil {
			return err
		}
	}
	if err := t.removeUnit(ctx, "kubelet.service"); err != nil {
		return err
	}
	if err := t.unmount(ctx, "/var/lib/kubelet/"); err != nil {
		return err
	}
	return t.empty(ctx, "/etc/systemd/system/kubelet.service.d", "/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd",
		"/usr/libexec/kubernetes", "/var/log/pods", "/var/log/containers")
}

// removeLeavings takes away what tasks say that they leave, the last task's first.
func removeLeavings(ctx context.Context, t *Target) error {
	phases := Plan(t.run.cluster)
	for _, phase := range slices.Backward(phases) {
		for _, task := range slices.Backward(phase.Tasks) {
			if err := t.removeLeaves(ctx, task.Leaves); err != nil {
				return fmt.Errorf("%s: %w", task.Name, err)
			}
		}
	}
	return nil
}

func (t *Target) removeLeaves(ctx context.Context, l Leaves) error {
	if l.Undo != nil {
		if err := l.Undo(ctx, t); err != nil {
			return err
		}
	}
	for _, unit := range l.Units {
		if err := t.removeUnit(ctx, unit); err != nil {
			return err
		}
	}
	for _, link := range l.Links {
		if _, err := t.test(ctx, "ip", "link", "delete", link); err != nil {
			return err
		}
	}
	paths := l.Paths
	if t.run.WithData {
		paths = slices.Concat(paths, l.Data)
	} else if err := t.leaveData(ctx, l.Data...); err != nil {
		return err
	}
	for _, p := range paths {
		if err := t.remove(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file, or a directory with all that is in it.
func (t *Target) remove(ctx context.Context, path string) error {
	if dir, err := t.test(ctx, "test", "-d", path); err != nil {
		return err
	} else if dir {
		return t.empty(ctx, path)
	}
	return t.command(ctx, "rm", "-f", "--", path)
}

// removeNetwork removes the pod network's interfaces, namespaces and configuration, and the packet filter rules that
// belong to Kubernetes.
func removeNetwork(ctx context.Context, t *Target) error {
	for _, link := range []string{"cni0", "flannel.1", "flannel-v6.1", "kube-ipvs0"} {
		if _, err := t.test(ctx, "ip", "link", "delete", link); err != nil {
			return err
		}
	}
	spaces, err := t.output(ctx, "ip", "netns", "list")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(spaces)) {
		if name := strings.Fields(line); len(name) > 0 && strings.HasPrefix(name[0], "cni-") {
			if err := t.command(ctx, "ip", "netns", "delete", name[0]); err != nil {
				return err
			}
		}
	}
	if err := t.removeRules(ctx, isKubernetes); err != nil {
		return err
	}
	for _, family := range []string{"ip", "ip6"} {
		if _, err := t.test(ctx, "nft", "delete", "table", family, "kube-proxy"); err != nil {
			return err
		}
	}
	// flannel's pod puts its plugin beside the others.
	if err := t.command(ctx, "rm", "-f", "/opt/cni/bin/flannel"); err != nil {
		return err
	}
	return t.empty(ctx, "/etc/cni", "/var/lib/cni", "/run/flannel")
}

// removeRules takes the rules with words that are somebody's own out of the packet filter and leaves the others as they are.
func (t *Target) removeRules(ctx context.Context, own func(word string) bool) error {
	for _, command := range []string{"iptables", "ip6tables"} {
		out := &capped.Buffer{Most: maxFile}
		there, err := succeeded(t.on.Run(ctx, host.Cmd{Args: []string{command + "-save"}, Stdout: out}))
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		rules, changed := withoutRules(out.String(), own)
		if !changed {
			continue
		}
		if err := t.feed(ctx, []byte(rules), command+"-restore"); err != nil {
			return err
		}
	}
	return nil
}

// withoutRules removes the chains that are somebody's own, and every rule that mentions one or has another word of theirs, from
// what iptables-save prints.
func withoutRules(rules string, own func(word string) bool) (kept string, changed bool) {
	var b strings.Builder
	for line := range strings.Lines(rules) {
		theirs := slices.ContainsFunc(strings.Fields(line), func(word string) bool { return own(strings.TrimPrefix(word, ":")) })
		if theirs && !strings.HasPrefix(line, "#") {
			changed = true
			continue
		}
		b.WriteString(line)
	}
	return b.String(), changed
}

// isKubernetes tells whether a word of a rule is of Kubernetes or of a pod network.
func isKubernetes(word string) bool {
	return slices.ContainsFunc(ownChains(), func(p string) bool { return strings.HasPrefix(word, p) })
}

func noRegistry(ctx context.Context, t *Target) (bool, error) {
	paths := []string{unitDir + registryUnit}
	if t.run.WithData {
		paths = append(paths, registryData)
	}
	there, err := t.anyOf(ctx, paths...)
	if err == nil && !there && t.run.WithData { // a run that was killed may have left the user alone
		there, err = t.hasRegistryAccount(ctx)
	}
	return !there, err
}

// removeRegistry removes the service, and its user unless images of that user stay.
func removeRegistry(ctx context.Context, t *Target) error {
	if err := t.removeUnit(ctx, registryUnit); err != nil {
		return err
	}
	if t.run.WithData {
		if err := t.empty(ctx, registryData); err != nil {
			return err
		}
	} else if stays, err := t.test(ctx, "test", "-e", registryData); err != nil || stays {
		return err
	}
	if there, err := t.hasRegistryAccount(ctx); err != nil || !there {
		return err
	}
	return t.command(ctx, "userdel", registryAccount)
}

func (t *Target) hasRegistryAccount(ctx context.Context) (bool, error) {
	return t.test(ctx, "getent", "passwd", registryAccount)
}

// isRestored looks by itself: these changes come before the first stamp, and hosts that are no nodes get no others.
func isRestored(ctx context.Context, t *Target) (bool, error) {
	left, err := t.anyOf(ctx, unitDir+routeUnit, sysctlPath, modulesPath, sysctlWas, swapMasked)
	if err != nil || left {
		return false, err
	}
	hosts, err := t.read(ctx, "/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) || !bytes.Equal(hosts, withBlock(hosts, nil)) {
		because(ctx, "/etc/hosts")
		return false, err
	}
	fstab, err := t.read(ctx, "/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return bytes.Equal(fstab, withSwap(fstab)), err
}

//go:embed scripts/list-existing.sh
var listExistingScript string

//go:embed scripts/forget.sh
var forgetScript string

// anyOf tells whether one of the paths exists, and says which, as a reason.
func (t *Target) anyOf(ctx context.Context, paths ...string) (bool, error) {
	out, err := t.output(ctx, host.Script("list-existing.sh", listExistingScript, paths...)...)
	if err != nil || len(out) == 0 {
		return false, err
	}
	because(ctx, "%s", strings.Join(strings.Fields(string(out)), ", "))
	return true, nil
}

// restoreHost puts back what the host was before.
func restoreHost(ctx context.Context, t *Target) error {
	if err := t.removeUnit(ctx, routeUnit); err != nil {
		return err
	}
	if err := t.restoreParameters(ctx); err != nil {
		return err
	}
	hosts, err := t.read(ctx, "/etc/hosts")
	if err == nil && !bytes.Equal(hosts, withBlock(hosts, nil)) {
		err = t.edit(ctx, "/etc/hosts", withBlock(hosts, nil))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return t.restoreSwap(ctx)
}

// restoreParameters sets the kernel's parameters to what they were. One that the kernel does not take any more is left.
func (t *Target) restoreParameters(ctx context.Context) error {
	if err := t.command(ctx, "rm", "-f", sysctlPath, modulesPath); err != nil {
		return err
	}
	was, err := t.read(ctx, sysctlWas)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	before := parseSysctl(was)
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, err := t.test(ctx, "sysctl", "--write", key+"="+before[key]); err != nil {
			return err
		}
	}
	return nil
}

// ownFiles are the files and directories that nobody but an installation makes.
func ownFiles() []string {
	return []string{configDir, registryBinary, hooksOnHost, hookStamps, beforeDir, kubeadmFile, provisionDir, stateDir + "/receive"}
}

// sharedFiles are those that others may have made where no installation has left its stamps.
func (r *Site) sharedFiles() []string {
	var paths []string
	for _, phase := range Plan(r.cluster) {
		for _, task := range phase.Tasks {
			for _, f := range task.Files {
				paths = append(paths, f.Path)
			}
		}
	}
	return paths
}

func noFiles(ctx context.Context, t *Target) (bool, error) {
	left, err := t.anyOf(ctx, stampDir, configDir, registryBinary, hookStamps, beforeDir)
	return !left, err
}

// removeFiles removes the installation's own files. The stamps go last, because they say that there is something to
// remove. Directories that others use, too, stay unless they are empty.
func removeFiles(ctx context.Context, t *Target) error {
	nothing, err := notInstalled(ctx, t)
	if err != nil {
		return err
	}
	paths := ownFiles()
	if !nothing {
		paths = slices.Concat(paths, t.run.sharedFiles(), []string{stampDir})
	}
	if err := t.command(ctx, append([]string{"rm", "-rf", "--"}, paths...)...); err != nil {
		return err
	}
	if _, err := t.test(ctx, "rmdir", "/opt/cni/bin", "/opt/cni", "/opt/containerd/bin", "/opt/containerd/lib", "/opt/containerd",
		path.Dir(composePlugin), path.Dir(path.Dir(composePlugin)),
		"/etc/kubekey", path.Dir(registryBinary), path.Dir(localPath)); err != nil {
		return err
	}
	if parents := slices.Concat(runtimeOf(t.run.cluster).parents, t.run.distribution.parents); len(parents) > 0 {
		if _, err := t.test(ctx, append([]string{"rmdir"}, parents...)...); err != nil {
			return err
		}
	}
	return t.systemctl(ctx, "daemon-reload")
}

// forget removes the helper and the lock, and with them the last that there is of ours. under is a command that runs
// another one, or nothing.
func (t *Target) forget(ctx context.Context, under ...string) error {
	ctx = describedAs(ctx, "remove the helper and the lock from "+stateDir)
	return t.command(ctx, append(under, host.Script("forget.sh", forgetScript, stateDir)...)...)
}

// removeUnit stops a unit that an installation made, and removes it.
func (t *Target) removeUnit(ctx context.Context, unit string) error {
	file := unitDir + unit
	there, err := t.test(ctx, "test", "-e", file)
	if err != nil || !there {
		return err
	}
	if err := t.systemctl(ctx, "disable", "--now", unit); err != nil {
		return err
	}
	if err := t.command(ctx, "rm", "-f", file); err != nil {
		return err
	}
	return t.systemctl(ctx, "daemon-reload")
}

// unmount unmounts everything below some paths, what was mounted last first. The kernel tells real paths, and a site may have put a
// large directory on another disk by a link.
func (t *Target) unmount(ctx context.Context, prefixes ...string) error {
	for _, p := range slices.Clone(prefixes) {
		real, err := t.output(ctx, "readlink", "-f", "--", strings.TrimSuffix(p, "/"))
		if _, err := succeeded(err); err != nil {
			return err
		}
		if at := strings.TrimSpace(string(real)); at != "" && strings.HasSuffix(p, "/") {
			prefixes = append(prefixes, at+"/")
		}
	}
	mounts, err := t.output(withoutOutput(ctx), "cat", "/proc/mounts")
	if err != nil {
		return err
	}
	for _, point := range mountsBelow(string(mounts), prefixes) {
		if err := t.command(ctx, "umount", "--lazy", point); err != nil {
			return err
		}
	}
	return nil
}

// mountsBelow returns the mount points with one of the prefixes, the last first.
func mountsBelow(mounts string, prefixes []string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var points []string
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		point := unescape.Replace(fields[1])
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(point, p) }) {
			points = append(points, point)
		}
	}
	slices.Reverse(points)
	return points
}

// empty removes directories with all that is in them. A directory that is a mount point itself stays, empty, and so does one that a
// link leads to.
func (t *Target) empty(ctx context.Context, dirs ...string) error {
	for _, dir := range dirs {
		there, err := t.test(ctx, "test", "-d", dir)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if err := t.command(ctx, "find", dir+"/", "-xdev", "-mindepth", "1", "-delete"); err != nil {
			return err
		}
		if _, err := t.test(ctx, "rmdir", dir); err != nil {
			return err
		}
	}
	return nil
}
