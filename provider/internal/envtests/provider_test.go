package envtests

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

const blockMove = "clusterctl.cluster.x-k8s.io/block-move"

// TestMachine: a machine takes a host, its phases are seen, clusterctl cannot move it meanwhile, no secret is where it could be read, and a
// deleted machine leaves the host clean and in the pool.
func TestMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	goOn := make(chan struct{})
	s.program.with(s.address(1), func(h *fakeHost) {
		h.on = func(ctx context.Context, _ *fakeHost, verb, phase string) error {
			if verb == "provision" && phase == hosts.PhaseBinary {
				<-goOn
			}
			return nil
		}
	})
	s.machine(c, "prod-cp-1", infrav1.RoleControlPlane)
	s.condition("at the third phase", func() conditions.Getter { return s.instance("prod-cp-1") }, infrav1.BinaryCondition, infrav1.RunningReason, "host1")
	i := s.instance("prod-cp-1")
	if !conditions.IsTrue(i, infrav1.BootstrapCondition) || !conditions.IsTrue(i, infrav1.RepositoryCondition) || !conditions.IsFalse(i, infrav1.ProvisioningCondition) || i.Status.State != infrav1.InstanceBootstrapping {
		t.Errorf("phases: %+v", i.Status)
	}
	if _, ok := i.Annotations[blockMove]; !ok {
		t.Error("clusterctl could move the instance while its host is worked on")
	}
	s.condition("the machine says so", func() conditions.Getter { return s.kkMachine("prod-cp-1") }, infrav1.ReadyCondition, infrav1.RunningReason, "Binary")
	if m := s.kkMachine("prod-cp-1"); m.Spec.ProviderID != "" || m.Status.Initialization.Provisioned != nil || !strings.Contains(conditions.GetMessage(m, infrav1.ReadyCondition), "Binary") {
		t.Errorf("too early: %+v %+v", m.Spec, m.Status)
	}
	close(goOn)
	s.untilReady("prod-cp-1")
	m := s.kkMachine("prod-cp-1")
	if m.Spec.ProviderID != "kk:///"+s.namespace+"/prod-cp-1" || m.Spec.HostName != "host1" || !ptr.Deref(m.Status.Initialization.Provisioned, false) || len(m.Status.Addresses) != 2 {
		t.Errorf("%+v %+v", m.Spec, m.Status)
	}
	if s.nodes.ids["prod-cp-1"] != m.Spec.ProviderID {
		t.Errorf("the node has %q", s.nodes.ids)
	}
	i = s.instance("prod-cp-1")
	if _, ok := i.Annotations[blockMove]; ok || i.Status.State != infrav1.InstanceRunning || i.Spec.PodCIDR != "10.244.0.0/16" {
		t.Errorf("%v %+v", i.Annotations, i.Status)
	}
	s.event("prod-cp-1", "took KKHost host1")
	s.event("prod-cp-1", "host host1 runs Kubernetes "+version)
	s.eventually("host1 is in use", func() bool { return s.host("host1").Status.State == infrav1.HostInUse })
	for _, name := range []string{"login", "keys"} {
		var secret corev1.Secret
		if err := s.Get(t.Context(), s.key(name), &secret); err != nil || !controllerutil.ContainsFinalizer(&secret, infrav1.LoginFinalizer) {
			t.Errorf("Secret %s is not held: %v", name, err)
		}
	}
	s.noSecrets()
	s.delete("prod-cp-1")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != "" || h.resets != 1 {
			t.Errorf("the host has %q after %d resets", h.has, h.resets)
		}
	})
	s.eventually("host1 is free", func() bool {
		h := s.host("host1")
		return h.Status.State == infrav1.HostAvailable && h.Spec.Consumer == nil && len(h.Finalizers) == 0 && h.Annotations[infrav1.LastOwnerAnnotation] == "prod/cp"
	})
	s.eventually("the login is let go", func() bool {
		var secret corev1.Secret
		return s.Get(t.Context(), s.key("login"), &secret) == nil && len(secret.Finalizers) == 0
	})
	s.event("host1", "free again after cluster prod")
	s.noFaults()
}

// noSecrets: no secret is among arguments, in an object that is no Secret, or in the log.
func (s *site) noSecrets() {
	s.Helper()
	var seen strings.Builder
	s.program.mu.Lock()
	for _, c := range s.program.calls {
		seen.WriteString(strings.Join(c.args, " "))
		seen.WriteString(c.files["inventory.yaml"])
	}
	if len(s.program.calls) == 0 || s.program.calls[0].files["host-key"] != privateKey || s.program.calls[0].files["registry-password"] != pullSecret {
		s.Errorf("the run has no secrets: %v", s.program.calls)
	}
	s.program.mu.Unlock()
	for _, l := range []client.ObjectList{&infrav1.KKHostList{}, &infrav1.KKMachineList{}, &infrav1.KKInstanceList{}, &infrav1.KKBundleList{}, &infrav1.KKClusterList{}, &corev1.EventList{}} {
		if err := s.List(s.Context(), l, client.InNamespace(s.namespace)); err != nil {
			s.Fatal(err)
		}
		data, err := json.Marshal(l)
		if err != nil {
			s.Fatal(err)
		}
		seen.Write(data)
	}
	seen.WriteString(logs.String())
	for _, secret := range []string{privateKey, token, pullSecret} {
		if strings.Contains(seen.String(), secret) {
			s.Errorf("%s can be read", secret)
		}
	}
}

