//go:build linux

package nodes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestDeleteNodes(t *testing.T) {
	t.Parallel()
	s, l := sitetest.NewLivingSite(t, "cp1", "cp2", "cp3", "node1", "node2")
	s.Hosts["cp1"].Put(t, "/etc/systemd/system/kubelet.service", "")
	var plan []string
	_, err := Delete(t.Context(), s.Options, Deletion{Hosts: []string{"cp1", "node2"}, DrainTimeout: time.Minute},
		func(lines []string) error {
			plan = lines
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cordon cp1", "drain cp1 --ignore-daemonsets --delete-emptydir-data --force --timeout=1m0s",
		"etcdctl member remove fedcba9876543210",
		"delete node cp1 --ignore-not-found",
		"cordon node2", "drain node2 --ignore-daemonsets --delete-emptydir-data --force --timeout=1m0s",
		"delete node node2 --ignore-not-found",
	}
	if diff := cmp.Diff(l.Asked, want); diff != "" {
		t.Errorf("asked of the cluster (-got +want):\n%s", diff)
	}
	for _, name := range []string{"cp1", "node2"} {
		if text := s.Hosts[name].Tree(t); strings.Contains(text, "kkbundle") ||
			strings.Contains(text, "kubelet.service") {
			t.Errorf("%s was not reset:\n%s", name, text)
		}
	}
	if got := s.Hosts["node1"].Content("/etc/hosts"); strings.Contains(got, "cp1") || strings.Contains(got, "node2") ||
		!strings.Contains(got, "10.0.0.12 cp2") {
		t.Errorf("node1 knows these hosts:\n%s", got)
	}
	for name, hour := range map[string]string{"cp2": "01:00:00", "cp3": "02:00:00"} { // no two at the same
		if got := s.Hosts[name].Content("/etc/systemd/system/" + kubeadm.RenewTimer); !strings.Contains(got, hour) {
			t.Errorf("%s renews its certificates at another hour than %s:\n%s", name, hour, got)
		}
	}
	if len(plan) != 2 || !strings.HasPrefix(plan[0],
		"cp1 is cordoned and drained, its member is removed from etcd, the node is deleted") {
		t.Errorf("what it said that it would do: %q", plan)
	}
	if got := s.Hosts["cp1"].Said("kubectl"); len(got) > 0 && strings.Contains(strings.Join(got, "\n"), "drain") {
		t.Error("a control plane that goes was asked to delete nodes")
	}
}

// TestDeleteContinues has each step fail once; the next run does what is missing.
func TestDeleteContinues(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"cordon", "drain", "etcdctl member remove", "delete node"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s, l := sitetest.NewLivingSite(t, "cp1", "cp2", "cp3", "node1")
			l.Fail = step
			d := Deletion{Hosts: []string{"cp2"}}
			_, err := Delete(t.Context(), s.Options, d, sitetest.Yes)
			var failed *engine.TaskError
			if !errors.As(err, &failed) || failed.Host != "cp2" {
				t.Fatalf("got %v", err)
			}
			const cordoned = "the node is cordoned, but its pods do not leave"
			var hinted interface{ Hint() string }
			drained := strings.Contains(err.Error(), cordoned) && errors.As(err, &hinted) &&
				strings.Contains(hinted.Hint(), "kubectl uncordon cp2")
			if drained != (step == "drain") {
				t.Errorf("got %v", err)
			}
			l.Fail = ""
			if _, err := Delete(t.Context(), s.Options, d, sitetest.Yes); err != nil {
				t.Fatal(err)
			}
			if slices.Contains(l.Nodes, "cp2") || slices.Contains(l.Members, "cp2") ||
				strings.Contains(s.Hosts["cp2"].Tree(t), "kkbundle") {
				t.Errorf("nodes %q, members %q", l.Nodes, l.Members)
			}
			l.Asked = nil
			if _, err := Delete(t.Context(), s.Options, d, sitetest.Yes); err != nil || len(l.Asked) > 0 {
				t.Errorf("once more: %v, asked %q", err, l.Asked)
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
		change       func(s *sitetest.Site)
		want         string
	}{
		"the last control plane": {
			nodes: []string{"cp1", "node1"}, going: []string{"cp1"},
			want: "cp1 cannot be deleted: no other working control plane would remain",
		},
		"all control planes": {
			nodes: []string{"cp1", "cp2"}, going: []string{"cp1", "cp2"},
			want: "no other working control plane",
		},
		"a healthy member of two": {
			nodes: []string{"cp1", "cp2", "cp3"}, going: []string{"cp2"},
			ill: []string{"cp3"}, want: "only 1 of the 2 remaining etcd members would be healthy, more than half must be (not healthy: cp3)",
		},
		"the registry": {
			nodes: []string{"cp1", "node1"}, going: []string{"reg"},
			want: "reg cannot be deleted: all nodes pull their images from its registry",
		},
		"the endpoint": {
			nodes: []string{"cp1", "cp2", "cp3"}, going: []string{"cp1"},
			change: func(s *sitetest.Site) { s.Options.Cluster.ControlPlaneEndpoint.Address = "10.0.0.11" },
			want:   "the cluster's endpoint is its address",
		},
		"a host that nobody knows": {
			nodes: []string{"cp1"}, going: []string{"node9"},
			want: `there is no host "node9" in the inventory`,
		},
		"a host that is unreached": {
			nodes: []string{"cp1", "node1"}, going: []string{"node1"}, lost: "node1",
			want: "no route to host",
		},
		"there is no cluster at all": {going: []string{"node1"}, want: "there is no cluster yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := sitetest.NewLivingSite(t, c.nodes...)
			l.Ill = c.ill
			s.Dialing(c.lost)
			if c.change != nil {
				c.change(s)
				for _, name := range c.nodes {
					s.Hosts[name].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
				}
			}
			_, err := Delete(t.Context(), s.Options, Deletion{Hosts: c.going},
				func([]string) error { t.Error("it asks whether to go on"); return nil })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if len(l.Asked) > 0 {
				t.Errorf("it asked %q of the cluster", l.Asked)
			}
		})
	}
}

