package webhooks_test

import (
	"testing"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/webhooks"
)

// TestUpdates: only the provider names an update in place, and its bundle and registry can be corrected until it is
// done.
func TestUpdates(t *testing.T) {
	t.Parallel()
	w := webhooks.Instance{Manager: "provider"}
	const refused, replace = "only the provider asks", "replace the Machine"
	asks := func(i *infrav1.KKInstance) {
		i.Spec.Update, i.Spec.Version = &infrav1.Update{ID: "2", Patches: "/p"}, "v2"
		i.Spec.BundleRef.Name, i.Spec.Registry.Address = "next", "registry.site"
	}
	corrects := func(i *infrav1.KKInstance) { i.Spec.BundleRef.Name, i.Spec.Registry.Address = "right", "other.site" }
	patches := func(i *infrav1.KKInstance) { i.Spec.Update = &infrav1.Update{ID: "1", Patches: "/q"} }
	first := infrav1.KKInstance{Spec: infrav1.KKInstanceSpec{HostName: "host1", Version: "v1"}}
	asked := first.DeepCopy()
	asked.Spec.Update = &infrav1.Update{ID: "1"}
	done := asked.DeepCopy()
	done.Annotations = map[string]string{infrav1.UpdatedAnnotation: "1"}
	for name, c := range map[string]struct {
		old            *infrav1.KKInstance
		change         func(*infrav1.KKInstance)
		byUs, byOthers string
	}{
		"an update":                   {&first, asks, "", refused},
		"another one":                 {asked, asks, "", refused},
		"another one after the first": {done, asks, "", refused},
		"bundle and registry":         {&first, corrects, replace, replace},
		"those of an update":          {asked, corrects, "", replace},
		"those of one that is done":   {done, corrects, replace, replace},
		"patches of the same one":     {asked, patches, replace, replace},
		"no update any more":          {asked, func(i *infrav1.KKInstance) { i.Spec.Update = nil }, replace, replace},
		"another host with an update": {&first, func(i *infrav1.KKInstance) { asks(i); i.Spec.HostName = "host2" }, replace, replace},
		"an annotation":               {asked, func(i *infrav1.KKInstance) { i.Annotations = map[string]string{"a": "b"} }, "", ""},
	} {
		i := c.old.DeepCopy()
		c.change(i)
		_, err := w.ValidateUpdate(by(t, "provider"), c.old, i)
		verdict(t, name+" by the provider", err, c.byUs)
		_, err = w.ValidateUpdate(by(t, "admin"), c.old, i)
		verdict(t, name+" by another", err, c.byOthers)
	}
}
