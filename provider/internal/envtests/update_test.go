package envtests

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	extension "sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
	"github.com/kkbundle/kkbundle/provider/internal/inplace"
)

const (
	next       = "v1.37.2"
	nextSource = "oci://registry.site/bundles/site:1.5.0"
)

// update is what upgrade-machine does to a host.
func (p *program) update(ctx context.Context, h *fakeHost, c hosts.Call, node string) error {
	p.mu.Lock()
	_, refused := p.owned(h, c, node)
	if h.has == "" {
		p.fault("%s is updated, and was never provisioned", node)
	}
	on := h.on
	p.mu.Unlock()
	if refused != nil {
		return refused
	}
	check := slices.Contains(c.Args, "--check")
	if on != nil {
		if err := on(ctx, h, map[bool]string{true: "check", false: "upgrade-machine"}[check], ""); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if check {
		return nil
	}
	version := ""
	for _, a := range c.Args {
		if v, ok := strings.CutPrefix(a, "kubernetes.version="); ok {
			version = v
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h.updates, h.written = append(h.updates, version), string(c.Stdin)
	return nil
}

func (n *nodes) part(ctx context.Context, part string, node controllers.Node, version string) error {
	n.mu.Lock()
	n.said = append(n.said, part+" "+node.Name+" "+version)
	on := n.on
	n.mu.Unlock()
	if on == nil {
		return nil
	}
	return on(ctx, part)
}

// Vacate implements controllers.NodeUpdater.
func (n *nodes) Vacate(ctx context.Context, _ types.NamespacedName, node controllers.Node, version string) error {
	return n.part(ctx, "vacate", node, version)
}

// Restore implements controllers.NodeUpdater.
func (n *nodes) Restore(ctx context.Context, _ types.NamespacedName, node controllers.Node, version string) error {
	return n.part(ctx, "restore", node, version)
}

func (n *nodes) done() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.said, ", ")
}

// updatable is a site with a machine that has a node, and a bundle with the next version that its cluster names.
func updatable(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	c := readySite(s, 2)
	s.machine(c, "m", infrav1.RoleWorker)
	s.untilReady("m")
	s.nextBundle(next, version)
	return s
}

// nextBundle has the cluster name another bundle with these versions.
func (s *site) nextBundle(versions ...string) {
	s.Helper()
	s.program.bundle(nextSource, versions...)
	s.create(&infrav1.KKBundle{ObjectMeta: s.meta("next"), Spec: infrav1.KKBundleSpec{Source: nextSource}})
	s.eventually("the next bundle is read", func() bool {
		var b infrav1.KKBundle
		return s.Get(s.Context(), s.key("next"), &b) == nil && len(b.Status.Versions) > 0
	})
	var k infrav1.KKCluster
	s.edit(&k, "prod", func() { k.Spec.BundleRef = local("next") })
}

// want writes a version and a configuration into the Machine and its KubeadmConfig, as Cluster API does before it asks.
func (s *site) want(version, config string) {
	s.Helper()
	k := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(config), &k.Object); err != nil {
		s.Fatal(err)
	}
	k.SetGroupVersionKind(bootstrapv1.GroupVersion.WithKind("KubeadmConfig"))
	k.SetNamespace(s.namespace)
	k.SetName("m")
	if err := s.Patch(s.Context(), k, client.Apply, client.FieldOwner("test"), client.ForceOwnership); err != nil { //nolint:staticcheck // of an unstructured object
		s.Fatal(err)
	}
	var m clusterv1.Machine
	s.edit(&m, "m", func() {
		m.Spec.Version = version
		m.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfig", Name: "m"}
		m.Annotations = map[string]string{clusterv1.UpdateInProgressAnnotation: ""}
	})
}

