package installer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestSelected(t *testing.T) {
	t.Parallel()
	phases := []task.Phase{
		{Name: "init", Tasks: []task.Task{{Name: "swap"}, {Name: "kernel"}}},
		{Name: "install", Tasks: []task.Task{
			{Name: "containerd"},
			{Name: "kubelet"},
			{Name: "flannel"},
			{Name: "verify-dns"},
		}},
		{Name: "post_hook", Tasks: []task.Task{{Name: "post_install"}}},
	}
	all := "swap kernel containerd kubelet flannel verify-dns post_install"
	for _, c := range []struct {
		options engine.TaskSelection
		want    string
	}{
		{engine.TaskSelection{}, all},
		{engine.TaskSelection{Phases: []string{"install"}}, "containerd kubelet flannel verify-dns"},
		{engine.TaskSelection{From: "install"}, "containerd kubelet flannel verify-dns post_install"},
		{engine.TaskSelection{From: "flannel"}, "flannel verify-dns post_install"},
		{engine.TaskSelection{From: "kernel", Phases: []string{"init"}}, "kernel"},
		{engine.TaskSelection{Tags: []string{"cri", "verify"}}, "containerd verify-dns"},
		{engine.TaskSelection{Tags: []string{"kernel", "network"}, From: "containerd"}, "flannel"},
		{
			engine.TaskSelection{Phases: []string{"instal"}},
			`there is no phase "instal"; the phases are init, install, post_hook`,
		},
		{engine.TaskSelection{From: "flanel"}, `there is no phase or task "flanel" to start at`},
		{
			engine.TaskSelection{Tags: []string{"networks"}},
			`no task of this cluster has the tag or name "networks"; the tags are ` +
				strings.Join(engine.TagGroups(), ", "),
		},
		{
			engine.TaskSelection{From: "post_hook", Phases: []string{"init"}},
			"phases, tags and start exclude each other: no task is left",
		},
	} {
		list, err := c.options.Selected(phases)
		var tasks []string
		for _, p := range list {
			for _, task := range p.Tasks {
				tasks = append(tasks, task.Name)
			}
		}
		got := strings.Join(tasks, " ")
		var wrong *engine.SelectionError
		if errors.As(err, &wrong) {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: got %s, want %s", c.options, got, c.want)
		}
	}
}

// TestEveryTaskHasATag keeps the groups complete for whatever a cluster file can ask for.
func TestEveryTaskHasATag(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"addons: [{chart: demo, release: shop, namespace: shop}]",
		"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}",
		"controlPlaneEndpoint: {type: kube-vip, address: 10.0.0.9}",
		"controlPlaneEndpoint: {type: haproxy}",
		"controlPlaneEndpoint: {type: external, address: 10.0.0.9}",
		"etcd: {type: external, backup: {every: 30m, keep: 5}}",
		"etcd: {type: provided, endpoints: ['https://10.0.0.1:2379'], ca: a, cert: b, key: c}",
		"cri: {type: docker}", "cri: {type: crio}",
		"cni: {type: calico}", "cni: {type: cilium}", "cni: {type: hybridnet}", "cni: {type: kube-ovn}",
		"cni: {type: multus, with: flannel}",
		"imageRegistry: {type: harbor}", "imageRegistry: {type: none}", "imageRegistry: {vip: 10.0.0.8}",
		"imageDistribution: {peers: spegel}", "dns: {nodeLocal: true}", "metrics: true", "storage: {local: true}", "storage: {nfs: true}",
	} {
		for _, phase := range plan.Plan(tasktest.Cluster(t, text)) {
			for _, task := range phase.Tasks {
				if len(engine.Tags(task)) == 0 {
					t.Errorf("%s: task %s has no tag", text, task.Name)
				}
			}
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.3}, node1: {address: 10.0.0.4}}
groups: {kube_control_plane: [cp1], kube_worker: [node1], image_registry: [cp1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	o := engine.Options{
		Cluster: tasktest.Cluster(t, ""), Inventory: inv, WorkDir: filepath.Join(t.TempDir(), "work"),
		TaskSelection: engine.TaskSelection{Tags: []string{
			"certificates", "containerd", "join-control-plane",
			"flannel",
		}},
	}
	list, err := List(o)
	want := []Listed{
		{Phase: "init", Task: "certificates", Tags: []string{"registry"}},
		{Phase: "install", Task: "containerd", Tags: []string{"cri"}, Hosts: []string{"cp1", "node1"}},
		{
			Phase: "install", Task: "join-control-plane", Tags: []string{"kubernetes"}, Hosts: []string{"cp1"},
			OneByOne: true,
		},
		{Phase: "install", Task: "flannel", Tags: []string{"network"}, Hosts: []string{"cp1"}},
	}
	if diff := cmp.Diff(list, want); diff != "" || err != nil {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
}
