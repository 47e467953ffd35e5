//go:build linux

package begin

import (
	"context"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

func TestSpace(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster))
	kinds := func(t2 *task.Host) string {
		t.Helper()
		list, err := space(t.Context(), t2)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, one := range list {
			found = append(found, one.For)
		}
		return strings.Join(found, ", ")
	}
	if got := kinds(r.Hosts[0]); got != "programs, images, the registry" {
		t.Errorf("cp1 needs space for %s", got)
	}
	if got := kinds(r.Hosts[1]); got != "programs, images" {
		t.Errorf("node1 needs space for %s", got)
	}
	h := s.Hosts["cp1"]
	h.Put(t, member.Path, "site v1.34.3\n")
	h.Put(t, siteregistry.DataDir+"/blob", strings.Repeat("x", 1<<20))
	h.Put(t, "/var/lib/containerd/blob", strings.Repeat("x", 1<<20))
	h.Answer("du", func(_ context.Context, cmd host.Cmd) error { // something went away while it counted
		_, _ = cmd.Stdout.Write([]byte("1048576\t" + cmd.Args[len(cmd.Args)-1] + "\n"))
		return &host.ExitError{Code: 1}
	})
	if got := kinds(r.Hosts[0]); got != "" {
		t.Errorf("after everything was written, cp1 needs space for %s", got)
	}
}
