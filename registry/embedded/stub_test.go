package embedded_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/distribution/distribution/v3/tracing"
)

// TestStubsFail asks distribution for what internal/stub replaces: each fails and says so.
func TestStubsFail(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		defer func() {
			if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "redis is not supported: ") {
				t.Errorf("got %s", got)
			}
		}()
		c := &configuration.Configuration{Storage: configuration.Storage{"filesystem": {"rootdirectory": t.TempDir()}}}
		c.Redis.Options.Addrs = []string{"127.0.0.1:6379"}
		handlers.NewApp(t.Context(), c)
		t.Error("a registry with redis was made")
	})
	for _, setting := range []string{"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"} {
		t.Run(setting, func(t *testing.T) {
			name, value, _ := strings.Cut(setting, "=")
			t.Setenv(name, value)
			if err := tracing.InitOpenTelemetry(t.Context()); err == nil ||
				!strings.HasPrefix(err.Error(), setting+" is not supported: ") {
				t.Errorf("got %v", err)
			}
		})
	}
}
