//go:build linux

package installer

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
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestRejoin has etcd know a control plane that is to join: by its name, or by its address alone if it was never started.
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
			s, l := newLivingSite(t, "cp1", "cp2")
			h := s.hosts["cp3"]
			h.put(t, kube.ClusterCA, s.hosts["cp1"].content(kube.ClusterCA))
			if c.member != "" {
				l.members = append(l.members, c.member)
			}
			if c.ill {
				l.ill = []string{c.member}
			}
			if c.begun {
				h.put(t, member.BegunPath, "")
			}
			var seen []string // of etcd's members, when kubeadm does something
			h.answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
				l.mu.Lock()
				defer l.mu.Unlock()
				seen = append(seen, cmd.Args[1]+" "+strings.Join(l.members, " "))
				return nil
			})
			err := s.run(t, nil).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-control-plane", task.OneByOne, manifest.RoleControlPlane)}}})
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
			if c.taken && (!slices.Contains(l.members, "cp3") || !strings.Contains(taken.Hint(), "nodes delete cp3")) {
				t.Errorf("members %q, %s", l.members, taken.Hint())
			}
		})
	}
}
