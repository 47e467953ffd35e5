//go:build linux

package sitetest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// NewLivingK3s is newLivingSite with servers and agents of k3s, of which all but node2 are nodes and ready.
func NewLivingK3s(t *testing.T) (*Site, *livingCluster) {
	t.Helper()
	nodes := []string{"cp1", "cp2", "cp3", "node1"}
	s, l := NewLivingSite(t, nodes...)
	l.Ready, l.Members = slices.Clone(nodes), nil // nobody has etcdctl for k3s' members
	s.Options.Cluster = tasktest.Cluster(t,
		"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\ncontrolPlaneEndpoint: {type: external, address: api.example}\n")
	ca := CA()
	r := s.Run(t, nil)
	for _, name := range nodes {
		h := s.Hosts[name]
		h.Put(t, k3s.CA, string(ca))
		h.Put(t, member.Path, string(member.File(r.Site).Data))
		unit := "/etc/systemd/system/" + k3s.Unit(strings.HasPrefix(name, "cp"))
		h.Put(t, unit, hostfile.Mark+"\n[Unit]\n")
	}
	for _, h := range s.Hosts {
		h.Answer("k3s", func(ctx context.Context, cmd host.Cmd) error {
			cmd.Args = cmd.Args[1:] // k3s kubectl is kubectl
			return l.Kubectl(ctx, cmd)
		})
	}
	return s, l
}
