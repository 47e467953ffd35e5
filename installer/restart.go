package installer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// restartGrace is how many seconds a control plane's process has to end by itself. An API server takes no new requests then,
	// answers those that it has, and waits a minute for those who watch (ShutdownTimeout in
	// https://github.com/kubernetes/apiserver/blob/v0.34.3/pkg/server/config.go is the timeout of a request).
	restartGrace = 10
	// restartWait is how long a process may take to be back. The kubelet starts one at once that ends for the first time in ten
	// minutes, and waits 10, 20, 40 seconds before the next times.
	restartWait = 3 * time.Minute
)

// againScript has a shell function that ends the process of a static pod of kubeadm's, so that the kubelet starts it again.
// It is known by its name and by the files that it was given: users' pods may run an etcd, too.
const againScript = `# again NAME SECONDS ends a static pod's process, and kills it if that takes longer; the kubelet starts it again.
again() {
	old=$(pgrep --full -- "^$1 .*/etc/kubernetes/") || return 0
	kill $old 2>/dev/null
	left=$(($2 * 10))
	while kill -0 $old 2>/dev/null; do
		if [ "$left" -le 0 ]; then kill -KILL $old 2>/dev/null; break; fi
		left=$((left - 1))
		sleep 0.1
	done
}
`

// controlPlaneProcesses are the static pods' processes in groups, in the order in which they are started again: each group
// needs the one before.
func controlPlaneProcesses(c *manifest.Cluster) [][]string {
	groups := [][]string{{"kube-apiserver"}, {"kube-controller-manager", "kube-scheduler"}}
	if c.Etcd.Type == "internal" {
		groups = append([][]string{{"etcd"}}, groups...)
	}
	return groups
}

// restartControlPlane ends the static pods' processes, which the kubelet starts again, and waits until they are back and the
// API server is ready. The API server comes after etcd is back: one that does not find etcd ends, and the kubelet lets it
// wait. kubeadm's own way, to move the manifests out and back, leaves a host without a control plane when
// it is interrupted.
func (t *Target) restartControlPlane(ctx context.Context) error {
	for _, group := range controlPlaneProcesses(t.run.cluster) {
		if err := t.restartStatic(ctx, group...); err != nil {
			return err
		}
	}
	return nil
}

// restartStatic restarts static pods' processes at the same time and waits for them and for the API server.
func (t *Target) restartStatic(ctx context.Context, names ...string) error {
	before := map[string][]string{}
	script := againScript
	for _, name := range names {
		before[name] = t.staticProcesses(ctx, name)
		script += "again " + name + " " + strconv.Itoa(restartGrace) + " &\n"
	}
	ctx = describedAs(ctx, "restart "+strings.Join(names, ", "))
	if err := t.command(ctx, "sh", "-c", script+"wait"); err != nil {
		return err
	}
	return eventually(describedAs(ctx, "look for "+strings.Join(names, ", ")), restartWait, func(ctx context.Context) error {
		for _, name := range names {
			now := t.staticProcesses(ctx, name)
			if len(now) == 0 || slices.ContainsFunc(now, func(pid string) bool { return slices.Contains(before[name], pid) }) {
				return fmt.Errorf("%s has not started again", name)
			}
		}
		_, err := t.kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
}

// staticProcesses returns the ids of the processes of a static pod.
func (t *Target) staticProcesses(ctx context.Context, name string) []string {
	out, err := t.output(ctx, "pgrep", "--full", "--", "^"+name+" .*/etc/kubernetes/")
	if err != nil {
		return nil // there is none, or the host is gone, which the next command tells
	}
	return strings.Fields(string(out))
}
