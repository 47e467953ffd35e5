package cli_test

import (
	"regexp"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
)

// TestHelpBegins holds that help begins with what the command does: "Builds a bundle", not "The cluster file
// describes".
func TestHelpBegins(t *testing.T) {
	t.Parallel()
	verb := regexp.MustCompile(`^[A-Z][a-z]+s\b`)
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.HasParent() && c.IsAvailableCommand() && c.Long != "" && !verb.MatchString(c.Long) {
			t.Errorf("help of %q begins with %.60q", c.CommandPath(), c.Long)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(cli.Commands())
}
