package controllers

import (
	"testing"

	"k8s.io/client-go/tools/events"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/jobs"
)

// TestRecordUpdate: an update is done if the spec that a run has brought is still that of the instance.
func TestRecordUpdate(t *testing.T) {
	t.Parallel()
	spec := infrav1.KKInstanceSpec{Update: &infrav1.Update{ID: "1"}}
	spec.BundleRef.Name = "next"
	another, corrected := *spec.DeepCopy(), *spec.DeepCopy()
	another.Update.ID, corrected.Registry.Address = "2", "right.site"
	for name, c := range map[string]struct {
		is   infrav1.KKInstanceSpec
		done bool
	}{"the same": {spec, true}, "another one by now": {another, false}, "a corrected one": {corrected, false}} {
		i := &infrav1.KKInstance{Spec: c.is}
		w := &instanceWork{InstanceReconciler: &InstanceReconciler{Recorder: events.NewFakeRecorder(1)}, i: i}
		w.recordUpdate(jobs.State{Value: provisionResult{brought: spec.DeepCopy()}})
		if ToUpdate(i) == c.done {
			t.Errorf("%s: done is not %v: %v", name, c.done, i.Annotations)
		}
	}
}
