package envtests

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

const (
	source     = "oci://registry.site/bundles/site:1.4.0"
	version    = "v1.36.3"
	privateKey = "PRIVATEKEYOFTHEHOSTS"
	token      = "abcdef.tokenofthecluster"
	pullSecret = "pullpasswordofthesite"
)

func local(name string) infrav1.LocalRef { return infrav1.LocalRef{Name: name} }

// hosts makes n hosts, with their login.
func (s *site) hosts(n int, edit ...func(*infrav1.KKHost)) {
	s.Helper()
	s.login()
	for i := range n {
		h := &infrav1.KKHost{ObjectMeta: s.meta(fmt.Sprintf("host%d", i+1)), Spec: infrav1.KKHostSpec{
			Address: s.address(i + 1), SSH: infrav1.SSH{SecretRef: local("login"), KnownHostsRef: ptr.To(local("keys"))},
		}}
		for _, e := range edit {
			e(h)
		}
		s.create(h)
	}
}

func (s *site) login() {
	s.Helper()
	s.create(&corev1.Secret{ObjectMeta: s.meta("login"), Data: map[string][]byte{infrav1.SecretPrivateKey: []byte(privateKey)}})
	s.create(&corev1.Secret{ObjectMeta: s.meta("keys"), Data: map[string][]byte{infrav1.SecretKnownHosts: []byte("10.0.0.1 ssh-ed25519 AAAA\n")}})
}

// address returns the address of a host: no two tests have the same.
func (s *site) address(n int) string {
	return fmt.Sprintf("10.%s.0.%d", strings.TrimPrefix(s.namespace, "site-"), n)
}

// bundle makes the KKBundle, and its Secret for the registry.
func (s *site) bundle() {
	s.Helper()
	s.program.bundle(source, version, "v1.35.4")
	s.create(&infrav1.KKBundle{ObjectMeta: s.meta("site"), Spec: infrav1.KKBundleSpec{Source: source}})
	s.create(&corev1.Secret{ObjectMeta: s.meta("registry"), Data: map[string][]byte{
		infrav1.SecretUsername: []byte("pull"), infrav1.SecretPassword: []byte(pullSecret), infrav1.SecretCA: []byte("CERT"),
	}})
}

// cluster makes a Cluster and its KKCluster, and plays Cluster API's part for both.
func (s *site) cluster(name string, initialized bool) *clusterv1.Cluster {
	s.Helper()
	c := &clusterv1.Cluster{ObjectMeta: s.meta(name), Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "KKCluster", Name: name},
		ClusterNetwork:    clusterv1.ClusterNetwork{Pods: clusterv1.NetworkRanges{CIDRBlocks: []string{"10.244.0.0/16"}}},
	}}
	s.create(c)
	k := &infrav1.KKCluster{ObjectMeta: s.meta(name), Spec: infrav1.KKClusterSpec{
		ControlPlaneEndpoint: infrav1.APIEndpoint{Host: "10.9.9.9"}, BundleRef: local("site"),
		Registry: infrav1.Registry{Address: "registry.site:5000", SecretRef: ptr.To(local("registry"))},
	}}
	k.Labels = map[string]string{clusterv1.ClusterNameLabel: name}
	s.own(c, k)
	s.create(k)
	s.initialize(c, initialized)
	return c
}

func (s *site) initialize(c *clusterv1.Cluster, initialized bool) {
	s.Helper()
	before := client.MergeFrom(c.DeepCopy())
	c.Status.Initialization = clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true), ControlPlaneInitialized: ptr.To(initialized)}
	if err := s.Status().Patch(s.Context(), c, before); err != nil {
		s.Fatal(err)
	}
}

func (s *site) own(owner, o client.Object) {
	s.Helper()
	if err := controllerutil.SetOwnerReference(owner, o, server.scheme); err != nil {
		s.Fatal(err)
	}
}

