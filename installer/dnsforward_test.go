//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/nodes"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// ourCorefile is that of kubeadm 1.34, shortened.
const ourCorefile = `.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
    }
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30
}
`

// A dnsCluster is a cluster with CoreDNS and its nodes. Recorded answers stand in for the API server: it only keeps
// them.
type dnsCluster struct {
	corefile string
	nodes    []corev1.Node
	restarts int
}

func newDNSCluster(t *testing.T, s *sitetest.Site, taints map[string][]corev1.Taint) *dnsCluster {
	t.Helper()
	d := &dnsCluster{corefile: ourCorefile}
	for _, h := range s.Options.Inventory.Hosts() {
		var n corev1.Node
		n.Name, n.Spec.Taints = h.Name, taints[h.Name]
		d.nodes = append(d.nodes, n)
		s.Hosts[h.Name].Stub(t, "systemctl", "exit 3") // systemd-resolved does not run
	}
	s.Hosts["cp1"].Answer("kubectl", d.kubectl)
	return d
}

func (d *dnsCluster) kubectl(_ context.Context, cmd host.Cmd) error {
	line := strings.Join(cmd.Args, " ")
	switch {
	case strings.Contains(line, " get nodes "):
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"items": d.nodes})
	case strings.Contains(line, " get configmap coredns "):
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"data": map[string]string{"Corefile": d.corefile}})
	case strings.Contains(line, " rollout restart deployment/coredns"):
		d.restarts++
	case strings.Contains(line, " patch configmap coredns "):
		_, text, _ := strings.Cut(line, "--patch=")
		var patch struct{ Data map[string]string }
		if err := json.Unmarshal([]byte(text), &patch); err != nil {
			return err
		}
		d.corefile = patch.Data["Corefile"]
	}
	return nil
}

// settle runs cluster-dns as a run does, and reports whether it changed something.
func settleDNS(s *sitetest.Site, t *testing.T) bool {
	t.Helper()
	cp1 := s.Run(t, nil).Hosts[0]
	step := addon.DNSTask()
	done, err := step.Done(t.Context(), cp1)
	if err != nil {
		t.Fatal(err)
	}
	if done {
		return false
	}
	if err := step.Do(t.Context(), cp1); err != nil {
		t.Fatal(err)
	}
	if again, err := step.Done(t.Context(), cp1); err != nil || !again {
		t.Errorf("a second run: %v, %v", again, err)
	}
	return true
}

func forwards(corefile string) bool {
	for line := range strings.Lines(corefile) {
		if strings.HasPrefix(strings.TrimSpace(line), "forward . /etc/resolv.conf") {
			return true
		}
	}
	return false
}

// TestForwardingComesBack holds that CoreDNS forwards again, with the operator's settings, once every host has a
// nameserver, and that its pods are replaced: a pod keeps the resolv.conf that it was started with.
func TestForwardingComesBack(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	d := newDNSCluster(t, s, nil)
	s.Join(t, "cp1", "node1")
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "search site.example\n")
	if !settleDNS(s, t) || forwards(d.corefile) {
		t.Fatalf("it still forwards:\n%s", d.corefile)
	}
	if d.restarts != 0 {
		t.Error("CoreDNS was restarted for nothing: it reloads its configuration")
	}
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "nameserver 10.0.0.53\n")
	if !settleDNS(s, t) || d.corefile != ourCorefile || d.restarts != 1 {
		t.Errorf("%d restarts, the Corefile is now:\n%s", d.restarts, d.corefile)
	}
	if settleDNS(s, t) {
		t.Error("a third run changes something")
	}
}

// TestForwardingOfTheOperatorStays holds that a Corefile without forwarding, or with the operator's own, is left alone.
func TestForwardingOfTheOperatorStays(t *testing.T) {
	t.Parallel()
	for _, text := range []string{".:53 {\n    errors\n}\n", ".:53 {\n    forward . 10.0.0.53\n}\n"} {
		for _, resolv := range []string{"nameserver 10.0.0.53\n", "\n"} {
			s := sitetest.NewSite(t, "cp1", "node1")
			d := newDNSCluster(t, s, nil)
			d.corefile = text
			s.Join(t, "cp1", "node1")
			s.Hosts["node1"].Put(t, "/etc/resolv.conf", resolv)
			if settleDNS(s, t) || d.corefile != text {
				t.Errorf("%q was changed to %q", text, d.corefile)
			}
		}
	}
}

