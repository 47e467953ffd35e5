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

// ControlPlaneProcesses are the static pods' processes in the order in which they need each other.
func ControlPlaneProcesses(c *manifest.Cluster) []string {
	names := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	if c.Etcd.Type == manifest.EtcdInternal {
		names = append([]string{"etcd"}, names...)
	}
	return names
}

//go:embed scripts/restart-static.sh
var restartStaticScript string

// RestartScript returns the command that restarts static pods' processes one after the other, and asks this control plane's API
// server whether it is ready.
func RestartScript(t *task.Host, step, whole int, processes ...string) []string {
	return slices.Concat(
		host.Script("restart-static.sh", restartStaticScript,
			strconv.Itoa(step), strconv.Itoa(whole), strconv.Itoa(restartGrace), strings.Join(processes, " ")),
		[]string{"env", "KUBECACHEDIR=" + task.KubectlCache}, t.Site.Distribution.Kubectl,
		[]string{t.ServerFlag(), "get", "--raw=/readyz", "--request-timeout=5s"})
}

// All of these are seconds. An API server starts within 30 on a slow host. One that is ended takes no new requests, answers those that
// it has, and then waits a minute for those who watch (ShutdownTimeout in
// https://github.com/kubernetes/apiserver/blob/v0.34.3/pkg/server/config.go is the timeout of a request): they find another as well now.
// Controller manager and scheduler end by themselves when the API server is away for ten, and the kubelet makes those wait that end
// again soon.
const (
	RestartStep  = 60
	restartWhole = 180
	restartGrace = 5
)

// RestartControlPlane restarts this control plane's components and waits until they are back and its API server is ready.
func RestartControlPlane(ctx context.Context, t *task.Host) error {
	return restartStatic(ctx, t, ControlPlaneProcesses(t.Site.Cluster)...)
}

// restartStatic restarts static pods' processes one after the other, and waits as RestartControlPlane does.
func restartStatic(ctx context.Context, t *task.Host, processes ...string) error {
	return t.Run(task.DescribedAs(ctx, "restart "+strings.Join(processes, ", ")), RestartScript(t, RestartStep, restartWhole, processes...)...)
}