// TestOneHostTwoClusters: of many machines of two clusters that want a host, exactly one gets it. The next one gets it when it is clean.
func TestOneHostTwoClusters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(1)
	s.bundle()
	var names []string
	for n, c := range []*clusterv1.Cluster{s.cluster("blue", true), s.cluster("green", true)} {
		for k := range 3 {
			names = append(names, fmt.Sprintf("%s-%d", c.Name, k))
			_ = n
			s.machine(c, names[len(names)-1], infrav1.RoleWorker)
		}
	}
	for left := slices.Clone(names); len(left) > 0; {
		var has string
		s.eventually("a machine is ready", func() bool {
			has = ""
			for _, name := range left {
				if conditions.IsTrue(s.kkMachine(name), infrav1.ReadyCondition) {
					has = name
				}
			}
			return has != ""
		})
		left = slices.DeleteFunc(left, func(name string) bool { return name == has })
		for _, name := range left {
			s.condition(name, func() conditions.Getter { return s.kkMachine(name) }, infrav1.HostClaimedCondition, infrav1.NoHostReason, "1 in use", "add a KKHost")
			if s.instance(name).Name != "" {
				t.Errorf("%s works on a host that it does not have", name)
			}
		}
		s.delete(has)
	}
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.runs != len(names) || h.resets != len(names) || h.has != "" {
			t.Errorf("%+v", h)
		}
	})
	s.noFaults()
}

// TestKilled kills the manager in every phase of a machine's life and starts another one: the machine becomes ready, and is cleaned, all the
// same, and nobody else gets the host.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, at := range append(hosts.Phases(), "reset") {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c := readySite(s, 2)
			reached := make(chan struct{}, 1)
			first := true
			for n := range 2 {
				s.program.with(s.address(n+1), func(h *fakeHost) {
					h.on = func(ctx context.Context, _ *fakeHost, verb, phase string) error {
						if phase == "" {
							phase = verb
						}
						s.program.mu.Lock()
						stop := first && phase == at
						first = first && !stop
						s.program.mu.Unlock()
						if stop {
							reached <- struct{}{}
							<-ctx.Done()
						}
						return nil
					}
				})
			}
			s.machine(c, "m", infrav1.RoleWorker)
			if at == "reset" {
				s.untilReady("m")
				s.beginDelete("m")
			}
			<-reached
			s.kill()
			s.start()
			if at != "reset" {
				s.untilReady("m")
				if i := s.instance("m"); i.Annotations[blockMove] != "" {
					t.Error("clusterctl is blocked for ever")
				}
			}
			s.delete("m")
			runs := 0
			for n := range 2 {
				s.program.with(s.address(n+1), func(h *fakeHost) {
					runs += h.runs
					if h.has != "" || h.runs > 0 && h.resets == 0 {
						t.Errorf("left behind: %+v", h)
					}
				})
			}
			if at != "reset" && runs != 2 {
				t.Errorf("%d runs", runs)
			}
			if s.host("host2").Annotations[infrav1.LastOwnerAnnotation] != "" {
				t.Error("the machine took a second host")
			}
			s.noFaults()
		})
	}
}