// TestForwardingNeedsOnlyNodesOfCoreDNS holds that a node without a nameserver counts only if CoreDNS can run on it.
func TestForwardingNeedsOnlyNodesOfCoreDNS(t *testing.T) {
	t.Parallel()
	taint := func(key string, effect corev1.TaintEffect) map[string][]corev1.Taint {
		return map[string][]corev1.Taint{"node1": {{Key: key, Effect: effect}}}
	}
	for name, one := range map[string]struct {
		taints map[string][]corev1.Taint
		keeps  bool
	}{
		"a worker":                 {nil, false},
		"a node of its own use":    {taint("dedicated", corev1.TaintEffectNoSchedule), true},
		"a node that evicts pods":  {taint("dedicated", corev1.TaintEffectNoExecute), true},
		"a node that pods avoid":   {taint("dedicated", corev1.TaintEffectPreferNoSchedule), false},
		"a control plane":          {taint(kube.ControlPlaneLabel, corev1.TaintEffectNoSchedule), false},
		"a node that is drained":   {taint("node.kubernetes.io/unschedulable", corev1.TaintEffectNoSchedule), false},
		"a node that is not ready": {taint("node.kubernetes.io/not-ready", corev1.TaintEffectNoExecute), false},
	} {
		s := sitetest.NewSite(t, "cp1", "node1")
		d := newDNSCluster(t, s, one.taints)
		s.Join(t, "cp1", "node1")
		s.Hosts["node1"].Put(t, "/etc/resolv.conf", "\n")
		if settleDNS(s, t); forwards(d.corefile) != one.keeps {
			t.Errorf("%s without a nameserver: CoreDNS forwards %v", name, !one.keeps)
		}
	}
}

// TestForwardingIsJudgedOnAllNodes holds that nothing is put back while a node is not asked.
func TestForwardingIsJudgedOnAllNodes(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	d := newDNSCluster(t, s, nil)
	s.Join(t, "cp1", "node1")
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "\n")
	settleDNS(s, t)
	var other corev1.Node
	other.Name = "node2" // it is not connected
	d.nodes = append(d.nodes, other)
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "nameserver 10.0.0.53\n")
	if settleDNS(s, t) || forwards(d.corefile) {
		t.Errorf("it forwards:\n%s", d.corefile)
	}
}

// TestNodesAddKeepsForwarding holds that a host without a nameserver is refused while the cluster forwards, unless
// CoreDNS cannot run on it.
func TestNodesAddKeepsForwarding(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	d := newDNSCluster(t, s, nil)
	d.nodes = d.nodes[:1]
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "nameserver 127.0.0.1\n")
	r := s.Run(t, nil)
	err := addon.CheckNameservers(t.Context(), r.Hosts[0], r.Hosts[1:])
	if err == nil || !strings.Contains(err.Error(), "node1") || !strings.Contains(hintOf(err), "/etc/resolv.conf") {
		t.Errorf("got %v, %s", err, hintOf(err))
	}
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "nameserver 10.0.0.53\n")
	if err := addon.CheckNameservers(t.Context(), r.Hosts[0], r.Hosts[1:]); err != nil {
		t.Error(err)
	}
	s.Hosts["node1"].Put(t, "/etc/resolv.conf", "\n")
	r.Hosts[1].Taints = []manifest.Taint{{Key: "dedicated", Effect: "NoSchedule"}}
	if err := addon.CheckNameservers(t.Context(), r.Hosts[0], r.Hosts[1:]); err != nil {
		t.Errorf("with a taint: %v", err)
	}
	r.Hosts[1].Taints = nil
	d.corefile = ".:53 {\n}\n"
	if err := addon.CheckNameservers(t.Context(), r.Hosts[0], r.Hosts[1:]); err != nil {
		t.Errorf("in a cluster that does not forward: %v", err)
	}
}

// TestAddNodesRefusesAHostWithoutANameserver goes through the command: nothing is asked and nothing is changed.
func TestAddNodesRefusesAHostWithoutANameserver(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingSite(t, "cp1", "cp2", "node1")
	s.Hosts["reg"].Put(t, task.StampDir+"/registry", "")
	living, d := s.Hosts["cp1"].Commands["kubectl"], &dnsCluster{corefile: ourCorefile}
	s.Hosts["cp1"].Answer("kubectl", func(ctx context.Context, cmd host.Cmd) error {
		if strings.Contains(strings.Join(cmd.Args, " "), " get configmap coredns ") {
			return d.kubectl(ctx, cmd)
		}
		return living(ctx, cmd)
	})
	s.Hosts["node2"].Stub(t, "systemctl", "exit 3")
	s.Hosts["node2"].Put(t, "/etc/resolv.conf", "\n")
	_, err := nodes.Add(t.Context(), s.Options, []string{"node2"}, func([]string) error {
		t.Error("the operator was asked to agree")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "node2: no nameserver") {
		t.Errorf("got %v", err)
	}
}

func hintOf(err error) string {
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		return hint.Hint()
	}
	return ""
}
