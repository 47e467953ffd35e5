package kubeadm

import (
	"context"
	_ "embed"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// ControlPlaneProcesses returns the processes of the static pods in the order of their dependencies.
func ControlPlaneProcesses(c *manifest.Cluster) []string {
	names := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	if c.Etcd.Type == manifest.EtcdInternal {
		names = append([]string{"etcd"}, names...)
	}
	return names
}

//go:embed scripts/restart-static.sh
var restartStaticScript string

// RestartScript returns the command that restarts static pods one by one and waits for the host's API server.
func RestartScript(t *task.Host, step, whole int, processes ...string) []string {
	return slices.Concat(
		host.Script("restart-static.sh", restartStaticScript,
			strconv.Itoa(step), strconv.Itoa(whole), strconv.Itoa(restartGrace), strings.Join(processes, " ")),
		[]string{"env", "KUBECACHEDIR=" + task.KubectlCache}, t.Site.Distribution.Kubectl,
		task.ReadyQuestion(t.ServerFlag()))
}

// Timeouts in seconds. An API server starts within 30 on a slow host. A stopping one without the flag of shutdownPart
// waits a minute for watches, so that it is killed after restartGrace: watches reconnect to another server.
// Controller manager and scheduler exit after 10 seconds without an API server, and the kubelet delays repeated
// restarts.
const (
	// RestartStep limits the wait for each process.
	RestartStep  = 60
	restartWhole = 180
	restartGrace = 5
)

// RestartControlPlane restarts the host's components and waits until they run and its API server is ready.
func RestartControlPlane(ctx context.Context, t *task.Host) error {
	return restartStatic(ctx, t, ControlPlaneProcesses(t.Site.Cluster)...)
}

// restartStatic restarts processes of static pods one by one and waits like RestartControlPlane.
func restartStatic(ctx context.Context, t *task.Host, processes ...string) error {
	return t.Run(task.DescribedAs(ctx, "restart "+strings.Join(processes, ", ")),
		RestartScript(t, RestartStep, restartWhole, processes...)...)
}