// TestFailures: each failure is a condition of its phase and an event, with the object, the reason and the remedy; when the reason is gone, the
// machine becomes ready.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		phase     string
		code      int
		message   string
		hint      string
		condition string
		reason    string
	}{
		"unreachable":       {hosts.PhaseBootstrap, 13, "m: dial tcp 10.0.0.1:22: connection refused", "check the address", infrav1.BootstrapCondition, infrav1.UnreachableReason},
		"wrong key":         {hosts.PhaseBootstrap, 13, "m: login refused for root", "add the key to authorized_keys", infrav1.BootstrapCondition, infrav1.UnreachableReason},
		"changed host key":  {hosts.PhaseBootstrap, 13, "m: the host's key has changed", "compare it with ssh-keyscan", infrav1.BootstrapCondition, infrav1.UnreachableReason},
		"another run":       {hosts.PhaseBootstrap, 17, "m: locked by another run", "wait", infrav1.BootstrapCondition, infrav1.BusyReason},
		"package":           {hosts.PhaseRepository, 16, "m: repository packages: dpkg: error", "", infrav1.RepositoryCondition, infrav1.FailedReason},
		"bundle incomplete": {hosts.PhaseBinary, 21, "the bundle has no kubelet for linux/arm64", "build it with that platform", infrav1.BinaryCondition, infrav1.RefusedReason},
		"unsigned":          {hosts.PhaseBootstrap, 20, "the bundle is not signed by a trusted key", "sign it", infrav1.BootstrapCondition, infrav1.RefusedReason},
		"foreign runtime":   {hosts.PhaseContainerManager, 12, "m: Docker runs on the host", "set cri.takeOver", infrav1.ContainerManagerCondition, infrav1.RefusedReason},
		"document":          {hosts.PhaseProvisioning, 10, "standard input:3:1: packages is not supported", "remove it", infrav1.ProvisioningCondition, infrav1.RefusedReason},
		"kubeadm":           {hosts.PhaseProvisioning, 16, "m: provisioning run kubeadm: exit 1", "", infrav1.ProvisioningCondition, infrav1.FailedReason},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c := readySite(s, 1)
			s.program.with(s.address(1), func(h *fakeHost) { h.on = failing(f.phase, f.code, f.message, f.hint) })
			s.machine(c, "m", infrav1.RoleWorker)
			s.condition(name, func() conditions.Getter { return s.instance("m") }, f.condition, f.reason, f.message, f.hint)
			s.condition(name, func() conditions.Getter { return s.kkMachine("m") }, infrav1.ReadyCondition, f.reason, f.condition, f.message, f.hint)
			s.event("m", "RunFailed", "host1", f.message)
			if f.reason == infrav1.BusyReason { // the other run is to end, and nothing of this one has failed
				const most = 5 // runs that fail until an instance is called failed
				s.eventually("it is asked again and again", func() (often bool) {
					s.program.with(s.address(1), func(h *fakeHost) { often = h.runs > 2*most })
					return often
				})
				if i := s.instance("m"); i.Status.State == infrav1.InstanceFailed || i.Status.Attempts > 0 {
					t.Errorf("%s after %d failed runs", i.Status.State, i.Status.Attempts)
				}
			} else {
				s.eventually("it is called failed", func() bool { return s.instance("m").Status.State == infrav1.InstanceFailed })
				s.condition(name, func() conditions.Getter { return s.instance("m") }, f.condition, f.reason, "delete the Machine")
			}
			s.program.with(s.address(1), func(h *fakeHost) { h.on = nil })
			s.untilReady("m")
			// a patch writes conditions and the rest of the status one after the other
			s.eventually("failed runs are forgotten", func() bool {
				i := s.instance("m")
				return i.Status.State == infrav1.InstanceRunning && i.Status.Attempts == 0 && i.Status.NextAttempt == nil
			})
			s.noFaults()
		})
	}
}

// TestMissing: what a machine lacks is named, nothing is done on the host, and the machine goes on when it is there. Deleted before that, it
// gives the host back without a connection to it.
func TestMissing(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		remove    client.Object // nil: the bootstrap data
		restore   func(s *site)
		condition string
		reason    string
		words     []string
	}{
		"login": {
			remove: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "login"}}, condition: infrav1.BootstrapCondition, reason: infrav1.MissingReason,
			words: []string{"KKHost host1: spec.ssh.secretRef", "Secret login", "create it"},
			restore: func(s *site) {
				s.create(&corev1.Secret{ObjectMeta: s.meta("login"), Data: map[string][]byte{infrav1.SecretPassword: []byte("word")}})
			},
		},
		"bootstrap data": {
			condition: infrav1.BootstrapCondition, reason: infrav1.MissingReason,
			words: []string{"spec.bootstrapSecretName", "Secret absent", "create it"},
			restore: func(s *site) {
				s.create(&corev1.Secret{ObjectMeta: s.meta("absent"), Data: map[string][]byte{"value": []byte("#cloud-config")}})
			},
		},
		"registry": {
			remove: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "registry"}}, condition: infrav1.BootstrapCondition, reason: infrav1.MissingReason,
			words:   []string{"spec.registry.secretRef", "Secret registry"},
			restore: func(s *site) { s.create(&corev1.Secret{ObjectMeta: s.meta("registry")}) },
		},
		"bundle": {
			remove: &infrav1.KKBundle{ObjectMeta: metav1.ObjectMeta{Name: "site"}}, condition: infrav1.BootstrapCondition, reason: infrav1.MissingReason,
			words: []string{"spec.bundleRef", "no KKBundle site"},
			restore: func(s *site) {
				s.create(&infrav1.KKBundle{ObjectMeta: s.meta("site"), Spec: infrav1.KKBundleSpec{Source: source}})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, restored := range []bool{true, false} {
				s := newSite(t)
				c := readySite(s, 1)
				if f.remove != nil {
					gone, ok := f.remove.DeepCopyObject().(client.Object)
					if !ok {
						t.Fatalf("%T", f.remove)
					}
					gone.SetNamespace(s.namespace)
					if err := s.Delete(t.Context(), gone); err != nil {
						t.Fatal(err)
					}
				}
				s.machine(c, "m", infrav1.RoleWorker, func(m *clusterv1.Machine, _ *infrav1.KKMachine) {
					if f.remove == nil {
						m.Spec.Bootstrap.DataSecretName = ptr.To("absent")
					}
				})
				s.condition(name, func() conditions.Getter { return s.instance("m") }, f.condition, f.reason, f.words...)
				s.event("m", f.words[0])
				if restored {
					f.restore(s)
					s.untilReady("m")
					continue
				}
				s.delete("m")
				s.program.with(s.address(1), func(h *fakeHost) {
					if h.runs+h.resets > 0 {
						t.Errorf("a host was worked on: %+v", h)
					}
				})
				s.eventually("host1 is free", func() bool { return s.host("host1").Status.State == infrav1.HostAvailable })
			}
		})
	}
}

