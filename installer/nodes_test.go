//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A livingCluster plays the API server and etcd behind the kubectl of a site's control planes: which nodes and members
// there are, and what was asked of it. It stands for what cannot run here; the lab has the real ones.
type livingCluster struct {
	mu      sync.Mutex
	nodes   []string
	members []string // of etcd
	ill     []string // members that do not answer
	ready   []string // nodes whose kubelets report
	// addresses are those of nodes, if they matter.
	addresses map[string]string
	asked     []string
	fail      string // the command that fails
}

// newLivingSite makes a site of three control planes and two workers, of which those named are nodes already.
func newLivingSite(t *testing.T, nodes ...string) (*site, *livingCluster) {
	t.Helper()
	s := newSite(t, "reg", "cp1", "cp2", "cp3", "node1", "node2")
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  reg: {address: 10.0.0.9}
  cp1: {address: 10.0.0.11}
  cp2: {address: 10.0.0.12}
  cp3: {address: 10.0.0.13}
  node1: {address: 10.0.0.21}
  node2: {address: 10.0.0.22}
groups: {image_registry: [reg], kube_control_plane: [cp1, cp2, cp3], kube_worker: [node1, node2]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.options.Inventory = inv
	s.options.Cluster = tasktest.Cluster(t, "controlPlaneEndpoint: {type: external, address: api.example}\n")
	s.options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
	s.dialing("")
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	l := &livingCluster{nodes: nodes}
	r := s.run(t, nil)
	for _, name := range nodes {
		h := s.hosts[name]
		h.put(t, kube.ClusterCA, string(ca))
		h.put(t, member.Path, string(member.File(r.Site).Data))
		if strings.HasPrefix(name, "cp") {
			l.members = append(l.members, name)
		}
	}
	for _, h := range s.hosts {
		h.answer("kubectl", l.kubectl)
		h.answer("etcdctl", l.kubectl)
		h.answer("uname", func(_ context.Context, cmd host.Cmd) error {
			_, err := io.WriteString(cmd.Stdout, "x86_64\n")
			return err
		})
	}
	return s, l
}

// kubectl answers what deleting and adding nodes ask.
func (l *livingCluster) kubectl(_ context.Context, cmd host.Cmd) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	args := slices.DeleteFunc(slices.Clone(cmd.Args[1:]), func(a string) bool {
		return strings.HasPrefix(a, "--kubeconfig") || strings.HasPrefix(a, "--server")
	})
	line := strings.Join(args, " ")
	if cmd.Args[0] == "etcdctl" {
		flag := func(a string) bool { return strings.HasPrefix(a, "--") }
		line = strings.Join(slices.DeleteFunc(slices.Clone(cmd.Args), flag), " ")
	}
	if !strings.HasPrefix(line, "get ") && !strings.HasSuffix(line, "list") && !strings.Contains(line, "health") {
		l.asked = append(l.asked, line)
	}
	if l.fail != "" && strings.HasPrefix(line, l.fail) {
		return &host.ExitError{Host: "cp", Args: args, Code: 1, Stderr: "it does not want to"}
	}
	words := strings.Fields(line)
	last := words[len(words)-1]
	switch {
	case line == "get nodes --output=json":
		var items []any
		for _, name := range l.nodes {
			state := map[bool]string{true: "True", false: "Unknown"}[slices.Contains(l.ready, name)]
			labels := kube.Document{}
			if strings.HasPrefix(name, "cp") {
				labels["node-role.kubernetes.io/etcd"] = "true" // with k3s
			}
			items = append(items, kube.Document{"metadata": kube.Document{"name": name, "labels": labels}, "status": kube.Document{
				"conditions": []any{kube.Document{"type": "Ready", "status": state}},
				"addresses":  []any{kube.Document{"type": "InternalIP", "address": l.addresses[name]}},
			}})
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"items": items})
	case strings.HasPrefix(line, "get node "):
		if slices.Contains(l.nodes, words[2]) {
			fmt.Fprintln(cmd.Stdout, "node/"+words[2])
		}
	case strings.HasPrefix(line, "delete node "):
		l.nodes = slices.DeleteFunc(l.nodes, func(n string) bool { return n == words[2] })
	case line == "etcdctl member list":
		var items []any
		for i, name := range l.members {
			if strings.HasPrefix(name, "10.") { // a member that was never started has its address only
				items = append(items, kube.Document{"ID": 0xfedcba9876543210 + uint64(i), "name": "", "peerURLs": []string{"https://" + name + ":2380"}, "isLearner": true})
				continue
			}
			items = append(items, kube.Document{"ID": 0xfedcba9876543210 + uint64(i), "name": name, "clientURLs": []string{"https://" + name}, "peerURLs": []string{"https://" + name + ":2380"}})
		}
		return json.NewEncoder(cmd.Stdout).Encode(kube.Document{"members": items})
	case strings.HasPrefix(line, "etcdctl endpoint health"):
		var items []any
		for _, name := range l.members {
			items = append(items, kube.Document{"endpoint": "https://" + name, "health": !slices.Contains(l.ill, name)})
		}
		return errors.Join(json.NewEncoder(cmd.Stdout).Encode(items), l.illness())
	case strings.HasPrefix(line, "etcdctl member remove "):
		for i := range l.members {
			if last == fmt.Sprintf("%x", 0xfedcba9876543210+uint64(i)) {
				l.members = slices.Delete(l.members, i, i+1)
				break
			}
		}
	}
	return nil
}

