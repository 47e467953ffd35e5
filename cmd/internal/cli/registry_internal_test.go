package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/registry/service"
)

// TestDryRunOfTheRegistryService has a dry run say what would happen to the service.
func TestDryRunOfTheRegistryService(t *testing.T) {
	t.Parallel()
	for want, res := range map[string]service.Result{
		"the service would be started\n":       {Program: true, Started: true},
		"the service would be restarted\n":     {Program: true, Started: true, Ran: true},
		"the service would not be restarted\n": {Program: true, Ran: true},
	} {
		var log strings.Builder
		g := &globals{Console: terminal.NewConsole(terminal.Streams{
			In: strings.NewReader(""), Out: io.Discard,
			Err: &log,
		})}
		o := registryInstallOptions{dryRun: true}
		o.Listen, o.Names = ":443", []string{"registry.site"}
		if err := g.installed(res, o); err != nil || !strings.HasPrefix(log.String(), want) {
			t.Errorf("%v, got %q, want %q", err, log.String(), want)
		}
	}
}