// TestVersionNotInBundle: a machine whose version is in no bundle does nothing on its host and says what there is. The
// remedy that it names works.
func TestVersionNotInBundle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker, func(m *clusterv1.Machine, _ *infrav1.KKMachine) { m.Spec.Version = "v1.37.0" })
	s.condition("version", func() conditions.Getter { return s.instance("m") }, infrav1.BinaryCondition, infrav1.VersionMissingReason,
		"v1.37.0 is not in KKBundle site (site 1.4.0)", "v1.35.4, v1.36.3", "in the KKCluster and delete the Machine")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.runs > 0 {
			t.Error("the host was worked on")
		}
	})
	const next = "oci://registry.site/bundles/site:1.5.0"
	s.program.bundle(next, "v1.37.0")
	s.create(&infrav1.KKBundle{ObjectMeta: s.meta("next"), Spec: infrav1.KKBundleSpec{Source: next}})
	k := &infrav1.KKCluster{}
	s.edit(k, "prod", func() { k.Spec.BundleRef = local("next") })
	s.delete("m")
	s.machine(c, "n", infrav1.RoleWorker, func(m *clusterv1.Machine, _ *infrav1.KKMachine) { m.Spec.Version = "v1.37.0" })
	s.untilReady("n")
}

// TestTooFewHosts: the machine without a host says why none of them fits.
func TestTooFewHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(4, func(h *infrav1.KKHost) {
		switch h.Name {
		case "host2":
			h.Spec.Roles = []infrav1.Role{infrav1.RoleControlPlane}
		case "host3":
			h.Annotations = map[string]string{infrav1.QuarantineAnnotation: "not cleaned"}
		case "host4":
			h.Spec.Unschedulable = true
		}
	})
	s.bundle()
	c := s.cluster("prod", true)
	s.machine(c, "m1", infrav1.RoleWorker)
	s.untilReady("m1")
	s.machine(c, "m2", infrav1.RoleWorker)
	s.condition("too few", func() conditions.Getter { return s.kkMachine("m2") }, infrav1.HostClaimedCondition, infrav1.NoHostReason,
		"1 in quarantine", "1 in use", "1 unschedulable", "1 without the role worker", "add a KKHost")
	s.event("m2", "NoHost", "add a KKHost")
	// A host that is added is taken at once.
	s.create(&infrav1.KKHost{ObjectMeta: s.meta("host5"), Spec: infrav1.KKHostSpec{Address: s.address(5), SSH: infrav1.SSH{SecretRef: local("login"), KnownHostsRef: ptr.To(local("keys"))}}})
	s.untilReady("m2")
	if m := s.kkMachine("m2"); m.Spec.HostName != "host5" {
		t.Errorf("m2 has %s", m.Spec.HostName)
	}
}

// TestQuarantine: a host that cannot be cleaned goes into quarantine, the machine goes, and nobody gets the host until the operator says so.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(s *site) { s.timing.Quarantine = 10 * time.Second })
	c := readySite(s, 1)
	s.machine(c, "m1", infrav1.RoleWorker)
	s.untilReady("m1")
	s.program.with(s.address(1), func(h *fakeHost) { h.on = failing("reset", 13, "m1: dial tcp: no route to host", "check the power") })
	s.beginDelete("m1")
	s.condition("not clean", func() conditions.Getter { return s.instance("m1") }, infrav1.CleanedCondition, infrav1.UnreachableReason, "no route to host", "check the power")
	s.event("m1", "host host1 is not clean", "no route")
	s.untilGone("m1")
	s.eventually("host1 is in quarantine", func() bool { return s.host("host1").Status.State == infrav1.HostQuarantined })
	h := s.host("host1")
	if m := conditions.GetMessage(h, infrav1.AvailableCondition); !strings.Contains(m, "cluster prod") || !strings.Contains(m, "no route to host") || !strings.Contains(m, "kkbundle reset") {
		t.Errorf("message: %s", m)
	}
	s.event("host1", "not cleaned after cluster prod")
	s.machine(c, "m2", infrav1.RoleWorker)
	s.condition("m2", func() conditions.Getter { return s.kkMachine("m2") }, infrav1.HostClaimedCondition, infrav1.NoHostReason, "1 in quarantine")
	s.program.with(s.address(1), func(h *fakeHost) { h.on, h.has = nil, "" })
	s.edit(h, "host1", func() { delete(h.Annotations, infrav1.QuarantineAnnotation) })
	s.untilReady("m2")
	s.noFaults()
}