// illness is how etcdctl ends where a member is ill.
func (l *livingCluster) illness() error {
	if len(l.ill) == 0 {
		return nil
	}
	return &host.ExitError{Host: "cp", Args: []string{"etcdctl"}, Code: 1, Stderr: "unhealthy cluster"}
}

func yes([]string) error { return nil }

func TestDeleteNodes(t *testing.T) {
	t.Parallel()
	s, l := newLivingSite(t, "cp1", "cp2", "cp3", "node1", "node2")
	s.hosts["cp1"].put(t, "/etc/systemd/system/kubelet.service", "")
	var plan []string
	_, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{"cp1", "node2"}, DrainTimeout: time.Minute}, func(lines []string) error {
		plan = lines
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cordon cp1", "drain cp1 --ignore-daemonsets --delete-emptydir-data --force --timeout=1m0s", "etcdctl member remove fedcba9876543210",
		"delete node cp1 --ignore-not-found",
		"cordon node2", "drain node2 --ignore-daemonsets --delete-emptydir-data --force --timeout=1m0s", "delete node node2 --ignore-not-found",
	}
	if diff := cmp.Diff(l.asked, want); diff != "" {
		t.Errorf("asked of the cluster (-got +want):\n%s", diff)
	}
	for _, name := range []string{"cp1", "node2"} {
		if text := s.hosts[name].tree(t); strings.Contains(text, "kkbundle") || strings.Contains(text, "kubelet.service") {
			t.Errorf("%s was not reset:\n%s", name, text)
		}
	}
	if got := s.hosts["node1"].content("/etc/hosts"); strings.Contains(got, "cp1") || strings.Contains(got, "node2") || !strings.Contains(got, "10.0.0.12 cp2") {
		t.Errorf("node1 knows these hosts:\n%s", got)
	}
	for name, hour := range map[string]string{"cp2": "01:00:00", "cp3": "02:00:00"} { // no two at the same
		if got := s.hosts[name].content("/etc/systemd/system/" + kubeadm.RenewTimer); !strings.Contains(got, hour) {
			t.Errorf("%s renews its certificates at another hour than %s:\n%s", name, hour, got)
		}
	}
	if len(plan) != 2 || !strings.HasPrefix(plan[0], "cp1 is cordoned and drained, its member is removed from etcd, the node is deleted") {
		t.Errorf("what it said that it would do: %q", plan)
	}
	if got := s.hosts["cp1"].said("kubectl"); len(got) > 0 && strings.Contains(strings.Join(got, "\n"), "drain") {
		t.Error("a control plane that goes was asked to delete nodes")
	}
}