// ask asks for an update as Cluster API does, with the permissions of the manager. It returns the message, "" if it is
// done.
func (s *site) ask() (string, error) {
	s.Helper()
	c, err := client.New(server.manager, client.Options{Scheme: server.scheme})
	if err != nil {
		s.Fatal(err)
	}
	q := &runtimehooksv1.UpdateMachineRequest{Desired: runtimehooksv1.UpdateMachineRequestObjects{Machine: clusterv1.Machine{ObjectMeta: s.meta("m")}}}
	a := &runtimehooksv1.UpdateMachineResponse{}
	(&inplace.Extension{Client: c, Live: c}).UpdateMachine(s.Context(), q, a)
	switch {
	case a.Status != runtimehooksv1.ResponseStatusSuccess:
		return "", errors.New(a.Message)
	case (a.RetryAfterSeconds > 0) != (a.Message != ""):
		s.Errorf("the answer is %+v", a)
	}
	return a.Message, nil
}

// untilUpdated asks until the update is done.
func (s *site) untilUpdated() {
	s.Helper()
	s.eventually("the update is done", func() bool {
		message, err := s.ask()
		if err != nil {
			s.Fatal(err)
		}
		return message == ""
	})
}

// asked asks until the instance has what is wanted.
func (s *site) asked() {
	s.Helper()
	s.want(next, bare)
	s.eventually("the update is asked for", func() bool {
		if _, err := s.ask(); err != nil {
			s.Fatal(err)
		}
		return s.instance("m").Spec.Update != nil
	})
}

const bare = `{"spec": {"format": "cloud-config"}}`

// TestUpdate: Cluster API asks for a version, and the host is brought to it, drained before and with pods again after.
// It is asked for once, however often Cluster API asks; the machine stays, with its provisioning.
func TestUpdate(t *testing.T) {
	t.Parallel()
	s := updatable(t)
	goOn := make(chan struct{})
	s.program.with(s.address(1), func(h *fakeHost) {
		h.on = func(_ context.Context, _ *fakeHost, verb, _ string) error {
			if verb == "upgrade-machine" {
				<-goOn
			}
			return nil
		}
	})
	config := `{"spec": {"joinConfiguration": {"patches": {"directory": "/etc/kubernetes/patches"}}}}`
	s.want(next, config)
	s.eventually("it is asked for", func() bool {
		message, err := s.ask()
		return err == nil && strings.Contains(message, "is asked for "+next)
	})
	s.eventually("Cluster API hears that the host is worked on", func() bool {
		message, err := s.ask()
		return err == nil && message == "at work on host host1"
	})
	i := s.instance("m")
	if _, ok := i.Annotations[blockMove]; !ok || i.Status.State != infrav1.InstanceUpdating || !conditions.IsTrue(i, infrav1.ReadyCondition) {
		t.Errorf("at work: %v %+v", i.Annotations, i.Status)
	}
	if m := s.kkMachine("m"); !conditions.IsTrue(m, infrav1.ReadyCondition) {
		t.Errorf("the machine was called not ready: %v", m.Status.Conditions)
	}
	close(goOn)
	s.untilUpdated()
	i = s.instance("m")
	if i.Spec.Version != next || i.Spec.BundleRef.Name != "next" || i.Spec.Update.Patches != "/etc/kubernetes/patches" || i.Annotations[blockMove] != "" || !conditions.IsTrue(i, infrav1.UpdatedCondition) {
		t.Errorf("%+v %v %v", i.Spec, i.Annotations, i.Status.Conditions)
	}
	s.eventually("it runs", func() bool { return s.instance("m").Status.State == infrav1.InstanceRunning })
	if got := s.nodes.done(); got != "vacate m "+next+", restore m "+next {
		t.Errorf("the node: %s", got)
	}
	s.event("m", "host1 runs Kubernetes "+next)
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.runs != 1 || h.resets != 0 || !slices.Equal(h.updates, []string{next}) {
			t.Errorf("the host: %+v", h)
		}
	})
	s.program.mu.Lock()
	line := strings.Join(s.program.calls[len(s.program.calls)-1].args, " ")
	s.program.mu.Unlock()
	for _, want := range []string{"--owner " + s.namespace + "/prod/m ", "--patches /etc/kubernetes/patches", "-- m /"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	s.delete("m") // by what it is now
	s.noFaults()
}