// TestDeleteUnreachable deletes nodes whose hosts are gone: one that the inventory has, and one that it has not any
// more.
func TestDeleteUnreachable(t *testing.T) {
	t.Parallel()
	s, l := sitetest.NewLivingSite(t, "cp1", "cp2", "cp3", "node1")
	l.Nodes, l.Ill = append(l.Nodes, "node9"), []string{"cp1"}
	s.Dialing("cp1")
	gone := Deletion{Hosts: []string{"cp1", "node9"}, Unreachable: true}
	l.Ready = []string{"cp2", "node9"}
	_, err := Delete(t.Context(), s.Options, gone,
		func([]string) error { t.Error("it asks whether to go on"); return nil })
	if err == nil || err.Error() != "node9 cannot be deleted: it is not gone: the node is Ready" || len(l.Asked) > 0 {
		t.Errorf("a host that lives: %v, and it asked %q", err, l.Asked)
	}
	l.Ready = []string{"cp2"}
	if _, err := Delete(t.Context(), s.Options, gone, sitetest.Yes); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cordon cp1", "delete pods --all-namespaces --field-selector=spec.nodeName=cp1 --force --grace-period=0 --wait=false",
		"etcdctl member remove fedcba9876543210", "delete node cp1 --ignore-not-found",
		"cordon node9", "delete pods --all-namespaces --field-selector=spec.nodeName=node9 --force --grace-period=0 --wait=false", "delete node node9 --ignore-not-found",
	}
	if diff := cmp.Diff(l.Asked, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if strings.Contains(s.Hosts["cp3"].Content("/etc/hosts"), "cp1") {
		t.Error("cp3 still knows cp1")
	}
}

