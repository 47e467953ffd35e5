//go:build linux

package adopt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// theirs are the files of another tool on a node.
func theirs() map[string]string {
	return map[string]string{
		"/etc/kubernetes/kubelet.conf":                          "their login",
		"/etc/kubernetes/manifests/kube-apiserver.yaml":         "their API server",
		"/var/lib/kubelet/config.yaml":                          "their kubelet's settings",
		"/var/lib/kubelet/kubeadm-flags.env":                    "their kubelet's arguments",
		"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": "their drop-in",
		"/etc/containerd/config.toml":                           "their containerd's settings",
		"/usr/local/bin/kubelet":                                "their kubelet",
		"/usr/local/bin/containerd":                             "their containerd",
		"/etc/sysctl.d/k8s.conf":                                "net.ipv4.ip_forward = 1\n",
	}
}

// adoptable returns a site with a cluster of another tool, and the cluster.
func adoptable(t *testing.T) (*sitetest.Site, *manifest.Cluster) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "cni: {type: none}\nimageRegistry: {type: none}\n")
	for _, h := range s.Hosts {
		for name, text := range theirs() {
			h.Put(t, name, text)
		}
		h.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
			items := make([]string, 0, 2)
			for _, name := range []string{"cp1", "node1"} {
				items = append(items, fmt.Sprintf(
					`{"metadata":{"name":%q},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, name))
			}
			_, err := fmt.Fprintf(cmd.Stdout, `{"items":[%s]}`, strings.Join(items, ","))
			return err
		})
	}
	s.Dialing("")
	return s, s.Options.Cluster
}

// trees returns the files of the hosts without those that need no way back.
func trees(t *testing.T, s *sitetest.Site) string {
	t.Helper()
	lock := regexp.MustCompile(`(?m)^/var/lib/kkbundle/lock.*\n  .*\n`)
	return lock.ReplaceAllString(s.Hosts["cp1"].Tree(t)+s.Hosts["node1"].Tree(t), "")
}

// TestTakeAndUndo: an adoption adds its copies and the record, and undoing it leaves every file as it was.
func TestTakeAndUndo(t *testing.T) {
	t.Parallel()
	s, c := adoptable(t)
	before := trees(t, s)
	if _, err := Take(t.Context(), s.Options, c); err != nil {
		t.Fatal(err)
	}
	for name, h := range s.Hosts {
		if h.Content(member.Path) == "" || h.Content(marks.AdoptionOf(c.Kubernetes.Version).Path("complete")) != "" {
			t.Errorf("%s has no record", name)
		}
		for file, text := range theirs() {
			if got := h.Content(file); got != text {
				t.Errorf("%s: %s was changed to %q", name, file, got)
			}
		}
	}
	taken := trees(t, s)
	if _, err := Take(t.Context(), s.Options, c); err != nil {
		t.Fatal("again:", err)
	}
	if diff := cmp.Diff(taken, trees(t, s)); diff != "" {
		t.Error("the second time something changed:", diff)
	}
	// What the operator does meanwhile stays.
	s.Hosts["cp1"].Put(t, "/etc/kubernetes/manifests/kube-apiserver.yaml", "upgraded by their tool")
	before = strings.Replace(before, "their API server", "upgraded by their tool", 1)
	if _, err := Undo(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	wantBefore(t, s, before)
	if _, err := Undo(t.Context(), s.Options); err != nil {
		t.Error("again:", err)
	}
}

// wantBefore compares the hosts with what they were. Directories that others may use stay.
func wantBefore(t *testing.T, s *sitetest.Site, before string) {
	t.Helper()
	left := func(tree string) string {
		var b strings.Builder
		for line := range strings.Lines(tree) {
			if !strings.Contains(line, " d") || strings.Contains(line, "kkbundle") {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	if diff := cmp.Diff(left(before), left(trees(t, s))); diff != "" {
		t.Error("the hosts are not as before:", diff)
	}
}

// TestKilledAdoption kills an adoption, and its undoing, after each of their commands, and runs them again.
func TestKilledAdoption(t *testing.T) {
	t.Parallel()
	for left := 1; ; left += sitetest.OneOf(t, 5) {
		s, c := adoptable(t)
		before := trees(t, s)
		killed := runKilled(t, s, left, func(ctx context.Context) error {
			_, err := Take(ctx, s.Options, c)
			return err
		})
		if _, err := Take(t.Context(), s.Options, c); err != nil {
			t.Fatalf("after %d commands: %v", left, err)
		}
		undone := runKilled(t, s, left, func(ctx context.Context) error {
			_, err := Undo(ctx, s.Options)
			return err
		})
		if _, err := Undo(t.Context(), s.Options); err != nil {
			t.Fatalf("after %d commands: %v", left, err)
		}
		if wantBefore(t, s, before); t.Failed() {
			t.Fatalf("after %d commands", left)
		}
		if !killed && !undone {
			return
		}
	}
}

// runKilled runs something with hosts that answer a number of commands, and reports whether it came to an end before.
func runKilled(t *testing.T, s *sitetest.Site, left int, do func(context.Context) error) (killed bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	life := &sitetest.Lifetime{Left: left, End: cancel}
	s.Options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
		return &sitetest.MortalHost{Host: s.Hosts[h.Name], Life: life}, nil
	}
	err := do(ctx)
	s.Dialing("")
	return err != nil
}

// TestNotUndone: a node that has moved on stays, with all others.
func TestNotUndone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, h *sitetest.Rooted)
		want   string
	}{
		"installed on": {func(t *testing.T, h *sitetest.Rooted) {
			h.Put(t, string(marks.Setting("kubelet")), "")
		}, marks.AdoptionDir},
		"under way": {func(t *testing.T, h *sitetest.Rooted) { h.Put(t, string(marks.UpgradeBegun), "") }, marks.AdoptionDir},
		"added": {func(t *testing.T, h *sitetest.Rooted) {
			h.Put(t, string(marks.Setting("kubelet")), "")
			if err := os.RemoveAll(filepath.Join(h.Root, marks.AdoptionDir)); err != nil {
				t.Fatal(err)
			}
		}, "kkbundle nodes delete node1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, cluster := adoptable(t)
			if _, err := Take(t.Context(), s.Options, cluster); err != nil {
				t.Fatal(err)
			}
			c.change(t, s.Hosts["node1"])
			before := trees(t, s)
			_, err := Undo(t.Context(), s.Options)
			refused, ok := errors.AsType[*NotUndoneError](err)
			if !ok || !strings.Contains(refused.Hint(), c.want) || refused.Host != "node1" {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(before, trees(t, s)); diff != "" {
				t.Error("something changed:", diff)
			}
		})
	}
}

// TestTakeRefuses: hosts of others, and a cluster file that says something else, are refused before any change.
func TestTakeRefuses(t *testing.T) {
	t.Parallel()
	s, c := adoptable(t)
	other := *c
	other.Metadata.Name = "other"
	before := trees(t, s)
	_, err := Take(t.Context(), s.Options, &other)
	if _, ok := errors.AsType[*DiffersError](err); !ok {
		t.Errorf("another name: %v", err)
	}
	s.Hosts["node1"].Put(t, marks.Owner, "default/c/m\n")
	_, err = Take(t.Context(), s.Options, c)
	if err == nil || !strings.Contains(err.Error(), "belongs to machine default/c/m") {
		t.Errorf("Cluster API's: %v", err)
	}
	s.Hosts["node1"].Stub(t, "sync", "exit 1")
	if err := os.Remove(filepath.Join(s.Hosts["node1"].Root, marks.Owner)); err != nil {
		t.Fatal(err)
	}
	if _, err = Take(t.Context(), s.Options, c); err == nil {
		t.Error("no copies, and no error")
	}
	_ = os.Remove(filepath.Join(s.Hosts["node1"].Root, task.StateDir)) // the owner's mark kept it
	wantBefore(t, s, before)
}
