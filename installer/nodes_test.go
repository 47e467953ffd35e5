//go:build linux

package installer

import (
	"errors"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// TestInstallRenamedNodes holds that install does not touch a host under a name that is not its node's: it would take
// the node's name out of the others' /etc/hosts, and prove nothing about it.
func TestInstallRenamedNodes(t *testing.T) {
	t.Parallel()
	s, l := sitetest.NewLivingSite(t, "cp1", "node1")
	l.Nodes, l.Addresses = []string{"cp1", "worker1"}, map[string]string{"worker1": "10.0.0.21"}
	_, err := Run(t.Context(), s.Options)
	var nameless *begin.NamelessError
	if !errors.As(err, &nameless) || nameless.Host != "node1" || nameless.Node != "worker1" {
		t.Fatalf("got %v, want that node1 is worker1", err)
	}
	for _, e := range s.Events {
		if e.Task != "" {
			t.Errorf("%s was begun on %s", e.Task, e.Host)
		}
	}
}