// TestUpdatePatches: other patches of kubeadm are an update of the same version, with the files in their directory. A
// Secret that is missing is waited for.
func TestUpdatePatches(t *testing.T) {
	t.Parallel()
	s := updatable(t)
	const config = `{"spec": {"joinConfiguration": {"patches": {"directory": "/etc/kubernetes/patches"}}, "files": [
		{"path": "/etc/kubernetes/patches/kubeletconfiguration+merge.yaml", "permissions": "0600", "content": "maxPods: 99\n"},
		{"path": "/etc/kubernetes/patches/etcd.yaml", "contentFrom": {"secret": {"name": "patches", "key": "etcd"}}},
		{"path": "/etc/motd", "content": "not written again"}]}}`
	s.want(version, config)
	s.eventually("it is said that a Secret is missing", func() bool {
		message, err := s.ask()
		return err == nil && strings.Contains(message, "file /etc/kubernetes/patches/etcd.yaml: Secret patches is not in namespace "+s.namespace+"; create it")
	})
	s.create(&corev1.Secret{ObjectMeta: s.meta("patches"), Data: map[string][]byte{"etcd": []byte("metadata: {}\n")}})
	s.untilUpdated()
	s.program.with(s.address(1), func(h *fakeHost) {
		const want = `## template: jinja
#cloud-config
write_files:
- path: /etc/kubernetes/patches/kubeletconfiguration+merge.yaml
  permissions: "0600"
  content: |2+
    maxPods: 99
- path: /etc/kubernetes/patches/etcd.yaml
  content: |2+
    metadata: {}
`
		if h.written != want || !slices.Equal(h.updates, []string{version}) {
			t.Errorf("updates %q with\n%s", h.updates, h.written)
		}
	})
	s.want(version, strings.Replace(config, "99", "110", 1))
	s.eventually("another patch is another update", func() bool { message, err := s.ask(); return err == nil && message != "" })
	s.untilUpdated()
	s.program.with(s.address(1), func(h *fakeHost) {
		if !strings.Contains(h.written, "maxPods: 110") || len(h.updates) != 2 {
			t.Errorf("updates %q with\n%s", h.updates, h.written)
		}
	})
	s.noFaults()
}

// TestUpdateKilled kills the manager in each part of an update, and moves the objects without their status: the next
// manager goes on.
func TestUpdateKilled(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"check", "vacate", "upgrade-machine", "restore"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			s := updatable(t)
			reached, first := make(chan struct{}, 1), true
			stop := func(ctx context.Context, part string) error {
				s.program.mu.Lock()
				is := first && part == at
				first = first && !is
				s.program.mu.Unlock()
				if is {
					reached <- struct{}{}
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			}
			s.nodes.on = stop
			s.program.with(s.address(1), func(h *fakeHost) {
				h.on = func(ctx context.Context, _ *fakeHost, verb, _ string) error { return stop(ctx, verb) }
			})
			s.asked()
			<-reached
			s.kill()
			i := s.instance("m")
			i.Status = infrav1.KKInstanceStatus{}
			if err := s.Status().Update(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			if message, err := s.ask(); err != nil || message == "" {
				t.Errorf("done while nobody is at work: %q, %v", message, err)
			}
			s.start()
			s.untilUpdated()
			s.program.with(s.address(1), func(h *fakeHost) {
				if h.runs != 1 || h.resets != 0 || len(h.updates) == 0 {
					t.Errorf("the host: %+v", h)
				}
			})
			if got := s.nodes.done(); !strings.HasSuffix(got, "restore m "+next) {
				t.Errorf("the node: %s", got)
			}
			s.noFaults()
		})
	}
}

