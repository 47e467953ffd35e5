package webhooks_test

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/webhooks"
)

// pool is a Reader that has hosts only.
type pool struct {
	client.Reader
	hosts []infrav1.KKHost
}

func (p pool) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*infrav1.KKHostList).Items = p.hosts
	return nil
}

func host(name, address string, edit ...func(*infrav1.KKHost)) *infrav1.KKHost {
	h := &infrav1.KKHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: name, Annotations: map[string]string{}},
		Spec:       infrav1.KKHostSpec{Address: address, SSH: infrav1.SSH{TrustOnFirstUse: true, Port: 22}},
	}
	for _, e := range edit {
		e(h)
	}
	return h
}

func by(t *testing.T, user string) context.Context {
	t.Helper()
	return admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UserInfo: authenticationv1.UserInfo{Username: user}}})
}

// verdict compares an error with the words that it should have; "" for none.
func verdict(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestFreeing: only the provider frees a host, and a quarantine ends only by an update that does nothing else.
func TestFreeing(t *testing.T) {
	t.Parallel()
	w := webhooks.Host{Reader: pool{}, Manager: "provider"}
	used := func(h *infrav1.KKHost) { h.Spec.Consumer = &infrav1.Consumer{Cluster: "prod", Machine: "m"} }
	bad := func(h *infrav1.KKHost) { h.Annotations[infrav1.QuarantineAnnotation] = "not cleaned" }
	labelled := func(h *infrav1.KKHost) { h.Labels = map[string]string{"a": "b"} }
	plain := func(*infrav1.KKHost) {}
	for _, c := range []struct {
		what, user string
		old, is    func(*infrav1.KKHost)
		want       string
	}{
		{"the provider frees", "provider", used, plain, ""},
		{"somebody frees", "ops", used, plain, "delete its Machine"},
		{"somebody labels", "ops", used, func(h *infrav1.KKHost) { used(h); labelled(h) }, ""},
		{"the provider frees a host that is not clean", "provider", used, bad, ""},
		{"somebody ends a quarantine", "ops", bad, plain, ""},
		{"and labels", "ops", bad, labelled, "by itself"},
		{"and takes the host", "ops", bad, used, "by itself"},
		{"and changes the spec", "ops", bad, func(h *infrav1.KKHost) { h.Spec.Unschedulable = true }, "by itself"},
		{"and removes another annotation", "ops", func(h *infrav1.KKHost) { bad(h); h.Annotations["a"] = "b" }, plain, "by itself"},
	} {
		_, err := w.ValidateUpdate(by(t, c.user), host("h", "10.0.0.1", c.old), host("h", "10.0.0.1", c.is))
		verdict(t, c.what, err, c.want)
	}
	if _, err := (webhooks.Host{Reader: pool{}}).ValidateUpdate(t.Context(), host("h", "10.0.0.1", used), host("h", "10.0.0.1")); err == nil {
		t.Error("nobody freed a host")
	}
}

// TestTwins: two KKHosts with an address of the same node are the same host, whatever the port, unless other bastions lead to them.
func TestTwins(t *testing.T) {
	t.Parallel()
	internal := func(v4, v6 string) func(*infrav1.KKHost) {
		return func(h *infrav1.KKHost) { h.Spec.InternalIPv4, h.Spec.InternalIPv6 = v4, v6 }
	}
	port := func(n int32) func(*infrav1.KKHost) { return func(h *infrav1.KKHost) { h.Spec.SSH.Port = n } }
	behind := func(names ...string) func(*infrav1.KKHost) {
		return func(h *infrav1.KKHost) {
			for _, n := range names {
				h.Spec.SSH.Bastions = append(h.Spec.SSH.Bastions, infrav1.Bastion{Address: n, User: h.Name})
			}
		}
	}
	for what, c := range map[string]struct {
		there, new *infrav1.KKHost
		want       string
	}{
		"another address":     {host("a", "10.0.0.1"), host("b", "10.0.0.2"), ""},
		"another port":        {host("a", "10.0.0.1"), host("b", "10.0.0.1", port(2222)), "spec.address"},
		"an internal address": {host("a", "10.0.0.1"), host("b", "node.site", internal("10.0.0.1", "")), "spec.internalIPv4"},
		"written otherwise":   {host("a", "node.site", internal("", "fd00::1")), host("b", "fd00:0::1"), "spec.address"},
		"of another family":   {host("a", "10.0.0.1", internal("", "fd00::1")), host("b", "10.0.0.2", internal("", "fd00::1")), "spec.internalIPv6"},
		"behind one address":  {host("a", "nat.site", port(1), internal("10.0.0.1", "")), host("b", "nat.site", port(2), internal("10.0.0.2", "")), ""},
		"the same bastions":   {host("a", "10.0.0.1", behind("x", "y")), host("b", "10.0.0.1", behind("x", "y")), "spec.address"},
		"other bastions":      {host("a", "10.0.0.1", behind("x", "y")), host("b", "10.0.0.1", behind("y", "x")), ""},
		"one bastion less":    {host("a", "10.0.0.1", behind("x")), host("b", "10.0.0.1"), ""},
	} {
		w := webhooks.Host{Reader: pool{hosts: []infrav1.KKHost{*c.there}}}
		_, err := w.ValidateCreate(t.Context(), c.new)
		verdict(t, what, err, c.want)
		_, err = w.ValidateUpdate(by(t, "ops"), host("b", "10.7.7.7"), c.new)
		verdict(t, what+", by an update", err, c.want)
	}
}