// TestHostOfOthers: a host with the mark of another management cluster's machine is left as it is. It goes into quarantine as soon as its machine
// is deleted: no repeated run would clean it.
func TestHostOfOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(s *site) { s.timing.Quarantine = time.Hour })
	c := readySite(s, 1)
	const others = "other/prod/m1"
	s.program.with(s.address(1), func(h *fakeHost) { h.has, h.others = others, true })
	s.machine(c, "m1", infrav1.RoleWorker)
	s.condition("m1", func() conditions.Getter { return s.instance("m1") }, infrav1.BootstrapCondition, infrav1.RefusedReason, "belongs to machine other/prod/m1")
	s.beginDelete("m1")
	s.untilGone("m1")
	s.eventually("host1 is in quarantine", func() bool { return s.host("host1").Status.State == infrav1.HostQuarantined })
	if m := conditions.GetMessage(s.host("host1"), infrav1.AvailableCondition); !strings.Contains(m, others) || !strings.Contains(m, "nothing was touched") {
		t.Errorf("message: %s", m)
	}
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != others || h.resets > 0 {
			t.Errorf("the host has %q after %d resets", h.has, h.resets)
		}
	})
	s.noFaults()
}

// TestLoginIsHeld: the Secret of a login is deleted only after its host is clean.
func TestLoginIsHeld(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	secret := &corev1.Secret{ObjectMeta: s.meta("login")}
	if err := s.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := s.Get(t.Context(), s.key("login"), secret); err != nil || secret.DeletionTimestamp.IsZero() {
		t.Fatalf("the login is gone: %v", err)
	}
	s.delete("m")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != "" || h.resets != 1 {
			t.Errorf("%+v", h)
		}
	})
	s.eventually("the login goes", func() bool {
		return client.IgnoreNotFound(s.Get(t.Context(), s.key("login"), secret)) == nil && s.Get(t.Context(), s.key("login"), secret) != nil
	})
}

// TestLoginIsLetGo: a Secret that a host in use named before, or whose host is gone, can be deleted.
func TestLoginIsLetGo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	s.create(&corev1.Secret{ObjectMeta: s.meta("other"), Data: map[string][]byte{infrav1.SecretPrivateKey: []byte(privateKey)}})
	held := func(name string) bool {
		var secret corev1.Secret
		return s.Get(t.Context(), s.key(name), &secret) == nil && controllerutil.ContainsFinalizer(&secret, infrav1.LoginFinalizer)
	}
	h := s.host("host1")
	s.edit(h, "host1", func() { h.Spec.SSH.SecretRef = local("other") })
	s.eventually("the other login is held, and the first one is not", func() bool { return held("other") && !held("login") && held("keys") })
	s.stop()
	if err := s.Delete(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	s.edit(h, "host1", func() { h.Finalizers = nil })
	s.start() // a manager that has not seen the host go
	s.eventually("no login is held for a host that is gone", func() bool { return !held("other") && !held("keys") })
	s.delete("m")
}

// TestSlowHost: a host that hangs has one of two places, and the others become ready. A machine that is deleted meanwhile is cleaned.
func TestSlowHost(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(s *site) { s.places = 2 })
	c := readySite(s, 4)
	s.program.with(s.address(1), func(h *fakeHost) {
		h.on = func(ctx context.Context, _ *fakeHost, verb, phase string) error {
			if verb == "provision" && phase == hosts.PhaseRepository {
				<-ctx.Done()
			}
			return nil
		}
	})
	s.machine(c, "slow", infrav1.RoleWorker)
	s.condition("slow", func() conditions.Getter { return s.instance("slow") }, infrav1.RepositoryCondition, infrav1.RunningReason)
	for _, name := range []string{"m2", "m3", "m4"} {
		s.machine(c, name, infrav1.RoleWorker)
	}
	s.untilReady("m2", "m3", "m4")
	s.delete("slow")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != "" || h.resets != 1 {
			t.Errorf("%+v", h)
		}
	})
	s.noFaults()
}

// TestPaused: while the cluster is paused no run begins, one that has begun goes to its end and is recorded, and nothing blocks a move then.
func TestPaused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 2)
	goOn := make(chan struct{})
	s.program.with(s.address(1), func(h *fakeHost) {
		h.on = func(ctx context.Context, _ *fakeHost, verb, phase string) error {
			if verb == "provision" && phase == hosts.PhaseProvisioning {
				<-goOn
			}
			return nil
		}
	})
	s.machine(c, "m1", infrav1.RoleWorker)
	s.condition("m1", func() conditions.Getter { return s.instance("m1") }, infrav1.ProvisioningCondition, infrav1.RunningReason)
	s.edit(c, "prod", func() { c.Spec.Paused = ptr.To(true) })
	s.eventually("m1 is paused", func() bool {
		return conditions.IsTrue(s.instance("m1"), infrav1.PausedCondition) && conditions.IsTrue(s.kkMachine("m1"), infrav1.PausedCondition)
	})
	if _, ok := s.instance("m1").Annotations[blockMove]; !ok {
		t.Error("a host at work could be moved")
	}
	s.machine(c, "m2", infrav1.RoleWorker)
	close(goOn)
	s.eventually("the run's end is recorded, and nothing blocks a move", func() bool {
		i := s.instance("m1")
		_, blocked := i.Annotations[blockMove]
		return !blocked && i.Annotations[infrav1.ProvisionedAnnotation] != ""
	})
	s.eventually("m2 is paused", func() bool { return conditions.IsTrue(s.kkMachine("m2"), infrav1.PausedCondition) })
	if s.kkMachine("m2").Spec.HostName != "" || s.host("host2").Spec.Consumer != nil {
		t.Error("a machine of a paused cluster took a host")
	}
	s.edit(c, "prod", func() { c.Spec.Paused = nil })
	s.untilReady("m1", "m2")
}

