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
