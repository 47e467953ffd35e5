//go:build linux

package installer

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/plain"
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

// A rehearsal names components that change, a webhook that a drain can stop, and the time that the last upgrade predicts.
func TestRehearse(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.33.7", "cp1", "node1")
	u := s.upgradeTo(t, "v1.34.3")
	plan, err := u.look(t.Context())
	if err != nil {
		t.Fatal(err)
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

func TestEstimate(t *testing.T) {
	t.Parallel()
	task := func(host, name string, d time.Duration) report.Task {
		return report.Task{Phase: "upgrade v1.34.3", Host: host, Task: name, Duration: plain.Duration(d)}
	}
	last := report.Run{Times: report.Times{Total: plain.Duration(10 * time.Minute)}, Tasks: []report.Task{
		task("cp1", "control-plane", 2*time.Minute), task("cp1", "kubelet", time.Minute), task("node1", "kubelet", time.Minute), task("node2", "kubelet", 3*time.Minute),
		{Phase: "finish", Host: "cp1", Task: "dns", Duration: plain.Duration(time.Minute)},
	}}
	plan := UpgradePlan{Batch: 2, Steps: []string{"v1.35.4"}, Nodes: []UpgradeNode{
		{ControlPlane: true}, {ControlPlane: true}, {ControlPlane: true}, {}, {}, {}, {Current: true},
	}}
	// 3 minutes of other phases, 3 control planes of 3 minutes, 2 batches of 2.
	if got, want := estimate(last, plan), 16*time.Minute; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