// TestDeleteContinues has each step fail once; the next run does what is missing.
func TestDeleteContinues(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"cordon", "drain", "etcdctl member remove", "delete node"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s, l := newLivingSite(t, "cp1", "cp2", "cp3", "node1")
			l.fail = step
			d := Deletion{Hosts: []string{"cp2"}}
			_, err := DeleteNodes(t.Context(), s.options, d, yes)
			var failed *engine.TaskError
			if !errors.As(err, &failed) || failed.Host != "cp2" {
				t.Fatalf("got %v", err)
			}
			const cordoned = "the node is cordoned, but its pods do not leave"
			var hinted interface{ Hint() string }
			drained := strings.Contains(err.Error(), cordoned) && errors.As(err, &hinted) && strings.Contains(hinted.Hint(), "kubectl uncordon cp2")
			if drained != (step == "drain") {
				t.Errorf("got %v", err)
			}
			l.fail = ""
			if _, err := DeleteNodes(t.Context(), s.options, d, yes); err != nil {
				t.Fatal(err)
			}
			if slices.Contains(l.nodes, "cp2") || slices.Contains(l.members, "cp2") || strings.Contains(s.hosts["cp2"].tree(t), "kkbundle") {
				t.Errorf("nodes %q, members %q", l.nodes, l.members)
			}
			l.asked = nil
			if _, err := DeleteNodes(t.Context(), s.options, d, yes); err != nil || len(l.asked) > 0 {
				t.Errorf("once more: %v, asked %q", err, l.asked)
			}
		})
	}
}

func TestNodesThatMustStay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes, going []string
		ill          []string
		lost         string
		change       func(s *site)
		want         string
	}{
		"the last control plane":     {nodes: []string{"cp1", "node1"}, going: []string{"cp1"}, want: "cp1 cannot be deleted: no other working control plane would remain"},
		"all control planes":         {nodes: []string{"cp1", "cp2"}, going: []string{"cp1", "cp2"}, want: "no other working control plane"},
		"a healthy member of two":    {nodes: []string{"cp1", "cp2", "cp3"}, going: []string{"cp2"}, ill: []string{"cp3"}, want: "only 1 of the 2 remaining etcd members would be healthy, more than half must be (not healthy: cp3)"},
		"the registry":               {nodes: []string{"cp1", "node1"}, going: []string{"reg"}, want: "reg cannot be deleted: all nodes pull their images from its registry"},
		"the endpoint":               {nodes: []string{"cp1", "cp2", "cp3"}, going: []string{"cp1"}, change: func(s *site) { s.options.Cluster.ControlPlaneEndpoint.Address = "10.0.0.11" }, want: "the cluster's endpoint is its address"},
		"a host that nobody knows":   {nodes: []string{"cp1"}, going: []string{"node9"}, want: `there is no host "node9" in the inventory`},
		"a host that is unreached":   {nodes: []string{"cp1", "node1"}, going: []string{"node1"}, lost: "node1", want: "no route to host"},
		"there is no cluster at all": {going: []string{"node1"}, want: "there is no cluster yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := newLivingSite(t, c.nodes...)
			l.ill = c.ill
			s.dialing(c.lost)
			if c.change != nil {
				c.change(s)
				for _, name := range c.nodes {
					s.hosts[name].put(t, member.Path, string(member.File(s.run(t, nil).Site).Data))
				}
			}
			_, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: c.going}, func([]string) error { t.Error("it asks whether to go on"); return nil })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if len(l.asked) > 0 {
				t.Errorf("it asked %q of the cluster", l.asked)
			}
		})
	}
}

