package harbor_test

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/registry/harbor"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
)

// TestCopyToUnreachable: Harbor says "internal server error" of another registry that it does not reach.
func TestCopyToUnreachable(t *testing.T) {
	t.Parallel()
	s := harbortest.Only(t, harbortest.Options{})
	s.CutOff()
	err := client(t, s).CopyTo(t.Context(), harbor.Remote{Name: "other", URL: "https://10.0.0.3", Username: "admin", Password: "x"})
	if err == nil || !strings.Contains(err.Error(), "internal server error") ||
		!strings.Contains(err.Error(), "must reach https://10.0.0.3") {
		t.Errorf("got %v", err)
	}
}