// TestDeleteUnreachableEtcd takes a host that is gone out of an etcd beside the cluster: nobody resets it, which
// would do that.
func TestDeleteUnreachableEtcd(t *testing.T) {
	t.Parallel()
	for _, ill := range []string{"cp1", "cp1 cp2"} {
		t.Run(ill, func(t *testing.T) {
			t.Parallel()
			nodes := []string{"cp1", "cp2", "cp3", "node1"}
			s, l := sitetest.NewLivingSite(t, nodes...)
			s.Options.Cluster = tasktest.Cluster(t,
				"etcd: {type: external}\ncontrolPlaneEndpoint: {type: external, address: api.example}\n")
			for _, name := range nodes {
				s.Hosts[name].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
			}
			l.Ill = strings.Fields(ill)
			s.Dialing("cp1")
			_, err := Delete(t.Context(), s.Options, Deletion{Hosts: []string{"cp1"}, Unreachable: true}, sitetest.Yes)
			if len(l.Ill) > 1 {
				if err == nil || !strings.Contains(err.Error(),
					"only 1 of the 2 remaining etcd members would be healthy") || len(l.Asked) > 0 {
					t.Errorf("without a quorum: %v, and it asked %q", err, l.Asked)
				}
				return
			}
			if err != nil || slices.Contains(l.Members, "cp1") ||
				!slices.Contains(l.Asked, "etcdctl member remove fedcba9876543210") {
				t.Errorf("%v; members %q, asked %q", err, l.Members, l.Asked)
			}
		})
	}
}

// TestDeleteUnknown has a name that nobody knows: nothing would be done, and it would look as if it were.
func TestDeleteUnknown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nod1", "", "--all", "node1,metadata.name=x"} {
		s, l := sitetest.NewLivingSite(t, "cp1", "node1")
		_, err := Delete(t.Context(), s.Options, Deletion{Hosts: []string{name}, Unreachable: true}, sitetest.Yes)
		if err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("there is no host %q in the inventory, and no such node in the cluster", name)) ||
			len(l.Asked) > 0 {
			t.Errorf("%q: got %v, and it asked %q", name, err, l.Asked)
		}
	}
}