// TestStatusIsLost: clusterctl move restores no status. Everything is known again without a run on a host.
func TestStatusIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 2)
	s.machine(c, "m1", infrav1.RoleControlPlane)
	s.untilReady("m1")
	// Hosts are moved by the label of their CRD, free ones too.
	s.create(&corev1.Secret{ObjectMeta: s.meta("spare"), Data: map[string][]byte{infrav1.SecretPrivateKey: []byte(privateKey)}})
	h := s.host("host2")
	s.edit(h, "host2", func() { h.Spec.SSH.SecretRef = local("spare") })
	for name, kind := range map[string]client.Object{"login": &corev1.Secret{}, "spare": &corev1.Secret{}, "site": &infrav1.KKBundle{}} {
		s.eventually(fmt.Sprintf("%T %s would be moved", kind, name), func() bool {
			err := s.Get(t.Context(), s.key(name), kind)
			_, ok := kind.GetLabels()["clusterctl.cluster.x-k8s.io/move"]
			return err == nil && ok
		})
	}
	s.stop()
	for _, lose := range []func() client.Object{
		func() client.Object { h := s.host("host1"); h.Status = infrav1.KKHostStatus{}; return h },
		func() client.Object { m := s.kkMachine("m1"); m.Status = infrav1.KKMachineStatus{}; return m },
		func() client.Object { i := s.instance("m1"); i.Status = infrav1.KKInstanceStatus{}; return i },
		func() client.Object {
			var b infrav1.KKBundle
			if err := s.Get(t.Context(), s.key("site"), &b); err != nil {
				t.Fatal(err)
			}
			b.Status = infrav1.KKBundleStatus{}
			return &b
		},
	} {
		if err := s.Status().Update(t.Context(), lose()); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	s.untilReady("m1")
	if m := s.kkMachine("m1"); m.Spec.HostName != "host1" || !ptr.Deref(m.Status.Initialization.Provisioned, false) || len(m.Status.Addresses) == 0 {
		t.Errorf("%+v %+v", m.Spec, m.Status)
	}
	s.eventually("host1 is in use", func() bool { return s.host("host1").Status.State == infrav1.HostInUse })
	for n := range 2 {
		s.program.with(s.address(n+1), func(h *fakeHost) {
			if h.runs > 1 || h.resets > 0 {
				t.Errorf("a host was worked on again: %+v", h)
			}
		})
	}
}

// TestHalfDone: where bootstrap data fails half way again and again, the host of a worker is cleaned before another try. That of a control
// plane that joins others is not: it may be a member of etcd.
func TestHalfDone(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		role        infrav1.Role
		initialized bool
		cleans      bool
	}{
		"a worker":                   {infrav1.RoleWorker, true, true},
		"the first control plane":    {infrav1.RoleControlPlane, false, true},
		"a control plane that joins": {infrav1.RoleControlPlane, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.hosts(1)
			s.bundle()
			c := s.cluster("prod", f.initialized)
			half := false
			s.program.with(s.address(1), func(h *fakeHost) {
				h.on = func(_ context.Context, h *fakeHost, verb, phase string) error {
					s.program.mu.Lock()
					defer s.program.mu.Unlock()
					if verb == "reset" {
						half = false
					} else if phase == hosts.PhaseProvisioning && (half || h.runs == 1) {
						half = true
						return &hosts.Failure{Code: 16, Message: "m: kubeadm: the port 10250 is in use"}
					}
					return nil
				}
			})
			s.machine(c, "m", f.role)
			if f.cleans {
				s.untilReady("m")
			} else {
				s.eventually("it is called failed", func() bool { return s.instance("m").Status.State == infrav1.InstanceFailed })
			}
			s.program.with(s.address(1), func(h *fakeHost) {
				if got := h.resets > 0; got != f.cleans {
					t.Errorf("%d resets after %d runs", h.resets, h.runs)
				}
			})
		})
	}
}

