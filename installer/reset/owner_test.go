//go:build linux

package reset

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const owner = "site/prod/md-1"

// ownedSite has a host with an installation of the owner.
func ownedSite(t *testing.T) (*sitetest.Site, *sitetest.Rooted) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Dialing("")
	h := s.Hosts["node1"]
	for _, file := range []string{
		task.StampDir + "/kernel", task.ConfigDir + "/x", marks.Receipt("a-document", 1), "/etc/kubernetes/kubelet.conf",
	} {
		h.Put(t, file, "")
	}
	h.Put(t, marks.Owner, owner+"\n")
	s.Options.Limit = []string{"node1"}
	return s, h
}

// TestResetOwner removes the installation of the machine that the host has a mark of, and of no other one. A person's
// reset is the way out, and says whose host it was.
func TestResetOwner(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owner task.Machine
		mark  string
		want  bool
	}{
		"its machine":       {owner, owner + "\n", true},
		"another machine":   {"site/test/md-1", owner + "\n", false},
		"no mark":           {owner, "", false},
		"a damaged mark":    {owner, "site/prod", false},
		"a person":          {"", owner + "\n", true},
		"a person, damaged": {"", "site/prod", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, h := ownedSite(t)
			h.Put(t, marks.Owner, c.mark)
			if c.mark == "" {
				if err := os.Remove(filepath.Join(h.Root, marks.Owner)); err != nil {
					t.Fatal(err)
				}
			}
			s.Options.Owner = c.owner
			for _, s.Options.DryRun = range []bool{true, false} {
				err := Reset(t.Context(), s.Options)
				if (err == nil) != c.want {
					t.Fatalf("dry run %v: %v", s.Options.DryRun, err)
				}
				if c.mark != "site/prod" && err != nil && !errors.As(err, new(*begin.OwnedError)) {
					t.Errorf("got %v", err)
				}
			}
			if got := !strings.Contains(h.Tree(t), "/etc/kubernetes/kubelet.conf"); got != c.want {
				t.Errorf("removed: %v, want %v", got, c.want)
			}
			if c.want && strings.Contains(h.Tree(t), task.StateDir) {
				t.Errorf("left:\n%s", h.Tree(t))
			}
		})
	}
}

// TestResetOwnerKilled kills a reset after each of its commands: the next one may continue, because the mark goes last.
func TestResetOwnerKilled(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 23)
	left := 1
	for n := 1; left > 0; n += step {
		s, h := ownedSite(t)
		s.Options.Owner = owner
		life := &sitetest.Lifetime{Left: n}
		dial := s.Options.Dial
		s.Options.Dial = func(ctx context.Context, one manifest.Host) (host.Host, error) {
			conn, err := dial(ctx, one)
			return &sitetest.MortalHost{Host: conn, Life: life}, err
		}
		if err := Reset(t.Context(), s.Options); err == nil {
			left = 0
		}
		s.Options.Dial = dial
		if err := Reset(context.WithoutCancel(t.Context()), s.Options); err != nil {
			t.Errorf("killed after %d commands: the next run: %v", n, err)
		}
		if tree := h.Tree(t); strings.Contains(tree, task.StateDir) || strings.Contains(tree, "kubelet.conf") {
			t.Errorf("killed after %d commands, left:\n%s", n, tree)
		}
	}
}
