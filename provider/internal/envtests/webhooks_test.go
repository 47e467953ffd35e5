package envtests

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// refused expects that an error has all words.
func refused(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s was accepted", what)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q lacks %q", what, err, w)
		}
	}
}

// TestRefused: what is wrong is refused with the field and the remedy, through the API server.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(1)
	host := func(name string, edit func(*infrav1.KKHostSpec)) *infrav1.KKHost {
		h := &infrav1.KKHost{ObjectMeta: s.meta(name), Spec: infrav1.KKHostSpec{Address: s.address(9), SSH: infrav1.SSH{SecretRef: local("login"), TrustOnFirstUse: true}}}
		edit(&h.Spec)
		return h
	}
	bundle := func(source string) *infrav1.KKBundle {
		return &infrav1.KKBundle{ObjectMeta: s.meta("b"), Spec: infrav1.KKBundleSpec{Source: source}}
	}
	cluster := func(edit func(*infrav1.KKClusterSpec)) *infrav1.KKCluster {
		c := &infrav1.KKCluster{ObjectMeta: s.meta("c"), Spec: infrav1.KKClusterSpec{BundleRef: local("site"), Registry: infrav1.Registry{Address: "registry.site:5000"}}}
		edit(&c.Spec)
		return c
	}
	template := func(edit func(*infrav1.KKMachineSpec)) *infrav1.KKMachineTemplate {
		m := &infrav1.KKMachineTemplate{ObjectMeta: s.meta("t")}
		edit(&m.Spec.Template.Spec)
		return m
	}
	for _, c := range []struct {
		o     client.Object
		words []string
	}{
		{host("a", func(h *infrav1.KKHostSpec) { h.Address = "10.0.0.1:22" }), []string{"spec.address", "without a port"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.Address = "Node_1" }), []string{"spec.address", "a name in lower case"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.Address = "node1.site" }), []string{"spec.internalIPv4", "address is a name", "internalIPv6"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.InternalIPv4 = "fd00::1" }), []string{"spec.internalIPv4", "10.0.0.7"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.SSH.TrustOnFirstUse = false }), []string{"spec.ssh.knownHostsRef", "could not be checked", "trustOnFirstUse: true"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.SSH.KnownHostsRef = ptr.To(local("keys")) }), []string{"spec.ssh.trustOnFirstUse", "remove one of both"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.SSH.Bastions = []infrav1.Bastion{{Address: "jump:22"}} }), []string{"spec.ssh.bastions[0].address"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.SSH.SecretRef = infrav1.LocalRef{} }), []string{"spec.ssh.secretRef"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.SSH.User = "-oProxyCommand=x" }), []string{"spec.ssh.user"}},
		{host("a", func(h *infrav1.KKHostSpec) { h.Roles = []infrav1.Role{"etcd"} }), []string{"spec.roles", `"control-plane", "worker"`}},
		{host("a", func(h *infrav1.KKHostSpec) { h.Address = "::ffff:" + s.address(1) }), []string{"spec.address", "KKHost host1 in namespace " + s.namespace, "one pool only"}},
		{bundle("registry.site/site:1"), []string{"spec.source", "oci://HOST/PATH:TAG"}},
		{bundle("oci://"), []string{"spec.source"}},
		{bundle("file:///../etc/passwd"), []string{"spec.source", "file:///NAME.kkb"}},
		{bundle("https://me:word@files.site/a.kkb"), []string{"spec.source", "without a login"}},
		{cluster(func(c *infrav1.KKClusterSpec) { c.ControlPlaneEndpoint.Port = 6443 }), []string{"spec.controlPlaneEndpoint.host", "set host"}},
		{cluster(func(c *infrav1.KKClusterSpec) { c.Registry.Address = "https://registry.site" }), []string{"spec.registry.address", "HOST[:PORT][/PATH]"}},
		{cluster(func(c *infrav1.KKClusterSpec) { c.BundleRef = infrav1.LocalRef{} }), []string{"spec.bundleRef"}},
		{template(func(m *infrav1.KKMachineSpec) { m.HostName = "host1" }), []string{"spec.template.spec.hostName", "use hostSelector"}},
		{template(func(m *infrav1.KKMachineSpec) { m.ProviderID = "kk:///x" }), []string{"spec.template.spec.providerID"}},
		{template(func(m *infrav1.KKMachineSpec) {
			m.HostSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		}), []string{"spec.template.spec.hostSelector", "Near"}},
	} {
		err := s.Create(t.Context(), c.o)
		refused(t, c.words[0], err, c.words...)
		if err != nil && strings.Contains(err.Error(), "word@") {
			t.Errorf("a password is in the message: %s", err)
		}
	}
	h := s.host("host1")
	if len(h.Spec.Roles) != 2 || h.Spec.SSH.User != "root" || h.Spec.SSH.Port != 22 || h.Spec.Arch != "amd64" {
		t.Errorf("defaults: %+v", h.Spec)
	}
}

