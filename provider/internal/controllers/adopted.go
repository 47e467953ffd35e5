package controllers

import (
	"time"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// markAdopted marks a new instance whose host is a node already, if its machine says so: something is on the host, and
// no run is left to be done.
func markAdopted(m *infrav1.KKMachine, i *infrav1.KKInstance, now time.Time) {
	if m.Annotations[infrav1.AdoptedAnnotation] != m.Name {
		return
	}
	setAnnotation(i, infrav1.BegunAnnotation, now.UTC().Format(time.RFC3339))
	setAnnotation(i, infrav1.ProvisionedAnnotation, "adopted")
}
