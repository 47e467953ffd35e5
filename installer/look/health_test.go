//go:build linux

package look

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// answerWith makes kubectl on cp1 answer with the objects of a survey. An API server of its own has no kubelet that
// would set the conditions of pods, so recorded answers stand in for the API server.
func answerWith(s *sitetest.Site, t *testing.T, want *health.Survey) {
	t.Helper()
	typed := func(o kube.Object, kind string) any {
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		d := kube.Document{}
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatal(err)
		}
		kind, name, _ := strings.Cut(kind, "/")
		group := map[string]string{
			"Deployment": "apps/v1", "DaemonSet": "apps/v1", "Lease": "coordination.k8s.io/v1",
			"ConfigMap": "v1",
		}[kind]
		if group == "" {
			group = "rbac.authorization.k8s.io/v1"
		}
		d["apiVersion"], d["kind"], d["metadata"] = group, kind, kube.Document{"name": name}
		return d
	}
	s.Hosts["cp1"].Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		line := strings.Join(cmd.Args, " ")
		if !strings.Contains(line, "--output=json") {
			return nil
		}
		var items []any
		switch {
		case strings.Contains(line, " get nodes "):
			for _, n := range want.Nodes {
				items = append(items, n)
			}
		case strings.Contains(line, " get pods "):
			for _, p := range want.Pods {
				items = append(items, p)
			}
		case strings.Contains(line, "--ignore-not-found"):
			for name, o := range want.Objects {
				items = append(items, typed(o, name))
			}
		}
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"items": items})
	})
}

// judged returns the findings about nodes and pods of the cluster that kubectl on cp1 describes.
func judged(s *sitetest.Site, t *testing.T, rule task.ClusterRule) string {
	t.Helper()
	r := s.Run(t, nil)
	r.Rule = rule
	found, err := health.NewSurvey(t.Context(), r.Site, r.Hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	return wrong(slices.DeleteFunc(found.Findings(), func(f report.Finding) bool {
		return !slices.Contains([]string{
			health.CheckNodes, health.CheckPods, "coredns", "kube-proxy",
			"control-plane-pods",
		}, f.ID)
	}))
}

// setNotReady makes a node not ready.
func setNotReady(n *corev1.Node, message string) {
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Message: message,
	}}
}

// TestStatusJudgesPodsWithoutAClusterFile holds that the controller manager and CoreDNS, not ready for ten minutes,
// fail a status without a cluster file. The counts of CoreDNS' Deployment are then those of the controller manager's
// last work.
func TestStatusJudgesPodsWithoutAClusterFile(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name, want string
		network    manifest.NetworkType
		rule       task.ClusterRule
		spoil      func(s *health.Survey)
	}{
		{
			"no cluster file", "verify-pods cp1 failed, coredns failed", manifest.NetworkNone, task.AnyCluster,
			func(s *health.Survey) {
				stop(s, 10*time.Minute, "kube-controller-manager-cp1", "coredns-a", "coredns-b")
			},
		},
		{
			"no cluster file, node not ready", "verify-nodes node1 failed, coredns warning", manifest.NetworkNone,
			task.AnyCluster,
			func(s *health.Survey) { setNotReady(&s.Nodes[1], "Kubelet stopped posting node status.") },
		},
		{
			"with a cluster file", "verify-pods cp1 failed, coredns failed", manifest.NetworkFlannel, task.SameCluster,
			func(s *health.Survey) {
				stop(s, 10*time.Minute, "kube-controller-manager-cp1", "coredns-a", "coredns-b")
			},
		},
		{
			"the operator's pod network is there", "coredns failed", manifest.NetworkNone, task.SameCluster,
			func(s *health.Survey) { stop(s, 10*time.Minute, "coredns-a", "coredns-b") },
		},
		{
			"the operator's pod network is to come",
			"verify-nodes cp1 warning, verify-nodes node1 warning, coredns warning", manifest.NetworkNone,
			task.SameCluster,
			func(s *health.Survey) {
				for i := range s.Nodes {
					setNotReady(&s.Nodes[i],
						"container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized")
				}
				stop(s, 10*time.Minute, "coredns-a", "coredns-b")
			},
		},
		{
			"the control plane needs no pod network", "verify-pods cp1 failed", manifest.NetworkNone, task.SameCluster,
			func(s *health.Survey) { stop(s, 10*time.Minute, "kube-controller-manager-cp1") },
		},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			want := healthy()
			want.Now = time.Now()
			one.spoil(want)
			s := sitetest.NewSite(t, "cp1", "node1")
			s.Options.Cluster.CNI.Type = one.network
			answerWith(s, t, want)
			if got := judged(s, t, one.rule); got != one.want {
				t.Errorf("got %q, want %q", got, one.want)
			}
		})
	}
}

// TestStatusWaits holds that a status with a time limit looks again, and sees a host that came back meanwhile.
func TestStatusWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, statusWaits) // a look may take as long as the machine wants
}

func statusWaits(t *testing.T) {
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Dialing("node1")
	lost := s.Options.Dial
	looks := 0
	s.Options.Dial = func(ctx context.Context, h manifest.Host) (host.Host, error) {
		if looks == 0 {
			return lost(ctx, h)
		}
		return s.Hosts[h.Name], nil
	}
	s.Options.Helper = func(string) ([]byte, error) { return []byte("helper"), nil }
	for _, h := range s.Hosts {
		h.Answer("uname", func(_ context.Context, cmd host.Cmd) error {
			_, err := cmd.Stdout.Write([]byte("x86_64\n"))
			return err
		})
	}
	status, err := Status(t.Context(), StatusOptions{
		Options: s.Options, Wait: statusPause + time.Second,
		Waiting: func(list report.Findings) {
			if looks++; looks == 1 {
				if got := wrong(list); !strings.Contains(got, "host-reachable node1 failed") {
					t.Errorf("the first look: %s", got)
				}
			}
		},
	})
	if got := wrong(status.Findings); err != nil || looks != 2 || strings.Contains(got, "host-reachable") ||
		status.Healthy {
		t.Errorf("%d looks that were not the last, %v: %s", looks, err, got)
	}
}
