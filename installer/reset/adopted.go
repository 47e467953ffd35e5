package reset

import (
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

// An AdoptedError is a node that kkbundle took over and has not upgraded: its programs are another tool's, and a reset
// does not know how to remove them.
type AdoptedError struct{ Host string }

// Error names the host.
func (e *AdoptedError) Error() string {
	return fmt.Sprintf("%s was adopted, and has the programs of another tool still", e.Host)
}

// Hint returns the remedy.
func (e *AdoptedError) Hint() string {
	return "nothing was changed; first make the nodes kkbundle's with kkbundle upgrade, also at the same release, or give the cluster back with kkbundle adopt --undo"
}

// Refuses marks an error that ends a run before any change.
func (*AdoptedError) Refuses() {}

// RefuseAdopted returns an *AdoptedError if a node was adopted and has no kubelet of kkbundle.
func RefuseAdopted(ctx context.Context, t *task.Host) error {
	others, err := marks.HasOthersPrograms(ctx, t)
	if err != nil || !others {
		return err
	}
	return &AdoptedError{Host: t.Name}
}