// TestDeleteUnreachable deletes nodes whose hosts are gone: one that the inventory has, and one that it has not any more.
func TestDeleteUnreachable(t *testing.T) {
	t.Parallel()
	s, l := newLivingSite(t, "cp1", "cp2", "cp3", "node1")
	l.nodes, l.ill = append(l.nodes, "node9"), []string{"cp1"}
	s.dialing("cp1")
	gone := Deletion{Hosts: []string{"cp1", "node9"}, Unreachable: true}
	l.ready = []string{"cp2", "node9"}
	_, err := DeleteNodes(t.Context(), s.options, gone, func([]string) error { t.Error("it asks whether to go on"); return nil })
	if err == nil || err.Error() != "node9 cannot be deleted: it is not gone: the node is Ready" || len(l.asked) > 0 {
		t.Errorf("a host that lives: %v, and it asked %q", err, l.asked)
	}
	l.ready = []string{"cp2"}
	if _, err := DeleteNodes(t.Context(), s.options, gone, yes); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cordon cp1", "delete pods --all-namespaces --field-selector=spec.nodeName=cp1 --force --grace-period=0 --wait=false",
		"etcdctl member remove fedcba9876543210", "delete node cp1 --ignore-not-found",
		"cordon node9", "delete pods --all-namespaces --field-selector=spec.nodeName=node9 --force --grace-period=0 --wait=false", "delete node node9 --ignore-not-found",
	}
	if diff := cmp.Diff(l.asked, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if strings.Contains(s.hosts["cp3"].content("/etc/hosts"), "cp1") {
		t.Error("cp3 still knows cp1")
	}
}

// TestDeleteUnreachableEtcd takes a host that is gone out of an etcd beside the cluster: nobody resets it, which would do that.
func TestDeleteUnreachableEtcd(t *testing.T) {
	t.Parallel()
	for _, ill := range []string{"cp1", "cp1 cp2"} {
		t.Run(ill, func(t *testing.T) {
			t.Parallel()
			nodes := []string{"cp1", "cp2", "cp3", "node1"}
			s, l := newLivingSite(t, nodes...)
			s.options.Cluster = tasktest.Cluster(t, "etcd: {type: external}\ncontrolPlaneEndpoint: {type: external, address: api.example}\n")
			for _, name := range nodes {
				s.hosts[name].put(t, member.Path, string(member.File(s.run(t, nil).Site).Data))
			}
			l.ill = strings.Fields(ill)
			s.dialing("cp1")
			_, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{"cp1"}, Unreachable: true}, yes)
			if len(l.ill) > 1 {
				if err == nil || !strings.Contains(err.Error(), "only 1 of the 2 remaining etcd members would be healthy") || len(l.asked) > 0 {
					t.Errorf("without a quorum: %v, and it asked %q", err, l.asked)
				}
				return
			}
			if err != nil || slices.Contains(l.members, "cp1") || !slices.Contains(l.asked, "etcdctl member remove fedcba9876543210") {
				t.Errorf("%v; members %q, asked %q", err, l.members, l.asked)
			}
		})
	}
}

// TestDeleteUnknown has a name that nobody knows: nothing would be done, and it would look as if it were.
func TestDeleteUnknown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nod1", "", "--all", "node1,metadata.name=x"} {
		s, l := newLivingSite(t, "cp1", "node1")
		_, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{name}, Unreachable: true}, yes)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("there is no host %q in the inventory, and no such node in the cluster", name)) || len(l.asked) > 0 {
			t.Errorf("%q: got %v, and it asked %q", name, err, l.asked)
		}
	}
}

func TestDeleteIsAgreedTo(t *testing.T) {
	t.Parallel()
	s, l := newLivingSite(t, "cp1", "node1")
	no := errors.New("no")
	if _, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{"node1"}}, func([]string) error { return no }); !errors.Is(err, no) || len(l.asked) > 0 {
		t.Errorf("got %v, and it asked %q", err, l.asked)
	}
	s.options.DryRun = true
	if _, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{"node1"}}, yes); err != nil || len(l.asked) > 0 {
		t.Errorf("a dry run: %v, and it asked %q", err, l.asked)
	}
}

