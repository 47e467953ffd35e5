package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestDistribution measures how long programs and images take to reach one host and three, each behind a link of 200
// Mbit/s. It asserts nothing about time: docs/reference/performance.md has figures.
func TestDistribution(t *testing.T) {
	th := start(t, scenario{
		hosts:  5,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2, 3, 4, 5}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, dir+"/cluster.yaml", "imageRegistry: {type: registry}", "imageRegistry: {type: none}")
		},
	})
	th.makeBundle(t)
	run(t, th.site(t, "install", "--limit", "host1")).must(t, 0) // no run leaves out the host that begins the cluster
	for _, h := range th.lab.Hosts {
		if err := th.lab.Slow(t.Context(), h, 200); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []string{"host2", "host3,host4,host5"} {
		th.distribute(t, limit)
	}
}

// distribute installs the runtime and the kubelet on some hosts that have nothing yet, and preloads their images.
func (th *thread) distribute(t *testing.T, limit string) {
	r := run(t, th.site(t, "install", "--limit", limit, "--tags", "containerd,preload-images,kubelet")).must(t, 0)
	data, err := os.ReadFile(filepath.Join(strings.TrimSuffix(th.inventory, ".yaml")+".work", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Tasks []struct {
			Task, Host, State string
			Start             time.Time
			Duration          plain.Duration
		}
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	var begin, end time.Time
	for _, task := range report.Tasks {
		if task.State != "changed" {
			continue
		}
		t.Logf("%s %s: %s", task.Host, task.Task, task.Duration.Round(10*time.Millisecond))
		if begin.IsZero() || task.Start.Before(begin) {
			begin = task.Start
		}
		if stop := task.Start.Add(time.Duration(task.Duration)); stop.After(end) {
			end = stop
		}
	}
	if begin.IsZero() {
		t.Fatalf("%s: nothing was brought\n%s", limit, r.stderr)
	}
	t.Logf("%s: %s in all, %s with connecting", limit, end.Sub(begin).Round(10*time.Millisecond),
		r.took.Round(10*time.Millisecond))
}