// TestChanges: what hosts were made for never changes.
func TestChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	try := func(what string, o client.Object, name string, change func(), words ...string) {
		t.Helper()
		for { // the manager writes, too
			if err := s.Get(t.Context(), s.key(name), o); err != nil {
				t.Fatal(err)
			}
			change()
			if err := s.Update(t.Context(), o); err == nil || !strings.Contains(err.Error(), "the object has been modified") {
				refused(t, what, err, words...)
				return
			}
		}
	}
	h, m, i, k := &infrav1.KKHost{}, &infrav1.KKMachine{}, &infrav1.KKInstance{}, &infrav1.KKCluster{}
	try("another consumer", h, "host1", func() { h.Spec.Consumer.Machine = "other" }, "spec.consumer", "KKMachine m of cluster prod has the host")
	try("no consumer", h, "host1", func() { h.Spec.Consumer = nil }, "spec.consumer", "not cleaned after KKMachine m of cluster prod", "delete its Machine")
	try("another address", h, "host1", func() { h.Spec.Address = s.address(7) }, "spec.address", "has to be cleaned", "delete the Machine first")
	try("another host", m, "m", func() { m.Spec.HostName = "host2" }, "replace the Machine")
	try("another providerID", m, "m", func() { m.Spec.ProviderID = "kk:///x" }, "replace the Machine")
	try("another instance", i, "m", func() { i.Spec.HostName = "host2" }, "replace the Machine")
	try("another endpoint", k, "prod", func() { k.Spec.ControlPlaneEndpoint.Host = "10.9.9.8" }, "spec.controlPlaneEndpoint", "10.9.9.9:6443")
	template := &infrav1.KKMachineTemplate{ObjectMeta: s.meta("t")}
	template.Spec.Template.Spec.Roles = []infrav1.Role{infrav1.RoleControlPlane}
	s.create(template)
	try("a template", template, "t", func() { template.Spec.Template.Spec.Roles = []infrav1.Role{infrav1.RoleWorker} }, "spec.template.spec", "make another one")
	// The topology controller's dry runs may change it, or ClusterClass would not work.
	if err := s.Get(t.Context(), s.key("t"), template); err != nil {
		t.Fatal(err)
	}
	template.Spec.Template.Spec.Roles = []infrav1.Role{infrav1.RoleWorker}
	refused(t, "a dry run of somebody else", s.Update(t.Context(), template, client.DryRunAll), "make another one")
	template.Annotations = map[string]string{clusterv1.TopologyDryRunAnnotation: ""}
	if err := s.Update(t.Context(), template, client.DryRunAll); err != nil {
		t.Errorf("a dry run of the topology controller: %v", err)
	}
}

