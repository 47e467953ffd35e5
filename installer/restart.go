package installer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// restartGrace is how many seconds a control plane's process has to end by itself. An API server takes no new requests then,
	// answers those that it has, and waits a minute for those who watch (ShutdownTimeout in
	// https://github.com/kubernetes/apiserver/blob/v0.34.3/pkg/server/config.go is the timeout of a request).
	restartGrace = 5
	// restartWait is how long a process may take to be back. The kubelet starts one at once that ends for the first time in ten
	// minutes, and waits 10, 20, 40 seconds before the next times.
	restartWait = 3 * time.Minute
)

// againScript has a shell function that ends the processes of a static pod of kubeadm's, so that the kubelet starts it again.
// They are known by their name and by the files that they were given: users' pods may run an etcd, too. A process that is not
// the one of before has started again already: controller manager and scheduler end when the API server is away for
// ten seconds, and the kubelet makes those wait that end twice.
const againScript = `# again SECONDS NAME PID... ends these processes of a static pod, and kills those that take longer; the kubelet starts it again.
again() {
	seconds=$1 name=$2; shift 2
	for old in $(pgrep --full -- "^$name .*/etc/kubernetes/"); do
		case " $* " in *" $old "*) ;; *) continue ;; esac
		kill "$old" 2>/dev/null
		left=$((seconds * 10))
		while kill -0 "$old" 2>/dev/null; do
			if [ "$left" -le 0 ]; then kill -KILL "$old" 2>/dev/null; break; fi
			left=$((left - 1))
			sleep 0.1
		done
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
	groups := controlPlaneProcesses(t.run.cluster)
	before := t.staticProcesses(ctx, slices.Concat(groups...)...)
	for _, group := range groups {
		if err := t.restartStatic(ctx, before, group...); err != nil {
			return err
		}
	}
	return nil
}

// restartStatic restarts those of static pods' processes that still are what they were before, at the same time, and waits for
// the pods and for the API server.
func (t *Target) restartStatic(ctx context.Context, before map[string][]string, names ...string) error {
	script := againScript
	for _, name := range names {
		script += fmt.Sprintf("again %d %s %s &\n", restartGrace, name, strings.Join(before[name], " "))
	}
	if err := t.command(describedAs(ctx, "restart "+strings.Join(names, ", ")), "sh", "-c", script+"wait"); err != nil {
		return err
	}
	ctx = describedAs(ctx, "look for "+strings.Join(names, ", "))
	return eventually(ctx, restartWait, func(ctx context.Context) error {
		now := t.staticProcesses(ctx, names...)
		for _, name := range names {
			if len(now[name]) == 0 || slices.ContainsFunc(now[name], func(pid string) bool { return slices.Contains(before[name], pid) }) {
				return fmt.Errorf("%s has not started again", name)
			}
		}
		_, err := t.kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
}

// staticProcesses returns the ids of the processes of static pods, by their names.
func (t *Target) staticProcesses(ctx context.Context, names ...string) map[string][]string {
	found := map[string][]string{}
	for _, name := range names {
		out, err := t.output(ctx, "pgrep", "--full", "--", "^"+name+" .*/etc/kubernetes/")
		if err == nil { // else there is none, or the host is gone, which the next command tells
			found[name] = strings.Fields(string(out))
		}
	}
	return found
}