// TestTrustOnFirstUse: the key of the first connection is kept, and no other one is accepted afterwards. A host that was not reached, whatever
// its bastion said, has not been connected to.
func TestTrustOnFirstUse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(1, func(h *infrav1.KKHost) { h.Spec.SSH.KnownHostsRef, h.Spec.SSH.TrustOnFirstUse = nil, true })
	s.bundle()
	c := s.cluster("prod", false)
	s.program.with(s.address(1), func(h *fakeHost) {
		h.learned = "jump.site ssh-ed25519 BASTION\n"
		h.on = func(context.Context, *fakeHost, string, string) error {
			s.program.with(s.address(1), func(h *fakeHost) { h.on, h.learned = nil, "10.0.0.1 ssh-ed25519 LEARNED\n" })
			return &hosts.Failure{Code: 13, Message: "no route to host"}
		}
	})
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	s.delete("m")
	s.program.mu.Lock()
	defer s.program.mu.Unlock()
	if second := s.program.calls[1]; !slices.Contains(second.args, "--accept-new") || strings.Contains(second.files["known_hosts"], "BASTION") {
		t.Errorf("after a run that did not reach the host: %q", second.args)
	}
	first, last := s.program.calls[0], s.program.calls[len(s.program.calls)-1]
	if !slices.Contains(first.args, "--accept-new") || strings.Contains(first.files["known_hosts"], "LEARNED") {
		t.Errorf("first: %q", first.args)
	}
	if last.verb != "reset" || slices.Contains(last.args, "--accept-new") || !strings.Contains(last.files["known_hosts"], "LEARNED") {
		t.Errorf("last: %q with %q", last.args, last.files["known_hosts"])
	}
}

// TestSameHostAgain: a machine that replaces another one of the same owner takes the host that has the images.
func TestSameHostAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 3)
	s.machine(c, "cp", infrav1.RoleControlPlane) // host1
	s.untilReady("cp")
	s.machine(c, "w1", infrav1.RoleWorker) // host2
	s.untilReady("w1")
	s.delete("cp")
	s.delete("w1")
	s.machine(c, "w2", infrav1.RoleWorker)
	s.untilReady("w2")
	if got := s.kkMachine("w2").Spec.HostName; got != "host2" {
		t.Errorf("the worker's successor has %s", got)
	}
}

// TestUnschedulable: the Machine on a host that shall be emptied is marked, and the host is not chosen again.
func TestUnschedulable(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	h := s.host("host1")
	s.edit(h, "host1", func() { h.Spec.Unschedulable = true })
	s.eventually("the Machine is marked", func() bool {
		var m clusterv1.Machine
		if err := s.Get(t.Context(), s.key("m"), &m); err != nil {
			t.Fatal(err)
		}
		_, ok := m.Annotations[clusterv1.DeleteMachineAnnotation]
		return ok
	})
	s.delete("m")
	s.eventually("host1 is unschedulable", func() bool { return s.host("host1").Status.State == infrav1.HostUnschedulable })
}

// TestNodeNotFound: the machine is provisioned, and ready once its node is known.
func TestNodeNotFound(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.nodes.err = &controllers.NodeError{Message: "cluster prod has no node m"}
	s.machine(c, "m", infrav1.RoleWorker)
	s.condition("m", func() conditions.Getter { return s.kkMachine("m") }, infrav1.ReadyCondition, infrav1.NodeNotFoundReason, "no node m")
	s.eventually("Cluster API has the providerID to find the node by", func() bool {
		m := s.kkMachine("m")
		return ptr.Deref(m.Status.Initialization.Provisioned, false) && m.Spec.ProviderID != ""
	})
	s.nodes.mu.Lock()
	s.nodes.err = nil
	s.nodes.mu.Unlock()
	s.untilReady("m")
}

// TestInstanceOfAnother: the host of an instance that another machine of the same name made is not freed without it.
func TestInstanceOfAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	i := &infrav1.KKInstance{}
	s.edit(i, "m", func() { i.OwnerReferences[0].UID = "another" })
	s.beginDelete("m")
	s.condition("m", func() conditions.Getter { return s.kkMachine("m") }, infrav1.ProvisionedCondition, infrav1.DeletingReason, "another KKMachine", "delete that instance")
	if s.host("host1").Spec.Consumer == nil {
		t.Error("a host was freed that an instance has")
	}
	if err := s.Delete(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	s.untilGone("m")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != "" || h.resets != 1 {
			t.Errorf("%+v", h)
		}
	})
}

// TestHostIsGone: a machine whose host was taken away by force says so, and is deleted without a run.
func TestHostIsGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := readySite(s, 1)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	h := s.host("host1")
	if err := s.Delete(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	s.edit(h, "host1", func() { h.Finalizers = nil })
	s.condition("m", func() conditions.Getter { return s.kkMachine("m") }, infrav1.HostClaimedCondition, infrav1.TakenReason, "host1", "delete the Machine")
	s.delete("m")
}