// TestVersions: a version that is in no bundle is refused where people name it, with what there is. Other clusters are none of our business.
func TestVersions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 0)
	s.eventually("the bundle is read", func() bool {
		var b infrav1.KKBundle
		return s.Get(t.Context(), s.key("site"), &b) == nil && conditions.IsTrue(&b, infrav1.ReadyCondition)
	})
	deployment := func(cluster, version string) *clusterv1.MachineDeployment {
		ref := clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "KKMachineTemplate", Name: "t"}
		return &clusterv1.MachineDeployment{ObjectMeta: s.meta("md-" + cluster), Spec: clusterv1.MachineDeploymentSpec{ClusterName: cluster, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: clusterv1.MachineTemplateSpec{
			ObjectMeta: clusterv1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: clusterv1.MachineSpec{ClusterName: cluster, Version: version, InfrastructureRef: ref, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("x")}},
		}}}
	}
	plane := func(name, version string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
			"spec": map[string]any{"version": version, "replicas": int64(1), "machineTemplate": map[string]any{"spec": map[string]any{
				"infrastructureRef": map[string]any{"apiGroup": infrav1.GroupVersion.Group, "kind": "KKMachineTemplate", "name": "t"},
			}}},
		}}
		u.SetNamespace(s.namespace)
		u.SetName(name)
		u.SetLabels(map[string]string{clusterv1.ClusterNameLabel: c.Name})
		return u
	}
	topology := func(name, version string) *clusterv1.Cluster {
		return &clusterv1.Cluster{ObjectMeta: s.meta(name), Spec: clusterv1.ClusterSpec{
			InfrastructureRef: c.Spec.InfrastructureRef,
			Topology:          clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: "x"}, Version: version},
		}}
	}
	const has = "which has v1.35.4, v1.36.3"
	refused(t, "MachineDeployment", s.Create(t.Context(), deployment("prod", "v1.37.0")), "MachineDeployment md-prod: spec.template.spec.version: v1.37.0", "KKBundle site (site 1.4.0)", has, "name a version")
	refused(t, "KubeadmControlPlane", s.Create(t.Context(), plane("cp", "v1.34.0")), "KubeadmControlPlane cp: spec.version: v1.34.0", has)
	refused(t, "Cluster", s.Create(t.Context(), topology("other", "v1.37.0")), "Cluster other: spec.topology.version: v1.37.0", has)
	for _, o := range []client.Object{deployment("prod", "v1.36.3"), plane("cp", "v1.36.3"), topology("other", "v1.35.4"), deployment("nobodys", "v1.30.0")} {
		s.create(o)
	}
	md := &clusterv1.MachineDeployment{}
	if err := s.Get(t.Context(), s.key("md-prod"), md); err != nil {
		t.Fatal(err)
	}
	md.Spec.Template.Spec.Version = "v1.38.0"
	refused(t, "an upgrade", s.Update(t.Context(), md), "v1.38.0", has)
	// Another bundle comes: what runs already may be edited all the same.
	s.program.bundle("oci://registry.site/bundles/site:1.5.0", "v1.37.0")
	b := &infrav1.KKBundle{}
	s.edit(b, "site", func() { b.Spec.Source = "oci://registry.site/bundles/site:1.5.0" })
	s.eventually("the other bundle is read", func() bool { return s.Get(t.Context(), s.key("site"), b) == nil && len(b.Status.Versions) == 1 })
	s.edit(md, "md-prod", func() { md.Spec.Replicas = ptr.To[int32](3) })
}

// warned makes the site's client keep the warnings of the API server.
func (s *site) warned() *warnings {
	s.Helper()
	var got warnings
	conf := rest.CopyConfig(server.config)
	conf.WarningHandler = &got
	var err error
	if s.Client, err = client.New(conf, client.Options{Scheme: server.scheme}); err != nil {
		s.Fatal(err)
	}
	return &got
}

// TestEndpointOfHost: control planes are not replaced where the endpoint is the address of a host of the cluster.
func TestEndpointOfHost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(1, func(h *infrav1.KKHost) { h.Spec.InternalIPv4 = "10.9.9.9" }) // as the cluster's endpoint
	s.bundle()
	s.eventually("the manager knows the host", func() bool { return s.host("host1").Status.State == infrav1.HostAvailable })
	said := s.warned()
	c := s.cluster("prod", true)
	if len(said.texts) != 1 || !strings.Contains(said.texts[0], "10.9.9.9 is the address of KKHost host1: ") {
		t.Errorf("%q", said.texts)
	}
	s.machine(c, "m", infrav1.RoleControlPlane)
	s.untilReady("m")
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
		"spec": map[string]any{"version": "v1.35.4", "replicas": int64(1), "machineTemplate": map[string]any{"spec": map[string]any{
			"infrastructureRef": map[string]any{"apiGroup": infrav1.GroupVersion.Group, "kind": "KKMachineTemplate", "name": "t"},
		}}},
	}}
	u.SetNamespace(s.namespace)
	u.SetName("cp")
	u.SetLabels(map[string]string{clusterv1.ClusterNameLabel: c.Name})
	s.create(u)
	edit := func(value any, fields ...string) error {
		t.Helper()
		if err := errors.Join(s.Get(t.Context(), s.key("cp"), u), unstructured.SetNestedField(u.Object, value, fields...)); err != nil {
			t.Fatal(err)
		}
		return s.Update(t.Context(), u)
	}
	want := []string{"the endpoint of KKCluster prod is the address of KKHost host1 (10.9.9.9)", "a balancer's address"}
	etcd := map[string]any{"local": map[string]any{"imageTag": "3.6.13-0"}}
	refused(t, "a version", edit(version, "spec", "version"), append(want, "KubeadmControlPlane cp: spec.version: ")...)
	refused(t, "etcd", edit(etcd, "spec", "kubeadmConfigSpec", "clusterConfiguration", "etcd"), append(want, "cp: spec.kubeadmConfigSpec.clusterConfiguration: ")...)
	if err := edit(int64(3), "spec", "replicas"); err != nil {
		t.Errorf("more control planes: %v", err)
	}
}