// TestNewcomers looks at which hosts AddNodes takes for new, and what it says that it will do; what happens then is an
// installation, with the same tasks.
func TestNewcomers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost  string
		names []string
		want  string
	}{
		"all that are none":      {"", nil, "cp3 becomes a control plane; node2 becomes a worker; reg, cp1, cp2, node1 get it in /etc/hosts and, where they have one, in the balancer"},
		"the named":              {"", []string{"node1", "node2"}, "node2 becomes a worker; reg, cp1, cp2, cp3, node1 get it in /etc/hosts and, where they have one, in the balancer"},
		"a node is down":         {"node1", []string{"node2"}, "node2 becomes a worker; reg, cp1, cp2, cp3 get it in /etc/hosts and, where they have one, in the balancer; node1 is unreachable and stays unchanged: node1 (10.0.0.4:22): no route to host. Run kkbundle install when it is back"},
		"a new host is down":     {"node2", nil, "error: node2 is not a node of the cluster and cannot be reached to become one: node2 (10.0.0.4:22): no route to host"},
		"nothing is new":         {"", []string{"cp1"}, ""},
		"nobody knows it":        {"", []string{"node9"}, `error: there is no host "node9" with a role in the inventory`},
		"the first is down":      {"cp1", []string{"node2"}, "node2 becomes a worker; reg, cp2, cp3, node1 get it in /etc/hosts and, where they have one, in the balancer; cp1 is unreachable and stays unchanged: cp1 (10.0.0.4:22): no route to host. Run kkbundle install when it is back"},
		"the registry is needed": {"reg", []string{"node2"}, "error: reg (10.0.0.4:22): no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := newLivingSite(t, "cp1", "cp2", "node1")
			s.hosts["reg"].put(t, task.StampDir+"/registry", "")
			s.dialing(c.lost)
			stop := errors.New("stop")
			got := ""
			_, err := AddNodes(t.Context(), s.options, c.names, func(lines []string) error {
				got = strings.Join(lines, "; ")
				return stop
			})
			if err != nil && !errors.Is(err, stop) {
				got = "error: " + err.Error()
			}
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

// TestAddNamelessNodes has a host that has joined, but not under the name that the inventory gives it.
func TestAddNamelessNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ nodes, want string }{
		"renamed":         {"cp1 worker1", "node1 of the inventory is the node worker1 of the cluster: it was renamed"},
		"deleted by hand": {"cp1", "node1 has joined the cluster, but the node was deleted there by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := newLivingSite(t, "cp1", "node1")
			s.hosts["reg"].put(t, task.StampDir+"/registry", "")
			l.nodes, l.addresses = strings.Fields(c.nodes), map[string]string{"worker1": "10.0.0.21"}
			_, err := AddNodes(t.Context(), s.options, []string{"node1"}, yes)
			var nameless *NamelessError
			if !errors.As(err, &nameless) || err.Error() != c.want || nameless.Hint() == "" {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestInstallRenamedNodes holds that install does not touch a host under a name that is not its node's: it would take the node's
// name out of the others' /etc/hosts, and prove nothing about it.
func TestInstallRenamedNodes(t *testing.T) {
	t.Parallel()
	s, l := newLivingSite(t, "cp1", "node1")
	l.nodes, l.addresses = []string{"cp1", "worker1"}, map[string]string{"worker1": "10.0.0.21"}
	_, err := Run(t.Context(), s.options)
	var nameless *NamelessError
	if !errors.As(err, &nameless) || nameless.Host != "node1" || nameless.Node != "worker1" {
		t.Fatalf("got %v, want that node1 is worker1", err)
	}
	for _, e := range s.events {
		if e.Task != "" {
			t.Errorf("%s was begun on %s", e.Task, e.Host)
		}
	}
}

// TestAddNodes adds a worker: the new host gets all tasks, the others those that tell of it.
func TestAddNodes(t *testing.T) {
	t.Parallel()
	s, _ := newLivingSite(t, "cp1", "cp2", "cp3", "node1")
	r := s.run(t, nil)
	r.ChangeSite(func(s *task.Site) {
		s.Scope = task.Scope{Hosts: []string{"node2"}, SkipUnreachable: true, RunFollowers: true}
	})
	var done sync.Map
	fine := func(*task.Host) error { return nil }
	follows := flagTask("hosts-file", task.Each, &done, fine)
	follows.Follows = true
	if err := r.Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{follows, flagTask("join", task.Each, &done, fine)}}}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"hosts-file@cp1 changed", "hosts-file@cp2 changed", "hosts-file@cp3 changed", "hosts-file@node1 changed", "hosts-file@node2 changed",
		"hosts-file@reg changed", "join@node2 changed",
	}
	if diff := cmp.Diff(s.states(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