// machine makes a Machine with bootstrap data, and its KKMachine.
func (s *site) machine(c *clusterv1.Cluster, name string, role infrav1.Role, edit ...func(*clusterv1.Machine, *infrav1.KKMachine)) {
	s.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: c.Name, clusterv1.MachineDeploymentNameLabel: "workers"}
	if role == infrav1.RoleControlPlane {
		labels = map[string]string{clusterv1.ClusterNameLabel: c.Name, clusterv1.MachineControlPlaneLabel: "", clusterv1.MachineControlPlaneNameLabel: "cp"}
	}
	m := &clusterv1.Machine{ObjectMeta: s.meta(name), Spec: clusterv1.MachineSpec{
		ClusterName: c.Name, Version: version, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To(name + "-data")},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "KKMachine", Name: name},
	}}
	m.Labels = labels
	k := &infrav1.KKMachine{ObjectMeta: s.meta(name)}
	k.Labels = labels
	for _, e := range edit {
		e(m, k)
	}
	s.create(&corev1.Secret{ObjectMeta: s.meta(name + "-data"), Data: map[string][]byte{"value": []byte("#cloud-config\n# " + token), "format": []byte("cloud-config")}})
	s.create(m)
	s.own(m, k)
	s.create(k)
}

// ready is a site with hosts, a bundle and a cluster.
func readySite(s *site, n int) *clusterv1.Cluster {
	s.Helper()
	s.hosts(n)
	s.bundle()
	return s.cluster("prod", false)
}

func (s *site) host(name string) *infrav1.KKHost {
	s.Helper()
	var h infrav1.KKHost
	if err := s.Get(s.Context(), s.key(name), &h); err != nil {
		s.Fatal(err)
	}
	return &h
}

func (s *site) kkMachine(name string) *infrav1.KKMachine {
	s.Helper()
	var m infrav1.KKMachine
	if err := s.Get(s.Context(), s.key(name), &m); client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	return &m
}

func (s *site) instance(name string) *infrav1.KKInstance {
	s.Helper()
	var i infrav1.KKInstance
	if err := s.Get(s.Context(), s.key(name), &i); client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	return &i
}

func (s *site) untilReady(names ...string) {
	s.Helper()
	for _, name := range names {
		s.eventually("KKMachine "+name+" is ready", func() bool {
			m := s.kkMachine(name) // conditions are written before spec and status
			return conditions.IsTrue(m, infrav1.ReadyCondition) && m.Spec.ProviderID != "" && ptr.Deref(m.Status.Initialization.Provisioned, false)
		})
	}
}

// delete deletes a KKMachine, as Cluster API does, and waits until it is gone.
func (s *site) delete(name string) {
	s.Helper()
	s.beginDelete(name)
	s.untilGone(name)
}

func (s *site) beginDelete(name string) {
	s.Helper()
	if err := s.Delete(s.Context(), &infrav1.KKMachine{ObjectMeta: s.meta(name)}); client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
}

func (s *site) untilGone(name string) {
	s.Helper()
	s.eventually("KKMachine "+name+" is gone", func() bool {
		return apierrors.IsNotFound(s.Get(s.Context(), s.key(name), &infrav1.KKMachine{}))
	})
}

// condition waits for a condition of an object with this reason, whose message has all these words.
func (s *site) condition(what string, get func() conditions.Getter, kind, reason string, words ...string) {
	s.Helper()
	var c *metav1.Condition
	s.eventually(fmt.Sprintf("%s: %s has the reason %s and %q", what, kind, reason, words), func() bool {
		if c = conditions.Get(get(), kind); c == nil || c.Status == metav1.ConditionTrue || c.Reason != reason {
			return false
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return false
			}
		}
		return true
	})
}

// event waits for an event of an object whose note has these words.
func (s *site) event(name string, words ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("an event of %s with %q", name, words), func() bool {
		var all eventsv1.EventList
		if err := s.List(s.Context(), &all, client.InNamespace(s.namespace)); err != nil {
			s.Fatal(err)
		}
	next:
		for _, e := range all.Items {
			if e.Regarding.Name != name {
				continue
			}
			for _, w := range words {
				if !strings.Contains(e.Note+" "+e.Reason, w) {
					continue next
				}
			}
			return true
		}
		return false
	})
}

// noFaults: nothing happened on a host that never may.
func (s *site) noFaults() {
	s.Helper()
	s.program.mu.Lock()
	defer s.program.mu.Unlock()
	for _, f := range s.program.faults {
		s.Error(f)
	}
}
