package controllers

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

func poolHost(name string, edit func(*infrav1.KKHost)) infrav1.KKHost {
	h := infrav1.KKHost{ObjectMeta: metav1.ObjectMeta{Name: name}}
	edit(&h)
	return h
}

// TestChoose: role, labels, failure domain and capacity decide whether a host fits, its last owner which one is taken.
func TestChoose(t *testing.T) {
	t.Parallel()
	annotated := func(name, value string) func(*infrav1.KKHost) {
		return func(h *infrav1.KKHost) { h.Annotations = map[string]string{name: value} }
	}
	labelled := func(h *infrav1.KKHost) { h.Labels = map[string]string{"disk": "nvme"} }
	big := func(h *infrav1.KKHost) {
		h.Spec.Capacity = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Gi")}
	}
	plain := func(*infrav1.KKHost) {}
	used := func(h *infrav1.KKHost) { h.Spec.Consumer = &infrav1.Consumer{Machine: "other"} }
	all := []infrav1.KKHost{
		poolHost("used", used), poolHost("last", annotated(infrav1.LastOwnerAnnotation, "prod/cp")), poolHost("foreign", annotated(infrav1.LastOwnerAnnotation, "test/cp")),
		poolHost("plain", plain), poolHost("labelled", labelled), poolHost("big", big),
		poolHost("rack1", func(h *infrav1.KKHost) { h.Spec.FailureDomain = "rack1" }),
		poolHost("worker", func(h *infrav1.KKHost) {
			h.Spec.Roles, h.Labels = []infrav1.Role{infrav1.RoleWorker}, map[string]string{"only": "worker"}
		}),
	}
	for name, c := range map[string]struct {
		spec   infrav1.KKMachineSpec
		domain string
		owner  string
		want   string
		why    []string
	}{
		"the owner's last host":          {owner: "prod/cp", want: "last"},
		"nobody's host before another's": {owner: "dev/x", want: "big"},
		"by label":                       {spec: infrav1.KKMachineSpec{HostSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "nvme"}}}, want: "labelled"},
		"by failure domain":              {domain: "rack1", want: "rack1"},
		"by capacity":                    {spec: infrav1.KKMachineSpec{MinCapacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Gi")}}, want: "big"},
		"too large":                      {spec: infrav1.KKMachineSpec{MinCapacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("65Gi")}}, why: []string{"8 with less than 65Gi of memory"}},
		"by role": {
			spec: infrav1.KKMachineSpec{Roles: []infrav1.Role{infrav1.RoleControlPlane}, HostSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"only": "worker"}}},
			why:  []string{"1 without the role control-plane", "7 not selected by only=worker"},
		},
		"by name":        {spec: infrav1.KKMachineSpec{HostName: "foreign"}, want: "foreign"},
		"a used host":    {spec: infrav1.KKMachineSpec{HostName: "used"}, why: []string{"1 in use", "7 not the host that is asked for, used"}},
		"another domain": {domain: "rack9", why: []string{"8 not in failure domain rack9"}},
	} {
		n, err := needOf(&c.spec)
		if err != nil {
			t.Fatal(err)
		}
		n.failureDomain, n.owner = c.domain, c.owner
		h, why := n.choose(all)
		if h == nil && c.want != "" || h != nil && h.Name != c.want {
			t.Errorf("%s: %v, %s", name, h, why)
		}
		for _, w := range c.why {
			if !strings.Contains(why, w) {
				t.Errorf("%s: %q lacks %q", name, why, w)
			}
		}
	}
	near := need{selector: labels.Everything(), roles: []infrav1.Role{infrav1.RoleControlPlane}, preferredDomain: "rack1", owner: "prod/cp"}
	if h, why := near.choose(all); h == nil || h.Name != "rack1" {
		t.Errorf("the preferred domain comes before the last owner: %v, %s", h, why)
	}
	near.preferredDomain = "rack9"
	if h, why := near.choose(all); h == nil || h.Name != "last" {
		t.Errorf("no host in the preferred domain: %v, %s", h, why)
	}
	if _, why := (need{}).choose(nil); why != "there is no KKHost" {
		t.Error(why)
	}
}

// TestPause doubles and ends at the longest.
func TestPause(t *testing.T) {
	t.Parallel()
	d := DefaultTiming()
	for failed, want := range map[int32]time.Duration{1: d.Backoff, 2: 2 * d.Backoff, 3: 4 * d.Backoff, 50: d.MaxBackoff} {
		if got := d.pause(failed); got != want {
			t.Errorf("%d: %s", failed, got)
		}
	}
}

// TestBusyIsNoFailure: a host that another run works on is asked again soon, however often.
func TestBusyIsNoFailure(t *testing.T) {
	timing := Timing{Backoff: time.Minute, MaxBackoff: time.Hour}
	w := &instanceWork{InstanceReconciler: &InstanceReconciler{Timing: timing}, i: &infrav1.KKInstance{}}
	w.ended(infrav1.UnreachableReason)
	w.ended(infrav1.FailedReason)
	if left := time.Until(w.i.Status.NextAttempt.Time); w.i.Status.Attempts != 2 || left < time.Minute {
		t.Errorf("after two failed runs: %d, the next in %s", w.i.Status.Attempts, left)
	}
	for range 10 {
		w.ended(infrav1.BusyReason)
	}
	if left := time.Until(w.i.Status.NextAttempt.Time); w.i.Status.Attempts != 2 || left > time.Minute {
		t.Errorf("after ten runs that found another: %d, the next in %s", w.i.Status.Attempts, left)
	}
}