// warnings keeps the warnings of the API server.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

// TestBundleWithoutVersion: another bundle may be named, with a warning if it lacks a version that Machines have.
func TestBundleWithoutVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.machine(readySite(s, 1), "m", infrav1.RoleWorker)
	for name, versions := range map[string][]string{"next": {"v1.37.0"}, "both": {version, "v1.37.0"}} {
		address := "oci://registry.site/bundles/" + name + ":1.5.0"
		s.program.bundle(address, versions...)
		s.create(&infrav1.KKBundle{ObjectMeta: s.meta(name), Spec: infrav1.KKBundleSpec{Source: address}})
		s.eventually("the bundle is read", func() bool {
			var b infrav1.KKBundle
			return s.Get(t.Context(), s.key(name), &b) == nil && conditions.IsTrue(&b, infrav1.ReadyCondition)
		})
	}
	got := s.warned()
	k := &infrav1.KKCluster{}
	s.edit(k, "prod", func() { k.Spec.BundleRef = local("both") })
	if len(got.texts) > 0 {
		t.Errorf("a bundle with the version: %q", got.texts)
	}
	s.edit(k, "prod", func() { k.Spec.BundleRef = local("next") })
	const want = "1 Machines have version v1.36.3, which is not in KKBundle next (v1.37.0)"
	isOther := func(text string) bool {
		return !strings.Contains(text, want) || !strings.Contains(text, "kubernetes.upgradeFrom: v1.36.3")
	}
	if len(got.texts) == 0 || slices.ContainsFunc(got.texts, isOther) { // an update that met another one is sent again
		t.Errorf("want %q, got %q", want, got.texts)
	}
}

// TestTemplates: the templates are accepted by the API server and the webhooks, when their variables are filled in.
func TestTemplates(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.program.bundle("oci://registry.site:5000/bundles/site:1.4.0", version)
	files, err := filepath.Glob("../../templates/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.SplitSeq(filled(strings.TrimSuffix(filepath.Base(file), ".yaml"), string(data)), "\n---\n") {
			u := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict([]byte(text), &u.Object); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, text)
			}
			u.SetNamespace(s.namespace)
			if u.GetKind() == "KKHost" {
				spec := u.Object["spec"].(map[string]any)
				spec["address"] = strings.Replace(spec["address"].(string), "192.168.", "10."+strings.TrimPrefix(s.namespace, "site-")+".", 1)
			}
			if err := s.Create(t.Context(), u, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s: %s %s: %v", file, u.GetKind(), u.GetName(), err)
			}
		}
	}
}

// filled replaces clusterctl's variables.
func filled(cluster, text string) string {
	for {
		before, rest, ok := strings.Cut(text, "${")
		if !ok {
			return text
		}
		name, after, _ := strings.Cut(rest, "}")
		name, value, _ := strings.Cut(name, ":=")
		if v, ok := map[string]string{"CLUSTER_NAME": cluster, "KUBERNETES_VERSION": version, "CONTROL_PLANE_ENDPOINT": "192.168.0.11", "REGISTRY": "registry.site:5000"}[name]; ok {
			value = v
		}
		text = before + value + after
	}
}
