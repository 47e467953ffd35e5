//go:build linux

package upgrade

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Only APIs that the new release no longer serves are in the way, and the API server knows the release.
func TestRemovedAPIs(t *testing.T) {
	t.Parallel()
	const metrics = `apiserver_requested_deprecated_apis{group="policy",removed_release="1.25",resource="poddisruptionbudgets",subresource="",version="v1beta1"} 1
apiserver_requested_deprecated_apis{group="flowcontrol.apiserver.k8s.io",removed_release="1.35",resource="flowschemas",subresource="status",version="v1beta3"} 1
apiserver_requested_deprecated_apis{group="",removed_release="",resource="componentstatuses",subresource="",version="v1"} 1
apiserver_requested_deprecated_apis{group="x",removed_release="1.36",resource="later",subresource="",version="v1"} 1
`
	want := []string{
		"poddisruptionbudgets of policy/v1beta1 is requested, and gone since v1.25",
		"flowschemas of flowcontrol.apiserver.k8s.io/v1beta3 is requested, and gone since v1.35",
	}
	if diff := cmp.Diff(removedAPIs(metrics, "v1.35.4"), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// A rehearsal names components that change, a webhook that a drain can stop, and the time that the last upgrade
// predicts.
func TestRehearse(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.33.7", "cp1", "node1")
	u := upgradeTo(s, t, "v1.34.3")
	plan, err := u.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u = upgradeWith(s, t, bundleOf(t, slices.Collect(maps.Values(u.clusters))...))
	if plan, err = u.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(u.Between) != 1 || u.Between[0].Kubernetes.Version != plan.Steps[0] || len(plan.Steps) != 2 {
		t.Errorf("the programs of other releases than of %v are asked for their settings", plan.Steps)
	}
	f.objects["deployment coredns"] = `{"spec":{"template":{"spec":{"containers":[{"image":"registry.k8s.io/coredns/coredns:v1.12.0"}]}}}}`
	f.objects["mutatingwebhookconfigurations"] = `{"items":[
		{"metadata":{"name":"injector"},"webhooks":[{"clientConfig":{"service":{"namespace":"mesh","name":"inject"}},"rules":[{"apiGroups":[""],"operations":["CREATE"],"resources":["pods"]}]}]},
		{"metadata":{"name":"fine"},"webhooks":[{"failurePolicy":"Ignore","clientConfig":{"service":{"namespace":"mesh","name":"inject"}},"rules":[{"apiGroups":["*"],"operations":["*"],"resources":["*"]}]}]}]}`
	f.objects["endpointslices"] = `{"items":[{"endpoints":[{"conditions":{"ready":true}},{"conditions":{"ready":false}}]}]}`
	f.said = nil
	r, err := u.rehearse(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.said) > 0 {
		t.Errorf("a rehearsal did %q", f.said)
	}
	want := [][]Replaced{{{"etcd", "", "3.5.32"}}, {{"etcd", "3.5.32", "3.6.5"}, {"coredns", "v1.12.0", "v1.12.1"}}}
	if len(r.Steps) != len(want) {
		t.Fatalf("steps %+v", r.Steps)
	}
	for i, step := range r.Steps {
		if step.Images == 0 || step.Files == 0 || !cmp.Equal(step.Components, want[i]) {
			t.Errorf("step %+v, want %+v", step, want[i])
		}
	}
	if len(r.Webhooks) != 1 || !strings.Contains(r.Webhooks[0], "injector: Service mesh/inject has 1 ready endpoints") {
		t.Errorf("webhooks %q", r.Webhooks)
	}
	if len(r.Nodes) != 2 || len(r.Nodes[0].Replaces) == 0 || r.RegistryLacks == 0 || r.Estimate != 0 {
		t.Errorf("%+v", r)
	}
}

// TestRehearseEtcdBesideTheCluster: etcd on hosts of its own goes to the bundle's version before the first step;
// kkbundle replaces no provided etcd.
func TestRehearseEtcdBesideTheCluster(t *testing.T) {
	t.Parallel()
	for kind, want := range map[manifest.EtcdType][]Replaced{
		manifest.EtcdExternal: {{"etcd", "3.6.4", "3.6.5"}},
		manifest.EtcdProvided: nil,
	} {
		s, _ := upgradeSite(t, "v1.34.2", "cp1", "node1")
		s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\netcd: {type: external}")
		u := upgradeWith(s, t, nil)
		for _, h := range u.WithRole(manifest.RoleEtcd) {
			s.Hosts[h.Name].Answer("etcd", func(_ context.Context, cmd host.Cmd) error {
				_, err := cmd.Stdout.Write([]byte("etcd Version: 3.6.4\nGit SHA: 1\n"))
				return err
			})
		}
		u.Cluster.Etcd.Type = kind
		u.clusters = map[string]*manifest.Cluster{"v1.34.3": u.Cluster}
		steps, err := u.rehearseSteps(t.Context(), Plan{Cluster: "site", To: "v1.34.3", Steps: []string{"v1.34.3"}})
		if err != nil || len(steps) != 1 {
			t.Fatalf("%s: %v, %v", kind, steps, err)
		}
		got := slices.DeleteFunc(steps[0].Components, func(r Replaced) bool { return r.Name != "etcd" })
		if diff := cmp.Diff(got, want, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-got +want):\n%s", kind, diff)
		}
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	task := func(host, name string, d time.Duration) report.Task {
		return report.Task{Phase: "upgrade v1.34.3", Host: host, Task: name, State: "changed", Duration: plain.Duration(d)}
	}
	last := report.Run{Times: report.Times{Total: plain.Duration(10 * time.Minute)}, Tasks: []report.Task{
		task("cp1", "control-plane", 2*time.Minute), task("cp1", "kubelet", time.Minute),
		task("node1", "kubelet", time.Minute), task("node2", "kubelet", 3*time.Minute),
		{Phase: "finish", Host: "cp1", Task: "dns", Duration: plain.Duration(time.Minute)},
	}}
	plan := Plan{Batch: 2, Steps: []string{"v1.35.4"}, Nodes: []Node{
		{ControlPlane: true}, {ControlPlane: true}, {ControlPlane: true}, {}, {}, {}, {Current: true},
	}}
	// 3 minutes of other phases, 3 control planes of 3 minutes, 2 batches of 2.
	isPlane := func(host string) bool { return strings.HasPrefix(host, "cp") }
	if got, want := estimate(timesOf(last, isPlane), plan), 16*time.Minute; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// What a run did in part says nothing: the API server of cp2 was upgraded before, that of cp3 alone, node3 got images.
	part := task("cp2", "keep", time.Second)
	part.State = "done"
	last.Tasks = append(last.Tasks, part, task("cp2", "kubelet", time.Second), task("cp3", "control-plane", time.Second),
		task("node3", "preload-images", time.Second))
	if got, want := timesOf(last, isPlane), (times{3 * time.Minute, 2 * time.Minute, 3*time.Minute - 4*time.Second}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
