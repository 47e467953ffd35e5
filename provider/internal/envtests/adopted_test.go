package envtests

import (
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// TestAdopted: a machine that kkbundle handover has written is ready without a run on its host, and its host is cleaned
// when it is deleted. A machine with the annotation of another one, as a template would give it, is provisioned.
func TestAdopted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(2, func(h *infrav1.KKHost) {
		if h.Name == "host1" {
			h.Spec.Consumer = &infrav1.Consumer{Cluster: "prod", Machine: "node1"}
			h.Finalizers = []string{infrav1.HostFinalizer}
		}
	})
	s.bundle()
	c := s.cluster("prod", true)
	s.program.with(s.address(1), func(h *fakeHost) { h.has = s.namespace + "/prod/node1" })
	adopted := func(_ *clusterv1.Machine, k *infrav1.KKMachine) {
		k.Annotations = map[string]string{infrav1.AdoptedAnnotation: "node1"}
	}
	s.machine(c, "node1", infrav1.RoleWorker, adopted, func(_ *clusterv1.Machine, k *infrav1.KKMachine) {
		k.Spec.HostName = "host1"
	})
	s.untilReady("node1")
	if i := s.instance("node1"); i.Status.State != infrav1.InstanceRunning || i.Annotations[infrav1.BegunAnnotation] == "" {
		t.Errorf("%v %+v", i.Annotations, i.Status)
	}
	if m := s.kkMachine("node1"); s.nodes.ids["node1"] != m.Spec.ProviderID || m.Spec.HostName != "host1" {
		t.Errorf("the node has %q, the machine %+v", s.nodes.ids, m.Spec)
	}
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.runs != 0 {
			t.Errorf("%d runs made the host a node that is one", h.runs)
		}
	})
	s.machine(c, "node2", infrav1.RoleWorker, adopted)
	s.untilReady("node2")
	s.program.with(s.address(2), func(h *fakeHost) {
		if h.runs != 1 {
			t.Errorf("%d runs for a machine with the annotation of another one", h.runs)
		}
	})
	s.delete("node1")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != "" || h.resets != 1 {
			t.Errorf("the host has %q after %d resets", h.has, h.resets)
		}
	})
	s.noFaults()
}