func TestDeleteIsAgreedTo(t *testing.T) {
	t.Parallel()
	s, l := sitetest.NewLivingSite(t, "cp1", "node1")
	no := errors.New("no")
	if _, err := Delete(t.Context(), s.Options, Deletion{Hosts: []string{"node1"}},
		func([]string) error { return no }); !errors.Is(err, no) || len(l.Asked) > 0 {
		t.Errorf("got %v, and it asked %q", err, l.Asked)
	}
	s.Options.DryRun = true
	if _, err := Delete(t.Context(), s.Options, Deletion{Hosts: []string{"node1"}}, sitetest.Yes); err != nil ||
		len(l.Asked) > 0 {
		t.Errorf("a dry run: %v, and it asked %q", err, l.Asked)
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
		"all that are none": {
			"", nil,
			"cp3 becomes a control plane; node2 becomes a worker; reg, cp1, cp2, node1 get it in /etc/hosts and, where they have one, in the balancer",
		},
		"the named": {
			"",
			[]string{"node1", "node2"},
			"node2 becomes a worker; reg, cp1, cp2, cp3, node1 get it in /etc/hosts and, where they have one, in the balancer",
		},
		"a node is down": {
			"node1",
			[]string{"node2"},
			"node2 becomes a worker; reg, cp1, cp2, cp3 get it in /etc/hosts and, where they have one, in the balancer; node1 is unreachable and stays unchanged: node1 (10.0.0.4:22): no route to host. Run kkbundle install when it is back",
		},
		"a new host is down": {
			"node2", nil,
			"error: node2 is not a node of the cluster and cannot be reached to become one: node2 (10.0.0.4:22): no route to host",
		},
		"nothing is new": {"", []string{"cp1"}, ""},
		"nobody knows it": {
			"",
			[]string{"node9"},
			`error: there is no host "node9" with a role in the inventory`,
		},
		"the first is down": {
			"cp1",
			[]string{"node2"},
			"node2 becomes a worker; reg, cp2, cp3, node1 get it in /etc/hosts and, where they have one, in the balancer; cp1 is unreachable and stays unchanged: cp1 (10.0.0.4:22): no route to host. Run kkbundle install when it is back",
		},
		"the registry is needed": {"reg", []string{"node2"}, "error: reg (10.0.0.4:22): no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := sitetest.NewLivingSite(t, "cp1", "cp2", "node1")
			s.Hosts["reg"].Put(t, task.StampDir+"/registry", "")
			s.Dialing(c.lost)
			stop := errors.New("stop")
			got := ""
			_, err := Add(t.Context(), s.Options, c.names, func(lines []string) error {
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

// TestAddRepeatsHook: a node that joined in a run that did not come to its end gets its scripts, and nothing else is done
// there. Scripts of another tool's are no such run.
func TestAddRepeatsHook(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingSite(t, "cp1", "cp2", "cp3", "node1", "node2")
	s.Hosts["reg"].Put(t, task.StampDir+"/registry", "")
	s.Options.Hooks = task.Hooks{
		Names: []string{"post_install.sh"}, Place: func(name string) string { return name },
		Read: func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil },
	}
	s.Hosts["node1"].Put(t, marks.Adding, "")
	s.Hosts["node2"].Put(t, engine.HooksOnHost+"/post_install.sh", "#!/bin/sh\n")
	got := ""
	_, err := Add(t.Context(), s.Options, nil, func(lines []string) error {
		got = strings.Join(lines, "; ")
		return nil
	})
	if want := "node1 has joined, and its scripts of post_install have not all run: they run"; err != nil || got != want {
		t.Errorf("got %q, want %q (%v)", got, want, err)
	}
	if got, want := s.States(), []string{"post_install@node1 changed"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if s.Hosts["node1"].Content(marks.Hooks+"/post_install.sh") == "" {
		t.Error("the script has not run")
	}
	if _, err := Add(t.Context(), s.Options, nil, func(lines []string) error {
		return fmt.Errorf("again: %q", lines)
	}); err != nil {
		t.Error(err)
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
			s, l := sitetest.NewLivingSite(t, "cp1", "node1")
			s.Hosts["reg"].Put(t, task.StampDir+"/registry", "")
			l.Nodes, l.Addresses = strings.Fields(c.nodes), map[string]string{"worker1": "10.0.0.21"}
			_, err := Add(t.Context(), s.Options, []string{"node1"}, sitetest.Yes)
			var nameless *begin.NamelessError
			if !errors.As(err, &nameless) || err.Error() != c.want || nameless.Hint() == "" {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestAddNodes adds a worker: the new host gets all tasks, the others those that tell of it.
func TestAddNodes(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingSite(t, "cp1", "cp2", "cp3", "node1")
	r := s.Run(t, nil)
	r.ChangeSite(func(s *task.Site) {
		s.Scope = task.Scope{Hosts: []string{"node2"}, SkipUnreachable: true, RunFollowers: true}
	})
	var done sync.Map
	fine := func(*task.Host) error { return nil }
	follows := sitetest.FlagTask("hosts-file", task.Each, &done, fine)
	follows.Follows = true
	if err := r.Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{
			follows,
			sitetest.FlagTask("join", task.Each, &done, fine),
		}}}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"hosts-file@cp1 changed", "hosts-file@cp2 changed", "hosts-file@cp3 changed", "hosts-file@node1 changed",
		"hosts-file@node2 changed",
		"hosts-file@reg changed", "join@node2 changed",
	}
	if diff := cmp.Diff(s.States(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