// TestUpdateFailures: what keeps an update from its end is told to Cluster API, and when it is gone, the update is done.
func TestUpdateFailures(t *testing.T) {
	t.Parallel()
	const drained = "node m still has 1 pods to be moved, such as shop/db: Cannot evict pod"
	for name, f := range map[string]struct {
		part   string
		err    error
		reason string
		words  string
	}{
		"unreachable":     {"check", &hosts.Failure{Code: 13, Message: "m: connection refused", Hint: "check the address"}, infrav1.UnreachableReason, "m: connection refused; check the address"},
		"another run":     {"upgrade-machine", &hosts.Failure{Code: 17, Message: "m: locked by another run", Hint: "wait"}, infrav1.BusyReason, "locked"},
		"another's mark":  {"check", &hosts.Failure{Code: 12, Message: "m belongs to machine other/prod/m"}, infrav1.RefusedReason, "belongs to machine other/prod/m"},
		"kubeadm":         {"upgrade-machine", &hosts.Failure{Code: 16, Message: "m: kubeadm upgrade node: exit code 1"}, infrav1.FailedReason, "exit code 1"},
		"a budget":        {"vacate", errors.New(drained), infrav1.FailedReason, drained},
		"not back":        {"restore", errors.New("node m is not ready"), infrav1.FailedReason, "node m is not ready"},
		"another's node":  {"vacate", &controllers.NodeError{Message: "node m has the providerID kk:///x/y"}, infrav1.FailedReason, "providerID"},
		"bundle unsigned": {"upgrade-machine", &hosts.Failure{Code: 20, Message: "the bundle is not signed"}, infrav1.RefusedReason, "not signed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := updatable(t)
			fails := true
			fail := func(part string) error {
				s.program.mu.Lock()
				defer s.program.mu.Unlock()
				if fails && part == f.part {
					return f.err
				}
				return nil
			}
			s.nodes.on = func(_ context.Context, part string) error { return fail(part) }
			s.program.with(s.address(1), func(h *fakeHost) {
				h.on = func(_ context.Context, _ *fakeHost, verb, _ string) error { return fail(verb) }
			})
			s.want(next, bare)
			s.eventually("Cluster API hears why", func() bool {
				message, err := s.ask()
				return err == nil && strings.Contains(message, f.words)
			})
			s.condition(name, func() conditions.Getter { return s.instance("m") }, infrav1.UpdatedCondition, f.reason, f.words)
			s.event("m", "RunFailed", "host1", f.words)
			if f.reason != infrav1.BusyReason {
				s.condition(name, func() conditions.Getter { return s.instance("m") }, infrav1.UpdatedCondition, f.reason, "delete the Machine")
			}
			if got := s.nodes.done(); f.part == "check" && got != "" {
				t.Errorf("the node of a host that is not worked on: %s", got)
			}
			if !conditions.IsTrue(s.kkMachine("m"), infrav1.ReadyCondition) {
				t.Error("the machine is called not ready, and would be taken for lost")
			}
			s.program.mu.Lock()
			fails = false
			s.program.mu.Unlock()
			s.untilUpdated()
			s.noFaults()
		})
	}
}

// TestUpdateRefused: nothing is written for what cannot be done.
func TestUpdateRefused(t *testing.T) {
	t.Parallel()
	s := updatable(t)
	if message, err := s.ask(); err == nil {
		t.Errorf("a Machine that is not to be updated: %q", message)
	}
	s.want("v1.37.9", bare)
	if message, err := s.ask(); err != nil || !strings.Contains(message, "version v1.37.9 is not in KKBundle next, which has") {
		t.Errorf("a version in no bundle: %q, %v", message, err)
	}
	if i := s.instance("m"); i.Spec.Update != nil || i.Spec.Version != version || i.Spec.BundleRef.Name != "site" {
		t.Errorf("%+v", i.Spec)
	}
	// Nobody changes more than an update brings.
	i := s.instance("m")
	i.Spec.Update, i.Spec.HostName = &infrav1.Update{ID: "x"}, "host2"
	refused(t, "another host", s.Update(t.Context(), i), "replace the Machine")
	i = s.instance("m")
	i.Spec.Update, i.Spec.Version = &infrav1.Update{ID: "x"}, next
	refused(t, "an update that a user asks for", s.Update(t.Context(), i), "only the provider asks")
	i = s.instance("m")
	i.Spec.Version = next
	refused(t, "another version without an update", s.Update(t.Context(), i), "replace the Machine")
	if got := s.nodes.done(); got != "" {
		t.Errorf("the node: %s", got)
	}
	s.delete("m")
	var m clusterv1.Machine
	if err := s.Get(t.Context(), s.key("m"), &m); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ask(); err == nil || !strings.Contains(err.Error(), "has no KKInstance m") {
		t.Errorf("a machine without a host: %v", err)
	}
}

