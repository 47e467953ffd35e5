package installer

import (
	"context"
	_ "embed" // scripts
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// controlPlaneProcesses are the static pods' processes in the order in which they need each other.
func controlPlaneProcesses(c *manifest.Cluster) []string {
	names := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	if c.Etcd.Type == manifest.EtcdInternal {
		names = append([]string{"etcd"}, names...)
	}
	return names
}

//go:embed scripts/restart-static.sh
var restartStaticScript string

// restartScript returns the command that restarts static pods' processes one after the other, and asks this control plane's API
// server whether it is ready.
func (t *Target) restartScript(step, whole int, processes ...string) []string {
	return slices.Concat(
		host.Script("restart-static.sh", restartStaticScript,
			strconv.Itoa(step), strconv.Itoa(whole), strconv.Itoa(restartGrace), strings.Join(processes, " ")),
		[]string{"env", "KUBECACHEDIR=" + kubectlCache}, t.run.distribution.kubectl,
		[]string{t.server(), "get", "--raw=/readyz", "--request-timeout=5s"})
}

// All of these are seconds. An API server starts within 30 on a slow host. One that is ended takes no new requests, answers those that
// it has, and then waits a minute for those who watch (ShutdownTimeout in
// https://github.com/kubernetes/apiserver/blob/v0.34.3/pkg/server/config.go is the timeout of a request): they find another as well now.
// Controller manager and scheduler end by themselves when the API server is away for ten, and the kubelet makes those wait that end
// again soon.
const (
	restartStep  = 60
	restartWhole = 180
	restartGrace = 5
)

// restartControlPlane restarts this control plane's components and waits until they are back and its API server is ready.
func (t *Target) restartControlPlane(ctx context.Context) error {
	return t.restartStatic(ctx, controlPlaneProcesses(t.run.cluster)...)
}

// restartStatic restarts static pods' processes one after the other, and waits as restartControlPlane does.
func (t *Target) restartStatic(ctx context.Context, processes ...string) error {
	return t.command(describedAs(ctx, "restart "+strings.Join(processes, ", ")), t.restartScript(restartStep, restartWhole, processes...)...)
}
