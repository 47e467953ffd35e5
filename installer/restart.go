package installer

import (
	"context"
	"fmt"
	"strings"

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

// restartScript is a shell script that ends static pods' processes, which the kubelet starts again. kubeadm's own way, to
// move the manifests out and back, leaves a host without a control plane when it is interrupted.
//
// Each is ended when what it asks works again: a component that fails at its start because that is away is started later and
// later by the kubelet, up to five minutes. For the same reason what has started anew by itself in the meantime is left alone.
//
// Certificates that have expired keep the API server from being ready before it is restarted itself, so that a step goes on after
// that many questions, a second apart; what counts is that all is well within the whole.
func (t *Target) restartScript(step, whole int, processes ...string) string {
	ask := append(distributionOf(t.run.cluster).kubectl, t.server(), "get", "--raw=/readyz", "--request-timeout=5s")
	return fmt.Sprintf(`processes='%[1]s'
old=' '
static() { echo "^$1 .*/etc/kubernetes/"; } # users' pods may run an etcd, too
for process in $processes; do old="$old$(pgrep --full -- "$(static "$process")" | tr '\n' ' ')"; done
restarted() {
	pids=$(pgrep --full -- "$(static "$1")") || return 1
	for pid in $pids; do case "$old" in *" $pid "*) return 1 ;; esac; done
}
ready() { said=$(KUBECACHEDIR=%[2]s %[3]s 2>&1); }
well() {
	for process in $processes; do restarted "$process" || { said="$process has not started again"; return 1; }; done
	ready
}
for process in $processes; do
	restarted "$process" || pkill --full -- "$(static "$process")" || : # it ended by itself, and is not back
	tries=0
	until { restarted "$process" && ready; } || [ "$tries" -ge %[4]d ]; do
		tries=$((tries + 1))
		[ "$tries" != %[6]d ] || restarted "$process" || pkill -KILL --full -- "$(static "$process")" || :
		sleep 1
	done
done
tries=0
until well; do
	tries=$((tries + 1))
	[ "$tries" -lt %[5]d ] || { echo "$said" >&2; exit 1; }
	sleep 1
done
`, strings.Join(processes, " "), kubectlCache, "'"+strings.Join(ask, "' '")+"'", step, whole, restartGrace)
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
	return t.command(describedAs(ctx, "restart "+strings.Join(processes, ", ")), "sh", "-c", t.restartScript(restartStep, restartWhole, processes...))
}