// TestUpdateDeleted: a machine that is deleted while its host is updated is cleaned, and the host is free.
func TestUpdateDeleted(t *testing.T) {
	t.Parallel()
	s := updatable(t)
	reached := make(chan struct{}, 1)
	s.nodes.on = func(ctx context.Context, part string) error {
		if part == "vacate" {
			reached <- struct{}{}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
	s.asked()
	<-reached
	s.delete("m")
	s.program.with(s.address(1), func(h *fakeHost) {
		if h.has != "" || h.resets != 1 || len(h.updates) > 0 {
			t.Errorf("the host: %+v", h)
		}
	})
	s.noFaults()
}

// TestUpdateAgain: another wish while the host is updated is done after that one.
func TestUpdateAgain(t *testing.T) {
	t.Parallel()
	s := updatable(t)
	s.want(next, bare)
	s.untilUpdated()
	config := `{"spec": {"clusterConfiguration": {"etcd": {"local": {"imageTag": "3.7.1-0"}}}}}`
	s.want(next, config)
	if message, err := s.ask(); err != nil || message == "" {
		t.Errorf("another wish is done at once: %q, %v", message, err)
	}
	s.untilUpdated()
	s.program.with(s.address(1), func(h *fakeHost) {
		if !slices.Equal(h.updates, []string{next, next}) {
			t.Errorf("updates: %q", h.updates)
		}
	})
	s.noFaults()
}

// TestUpdateCorrected: while an update is not done, a KKCluster that is corrected counts; a run that was at work with
// what it had before does not end the update.
func TestUpdateCorrected(t *testing.T) {
	t.Parallel()
	s := updatable(t)
	reached, goOn := make(chan struct{}, 8), make(chan struct{})
	s.program.with(s.address(1), func(h *fakeHost) {
		h.on = func(_ context.Context, _ *fakeHost, verb, _ string) error {
			if verb == "upgrade-machine" {
				reached <- struct{}{}
				<-goOn
			}
			return nil
		}
	})
	s.asked()
	<-reached
	var k infrav1.KKCluster
	s.edit(&k, "prod", func() { k.Spec.Registry.Address = "right.site" })
	s.eventually("it is asked for anew", func() bool {
		message, err := s.ask()
		return err == nil && message != "" && s.instance("m").Spec.Registry.Address == "right.site"
	})
	close(goOn)
	s.untilUpdated()
	s.program.with(s.address(1), func(h *fakeHost) {
		if !slices.Equal(h.updates, []string{next, next}) {
			t.Errorf("updates: %q", h.updates)
		}
	})
	s.noFaults()
}

// TestRegistration: Cluster API is told of the extension, by the manager's permissions, and what others make of that is
// put right.
func TestRegistration(t *testing.T) {
	t.Parallel()
	if server.client == nil {
		t.Skip(server.reason)
	}
	c, err := client.New(server.manager, client.Options{Scheme: server.scheme})
	if err != nil {
		t.Fatal(err)
	}
	port := int32(9444)
	r := &inplace.Registration{
		Client: c, Live: c, Pause: 20 * time.Millisecond, Secret: "certs",
		Service: runtimev1.ServiceReference{Namespace: "provider", Name: "webhooks", Port: &port},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	config := &runtimev1.ExtensionConfig{}
	until := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			err := server.client.Get(t.Context(), types.NamespacedName{Name: inplace.Name}, config)
			if client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			if err == nil && holds() {
				return
			}
		}
		t.Fatalf("%s: %+v", what, config)
	}
	right := func() bool {
		return config.Spec.ClientConfig.Service.Name == "webhooks" && config.Annotations[runtimev1.InjectCAFromSecretAnnotation] == "provider/certs"
	}
	until("it is there", right)
	if config.Labels[clusterv1.ProviderNameLabel] != "infrastructure-kkbundle" {
		t.Errorf("nothing tells whose it is: %v", config.Labels)
	}
	config.Spec.ClientConfig.Service.Name = "other"
	if err := server.client.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	until("it is put right", right)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestExtensionServer: Cluster API's own server takes the handlers.
func TestExtensionServer(t *testing.T) {
	t.Parallel()
	if _, err := (&inplace.Extension{}).Server(extension.Options{CertDir: t.TempDir()}); err != nil {
		t.Error(err)
	}
}
