//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/cluster"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fakeNode plays the API server's part for one node: server-side apply of its labels and annotations by one
// manager, and taints. Who owns what follows Kubernetes' documentation.
type fakeNode struct {
	labels, annotations map[string]string
	ownLabels           []string
	ownAnnotations      []string
	taints              []manifest.Taint
	commands            []string
}

func owned(names []string) kube.Document {
	d := kube.Document{}
	for _, name := range names {
		d["f:"+name] = kube.Document{}
	}
	return d
}

func (n *fakeNode) kubectl(_ context.Context, cmd host.Cmd) error {
	args := cmd.Args[2:]
	n.commands = append(n.commands, strings.Join(args, " "))
	switch args[0] {
	case "get":
		var taints []any
		for _, t := range n.taints {
			taints = append(taints, kube.Document{"key": t.Key, "value": t.Value, "effect": t.Effect})
		}
		managed := kube.Document{
			"manager": "kkbundle", "operation": "Apply",
			"fieldsV1": kube.Document{"f:metadata": kube.Document{
				"f:labels": owned(n.ownLabels), "f:annotations": owned(n.ownAnnotations),
			}},
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": []any{kube.Document{
			"metadata": kube.Document{
				"name": "node1", "labels": n.labels, "annotations": n.annotations,
				"managedFields": []any{managed},
			},
			"spec": kube.Document{"taints": taints},
		}}})
	case "apply":
		data, _ := io.ReadAll(cmd.Stdin)
		var node corev1.Node
		if err := json.Unmarshal(data, &node); err != nil {
			return err
		}
		n.ownLabels = lay(n.labels, n.ownLabels, node.Labels)
		n.ownAnnotations = lay(n.annotations, n.ownAnnotations, node.Annotations)
	case "taint":
		for _, one := range args[4:] {
			if id, gone := strings.CutSuffix(one, "-"); gone {
				n.taints = slices.DeleteFunc(n.taints,
					func(t manifest.Taint) bool { return cluster.TaintID(t.Key, t.Effect) == id })
				continue
			}
			var t manifest.Taint
			if err := t.UnmarshalText([]byte(one)); err != nil {
				return err
			}
			n.taints = append(n.taints, t)
		}
	}
	return nil
}

// lay applies fields of a manager and returns what it owns then.
func lay(all map[string]string, owned []string, want map[string]string) []string {
	for _, name := range owned {
		if _, ok := want[name]; !ok {
			delete(all, name)
		}
	}
	names := []string{}
	for name, value := range want {
		all[name] = value
		names = append(names, name)
	}
	return names
}

func TestMarksFollowTheInventory(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	node := &fakeNode{
		labels: map[string]string{"theirs": "stays"}, annotations: map[string]string{"their/note": "x"},
		taints: []manifest.Taint{{Key: "their", Effect: "NoExecute"}},
	}
	s.Hosts["cp1"].Answer("kubectl", node.kubectl)
	s.Hosts["cp1"].Put(t, member.Path, "site v1.34.3\n")
	run := func(more string) []string {
		t.Helper()
		inv, err := manifest.ParseInventory("i",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  cp1: {address: 10.0.0.3}\n  node1: {address: 10.0.0.4"+more+
				"}\ngroups: {kube_control_plane: [cp1], kube_worker: [node1], image_registry: [cp1]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		s.Options.Inventory = inv
		if err := s.Run(t, nil).Phases(t.Context(),
			[]task.Phase{{Name: "install", Tasks: []task.Task{cluster.LabelTask()}}}); err != nil {
			t.Fatal(err)
		}
		return s.States()
	}
	run(", labels: {disk: ssd, zone: a}, annotations: {note: rack 1}, taints: ['only=web:NoSchedule', 'slow:PreferNoSchedule']")
	want := map[string]string{"theirs": "stays", "disk": "ssd", "zone": "a", cluster.WorkerLabel: ""}
	if diff := cmp.Diff(node.labels, want); diff != "" {
		t.Errorf("labels (-got +want):\n%s", diff)
	}
	if node.annotations["note"] != "rack 1" || len(node.taints) != 3 {
		t.Errorf("annotations %v, taints %v", node.annotations, node.taints)
	}
	node.commands = nil
	if got := run(", labels: {disk: ssd, zone: a}, annotations: {note: rack 1}, taints: ['slow:PreferNoSchedule', 'only=web:NoSchedule']"); got[0] != "node-labels@cp1 done" || len(node.commands) != 1 {
		t.Errorf("a second run: %v, %v", got, node.commands)
	}
	node.labels["zone"] = "somebody changed it"
	run(", labels: {zone: b}, taints: ['only=db:NoSchedule']")
	want = map[string]string{"theirs": "stays", "zone": "b", cluster.WorkerLabel: ""}
	if diff := cmp.Diff(node.labels, want); diff != "" {
		t.Errorf("labels after a change (-got +want):\n%s", diff)
	}
	run("")
	if diff := cmp.Diff(node.annotations, map[string]string{"their/note": "x"}); diff != "" {
		t.Errorf("annotations in the end (-got +want):\n%s", diff)
	}
	if len(node.taints) != 1 || node.taints[0].Key != "their" {
		t.Errorf("taints in the end: %v", node.taints)
	}
}
