package envtests

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

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

// TestHandedOver: the API server takes the objects of kkbundle handover, and a manager is at no host for them, neither
// while the Cluster is paused nor afterwards.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.login()
	s.bundle()
	data, err := os.ReadFile("../../../installer/handover/testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range strings.Split(string(data), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetNamespace(s.namespace)
		s.create(o)
	}
	hosts := map[string]string{"cp1": "10.0.0.3", "node1": "192.0.2.4"}
	for name, address := range hosts {
		s.program.with(address, func(h *fakeHost) { h.has = s.namespace + "/site/" + name })
		s.eventually(name+" is paused", func() bool { return conditions.IsTrue(s.kkMachine(name), infrav1.PausedCondition) })
		if i := s.instance(name); i.Name != "" {
			t.Errorf("%s has an instance while the Cluster is paused", name)
		}
		// Cluster API's part
		var m clusterv1.Machine
		if err := s.Get(t.Context(), s.key(name), &m); err != nil {
			t.Fatal(err)
		}
		k := s.kkMachine(name)
		before := client.MergeFrom(k.DeepCopy())
		s.own(&m, k)
		if err := s.Patch(t.Context(), k, before); err != nil {
			t.Fatal(err)
		}
	}
	var c clusterv1.Cluster
	if err := s.Get(t.Context(), s.key("site"), &c); err != nil {
		t.Fatal(err)
	}
	s.initialize(&c, true)
	before := client.MergeFrom(c.DeepCopy())
	c.Spec.Paused = ptr.To(false)
	if err := s.Patch(t.Context(), &c, before); err != nil {
		t.Fatal(err)
	}
	s.untilReady("cp1", "node1")
	for name, address := range hosts {
		s.program.with(address, func(h *fakeHost) {
			if h.runs+h.resets != 0 {
				t.Errorf("%d runs on %s", h.runs+h.resets, name)
			}
		})
		s.eventually(name+" is in use", func() bool { return s.host(name).Status.State == infrav1.HostInUse })
	}
	s.delete("node1")
	s.eventually("the host of node1 is free", func() bool { return s.host("node1").Status.State == infrav1.HostAvailable })
	s.noFaults()
}
