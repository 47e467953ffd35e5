package charts

import (
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/storage/driver"
)

// TestStubsFail asks Helm for the driver that internal/stub leaves nothing of.
func TestStubsFail(t *testing.T) {
	t.Parallel()
	_, err := driver.NewSQL("postgresql://127.0.0.1/helm", func(string, ...any) {}, "default")
	if err == nil || !strings.HasPrefix(err.Error(), "releases in a SQL database are not supported: ") {
		t.Errorf("got %v", err)
	}
}