// TestCluster: endpoint, failure domains and bundle.
func TestCluster(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(3, func(h *infrav1.KKHost) {
		h.Spec.FailureDomain = map[string]string{"host1": "rack1", "host2": "rack2", "host3": "rack1"}[h.Name]
		if h.Name == "host2" {
			h.Spec.Roles = []infrav1.Role{infrav1.RoleWorker}
		}
	})
	c := &clusterv1.Cluster{ObjectMeta: s.meta("prod"), Spec: clusterv1.ClusterSpec{
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "KKCluster", Name: "prod"},
	}}
	s.create(c)
	k := &infrav1.KKCluster{ObjectMeta: s.meta("prod"), Spec: infrav1.KKClusterSpec{BundleRef: local("site"), Registry: infrav1.Registry{Address: "registry.site:5000"}}}
	s.own(c, k)
	s.create(k)
	get := func() conditions.Getter {
		if err := s.Get(t.Context(), s.key("prod"), k); err != nil {
			t.Fatal(err)
		}
		return k
	}
	s.condition("no endpoint", get, infrav1.ReadyCondition, infrav1.EndpointMissingReason, "spec.controlPlaneEndpoint is empty", "kube-vip")
	s.edit(c, "prod", func() { c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.9.9.9", Port: 8443} })
	s.condition("no bundle", get, infrav1.ReadyCondition, infrav1.MissingReason, "KKBundle site", "create it")
	s.create(&infrav1.KKBundle{ObjectMeta: s.meta("site"), Spec: infrav1.KKBundleSpec{Source: source}})
	s.condition("bundle away", get, infrav1.ReadyCondition, infrav1.MissingReason, "KKBundle site is not ready", "check the address")
	s.program.bundle(source, version)
	s.eventually("the cluster is ready", func() bool {
		return conditions.IsTrue(get(), infrav1.ReadyCondition) && ptr.Deref(k.Status.Initialization.Provisioned, false)
	})
	if k.Spec.ControlPlaneEndpoint != (infrav1.APIEndpoint{Host: "10.9.9.9", Port: 8443}) {
		t.Errorf("%+v %+v", k.Spec, k.Status)
	}
	want := []clusterv1.FailureDomain{{Name: "rack1", ControlPlane: ptr.To(true)}, {Name: "rack2", ControlPlane: ptr.To(false)}}
	if got, err := json.Marshal(k.Status.FailureDomains); err != nil || string(got) != string(must(json.Marshal(want))) {
		t.Errorf("failure domains: %s, %v", got, err)
	}
	if err := s.Delete(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	s.eventually("the cluster is gone", func() bool { return s.Get(t.Context(), s.key("prod"), k) != nil })
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

// TestBundleStaysWhileRegistryIsAway: a bundle that was read stays ready, another source does not.
func TestBundle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.bundle()
	b := &infrav1.KKBundle{}
	ready := func() bool {
		if err := s.Get(t.Context(), s.key("site"), b); err != nil {
			t.Fatal(err)
		}
		return conditions.IsTrue(b, infrav1.ReadyCondition)
	}
	s.eventually("the bundle is read", ready)
	if b.Status.Name != "site" || b.Status.Version != "1.4.0" || !slices.Equal(b.Status.Versions, []string{"v1.35.4", "v1.36.3"}) {
		t.Errorf("%+v", b.Status)
	}
	s.event("site", "v1.35.4, v1.36.3")
	s.edit(b, "site", func() { b.Spec.Source = "oci://registry.site/bundles/other:1" })
	get := func() conditions.Getter { ready(); return b }
	s.condition("another source", get, infrav1.ReadyCondition, infrav1.FailedReason, "no such bundle", "check the address")
	s.program.mu.Lock()
	s.program.source["oci://registry.site/bundles/other:1"] = func() ([]byte, error) { return []byte(`{"name": "apps", "digest": "sha256:1", "items": []}`), nil }
	s.program.mu.Unlock()
	s.condition("no cluster", get, infrav1.ReadyCondition, infrav1.MissingReason, "has no cluster file", "build it")
	s.edit(b, "site", func() { b.Spec.Trust.SecretRef = ptr.To(local("keys-of-ours")) })
	s.condition("no keys", get, infrav1.ReadyCondition, infrav1.MissingReason, "spec.trust.secretRef", "Secret keys-of-ours", "create it")
}

// TestTemplateCapacity: the autoscaler learns what every host has.
func TestTemplateCapacity(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hosts(3, func(h *infrav1.KKHost) {
		h.Labels = map[string]string{"pool": "a"}
		h.Spec.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), "nvidia.com/gpu": resource.MustParse("1")}
		switch h.Name {
		case "host2":
			h.Spec.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("64Gi")}
		case "host3":
			h.Labels, h.Spec.Capacity = nil, nil
		}
	})
	k := &infrav1.KKMachineTemplate{ObjectMeta: s.meta("workers")}
	k.Spec.Template.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}}
	s.create(k)
	s.eventually("the capacity is known", func() bool {
		if err := s.Get(t.Context(), s.key("workers"), k); err != nil {
			t.Fatal(err)
		}
		return len(k.Status.Capacity) == 2 && k.Status.Capacity.Cpu().String() == "4" && k.Status.Capacity.Memory().String() == "32Gi" &&
			k.Status.NodeInfo == infrav1.NodeInfo{Architecture: "amd64", OperatingSystem: "linux"}
	})
}

// TestManyMachines: machines and hosts of one number find each other, one to one.
func TestManyMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const n = 12
	c := readySite(s, n)
	var names []string
	for k := range n {
		names = append(names, fmt.Sprintf("m%d", k))
		s.machine(c, names[k], infrav1.RoleWorker)
	}
	s.untilReady(names...)
	taken := map[string]string{}
	for _, name := range names {
		host := s.kkMachine(name).Spec.HostName
		if other := taken[host]; other != "" {
			t.Errorf("%s and %s have %s", name, other, host)
		}
		taken[host] = name
	}
	s.noFaults()
}
