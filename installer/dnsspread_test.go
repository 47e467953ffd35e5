//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A dnsPlay plays the API server and the scheduler for the pods of DNS: one that is deleted comes back elsewhere.
type dnsPlay struct {
	mu      sync.Mutex
	pods    [][2]string // name and node
	wanted  int         // how many there shall be, if more than there are
	nodes   []corev1.Node
	next    string // the node of a pod that comes back
	deleted []string
}

func (p *dnsPlay) kubectl(_ context.Context, cmd host.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := strings.Join(cmd.Args, " ")
	items := []any{}
	switch {
	case strings.Contains(line, " get deployments,pods "):
		items = append(items, kube.Document{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": kube.Document{"name": "coredns"},
			"spec":     kube.Document{"replicas": max(p.wanted, len(p.pods))},
		})
		for _, pod := range p.pods {
			items = append(items, kube.Document{
				"apiVersion": "v1", "kind": "Pod",
				"metadata": kube.Document{"name": pod[0]}, "spec": kube.Document{"nodeName": pod[1]},
			})
		}
		if len(p.pods) < p.wanted { // the controller makes one that is missing after somebody has looked
			p.pods = append(p.pods, [2]string{"new", ""})
			break
		}
		for i := range p.pods {
			if p.pods[i][1] == "" { // it has its node when somebody looks again
				p.pods[i][1] = p.next
			}
		}
	case strings.Contains(line, " get nodes "):
		for _, n := range p.nodes {
			items = append(items, n)
		}
	case strings.Contains(line, " delete pod "):
		name := cmd.Args[len(cmd.Args)-1]
		p.deleted = append(p.deleted, name)
		p.pods = slices.DeleteFunc(p.pods, func(pod [2]string) bool { return pod[0] == name })
		p.pods = append(p.pods, [2]string{name + "-again", ""})
	}
	return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
}

func TestDNSSpread(t *testing.T) {
	t.Parallel()
	node := func(name string, taints ...corev1.Taint) corev1.Node {
		var n corev1.Node
		n.Name, n.Spec.Taints = name, taints
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		return n
	}
	cp := node("cp1", corev1.Taint{Key: kube.ControlPlaneLabel, Effect: corev1.TaintEffectNoSchedule})
	silent := node("node1")
	silent.Status.Conditions[0].Status = "Unknown"
	for name, c := range map[string]struct {
		pods    [][2]string
		nodes   []corev1.Node
		next    string
		deleted []string
		wanted  int
		changed bool // without a deletion
	}{
		"both on the first node": {
			pods: [][2]string{{"a", "cp1"}, {"b", "cp1"}}, nodes: []corev1.Node{cp, node("node1")}, next: "node1",
			deleted: []string{"b"},
		},
		"not placed yet": {
			pods: [][2]string{{"a", ""}, {"b", ""}}, nodes: []corev1.Node{cp, node("node1")}, next: "cp1",
			deleted: []string{"b"},
		},
		"spread":  {pods: [][2]string{{"a", "cp1"}, {"b", "node1"}}, nodes: []corev1.Node{cp, node("node1")}},
		"one pod": {pods: [][2]string{{"a", "cp1"}}, nodes: []corev1.Node{cp, node("node1")}},
		"no other node takes one": {
			pods: [][2]string{{"a", "cp1"}, {"b", "cp1"}}, nodes: []corev1.Node{
				cp,
				node("node1", corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}),
			},
		},
		"the second was deleted and is not there yet": {
			pods: [][2]string{{"a", "cp1"}}, wanted: 2, nodes: []corev1.Node{cp, node("node1")}, next: "node1",
			changed: true,
		},
		"the other node is lost": {
			pods: [][2]string{{"a", "cp1"}, {"b", "cp1"}}, nodes: []corev1.Node{cp, silent}, next: "cp1",
		},
		"it comes back to the same node": {
			pods: [][2]string{{"a", "cp1"}, {"b", "cp1"}}, nodes: []corev1.Node{cp, node("node1")}, next: "cp1",
			deleted: []string{"b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1", "node1")
			s.Hosts["cp1"].Put(t, member.Path, "site v1.34.3\n")
			play := &dnsPlay{pods: c.pods, wanted: c.wanted, nodes: c.nodes, next: c.next}
			s.Hosts["cp1"].Answer("kubectl", play.kubectl)
			if err := s.Run(t, nil).Phases(t.Context(),
				[]task.Phase{{Name: "install", Tasks: []task.Task{addon.DNSSpreadTask()}}}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(play.deleted, c.deleted); diff != "" {
				t.Errorf("deleted (-got +want):\n%s", diff)
			}
			want := "dns-spread@cp1 done"
			if c.deleted != nil || c.changed {
				want = "dns-spread@cp1 changed"
			}
			if got := s.States(); len(got) != 1 || got[0] != want {
				t.Errorf("got %q, want %s", got, want)
			}
			play.deleted = nil
			if err := s.Run(t, nil).Phases(t.Context(),
				[]task.Phase{{Name: "install", Tasks: []task.Task{addon.DNSSpreadTask()}}}); err != nil {
				t.Fatal(err)
			}
			if got := s.States(); len(got) != 1 || got[0] != "dns-spread@cp1 done" || play.deleted != nil {
				t.Errorf("a rerun: got %q, and it deleted %q", got, play.deleted)
			}
		})
	}
}

// TestDNSSpreadTriesAgain where there is another node than when there was no room.
func TestDNSSpreadTriesAgain(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Hosts["cp1"].Put(t, member.Path, "site v1.34.3\n")
	play := &dnsPlay{pods: [][2]string{{"a", "cp1"}, {"b", "cp1"}}, next: "cp1"}
	s.Hosts["cp1"].Answer("kubectl", play.kubectl)
	for _, c := range []struct {
		nodes []string
		want  string
	}{
		{[]string{"cp1", "node1"}, "changed"},
		{[]string{"node1", "cp1"}, "done"},
		{[]string{"cp1", "node1", "node2"}, "changed"},
	} {
		play.nodes = nil
		for _, name := range c.nodes {
			var n corev1.Node
			n.Name = name
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			play.nodes = append(play.nodes, n)
		}
		if err := s.Run(t, nil).Phases(t.Context(),
			[]task.Phase{{Name: "install", Tasks: []task.Task{addon.DNSSpreadTask()}}}); err != nil {
			t.Fatal(err)
		}
		if got := s.States(); len(got) != 1 || got[0] != "dns-spread@cp1 "+c.want {
			t.Errorf("with %q: got %q, want %s", c.nodes, got, c.want)
		}
	}
}
