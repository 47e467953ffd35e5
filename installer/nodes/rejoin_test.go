//go:build linux

package nodes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestRejoin has etcd know a control plane that is to join: by its name, or by its address alone if it was never
// started.
func TestRejoin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		member string // of etcd, beside cp1 and cp2
		begun  bool   // whether kubeadm was interrupted on the host
		ill    bool
		taken  bool // whether the member is another machine's
	}{
		"interrupted":               {member: "cp3", begun: true},
		"interrupted, and it fell":  {member: "cp3", begun: true, ill: true},
		"interrupted, not started":  {member: "10.0.0.13", begun: true, ill: true},
		"the host lost its disk":    {member: "cp3", ill: true},
		"another has its name":      {member: "cp3", taken: true},
		"etcd does not know it":     {},
		"interrupted before etcd":   {begun: true},
		"interrupted under no name": {member: "10.0.0.13", begun: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, l := sitetest.NewLivingSite(t, "cp1", "cp2")
			h := s.Hosts["cp3"]
			h.Put(t, kube.ClusterCA, s.Hosts["cp1"].Content(kube.ClusterCA))
			if c.member != "" {
				l.Members = append(l.Members, c.member)
			}
			if c.ill {
				l.Ill = []string{c.member}
			}
			if c.begun {
				h.Put(t, member.BegunPath, "")
			}
			var seen []string // of etcd's members, when kubeadm does something
			h.Answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
				l.Mu.Lock()
				defer l.Mu.Unlock()
				seen = append(seen, cmd.Args[1]+" "+strings.Join(l.Members, " "))
				return nil
			})
			err := s.Run(t, nil).Phases(t.Context(),
				[]task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-control-plane", task.OneByOne,
					manifest.RoleControlPlane)}}})
			want := []string{"join cp1 cp2"}
			switch {
			case c.taken:
				want = nil
			case c.begun:
				want = []string{"reset cp1 cp2", "join cp1 cp2"}
			}
			var taken *kubeadm.TakenError
			if errors.As(err, &taken) != c.taken || !c.taken && err != nil || !slices.Equal(seen, want) {
				t.Errorf("%v; kubeadm saw %q, want %q", err, seen, want)
			}
			if c.taken && (!slices.Contains(l.Members, "cp3") || !strings.Contains(taken.Hint(), "nodes delete cp3")) {
				t.Errorf("members %q, %s", l.Members, taken.Hint())
			}
		})
	}
}
