//go:build linux

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

const machineOwner = "site/prod/prod-md-0-x"

// A machineNode is a host that is a machine of Cluster API.
type machineNode struct {
	*sitetest.Site
	host *sitetest.Rooted
	// kubelet is the version of its kubelet, declared that of kubeadm-config, and server that of the API server.
	kubelet, declared, server string
	// process returns the number of the kubelet's process.
	process func() string

	mu   sync.Mutex
	said []string // what was done, in its order
}

// newMachineNode is a worker whose cluster's control planes have the bundle's release.
func newMachineNode(t *testing.T) *machineNode {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "node1")
	to := s.Options.Cluster.Kubernetes.Version
	m := &machineNode{Site: s, host: s.Hosts["node1"], kubelet: minorBefore(t, to), declared: to, server: to, process: func() string { return "7" }}
	s.Dialing("")
	s.Options.Helper = func(string) ([]byte, error) { return []byte("helper"), nil }
	s.Options.Bundle = sitetest.ClusterBundle(t, s.Options.Cluster)
	s.Options.Owner = machineOwner
	h := m.host
	h.Put(t, marks.Owner, machineOwner+"\n")
	h.Put(t, kubeletConf, "")
	h.Answer("uname", printed("x86_64\n"))
	h.Answer("kubelet", func(ctx context.Context, cmd host.Cmd) error {
		return printed("Kubernetes "+m.kubelet+"\n")(ctx, cmd)
	})
	h.Answer("kubectl", func(ctx context.Context, cmd host.Cmd) error {
		switch line := strings.Join(cmd.Args, " "); {
		case strings.Contains(line, "kubeadm-config"):
			return printed("kind: ClusterConfiguration\nkubernetesVersion: "+m.declared+"\n")(ctx, cmd)
		case strings.HasSuffix(line, "--raw=/version"):
			return printed(`{"gitVersion": "`+m.server+`"}`)(ctx, cmd)
		}
		return nil
	})
	h.Answer("kubeadm", m.program)
	h.Answer("systemctl", func(ctx context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "show" {
			return printed("MainPID="+m.process()+"\n")(ctx, cmd)
		}
		return m.program(ctx, cmd)
	})
	h.Answer("sleep", func(context.Context, host.Cmd) error { return nil })
	return m
}

// program notes a command. After kubeadm a control plane's API server is the declared one.
func (m *machineNode) program(_ context.Context, cmd host.Cmd) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said = append(m.said, strings.Join(cmd.Args, " "))
	if cmd.Args[0] == "kubeadm" {
		m.server = m.declared
	}
	return nil
}

func printed(text string) func(context.Context, host.Cmd) error {
	return func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, text)
		return err
	}
}

// minorBefore is a release of the minor release before.
func minorBefore(t *testing.T, version string) string {
	t.Helper()
	var minor, patch int
	if _, err := fmt.Sscanf(version, "v1.%d.%d", &minor, &patch); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("v1.%d.9", minor-1)
}

func (m *machineNode) plane(t *testing.T) {
	t.Helper()
	m.host.Put(t, "/etc/kubernetes/manifests/kube-apiserver.yaml", "")
	m.server = m.kubelet
}

// The programs change in the order of an upgrade, with kubeadm before the kubelet, and a repeated run is no other one.
func TestMachine(t *testing.T) {
	t.Parallel()
	patches := Patches{Dir: "/etc/kubernetes/patches", Files: []provision.File{
		{Path: "/etc/kubernetes/patches/kubeletconfiguration+merge.yaml", Mode: 0o600, Data: []byte("maxPods: 99\n")},
	}}
	for name, edit := range map[string]func(*testing.T, *machineNode){
		"a worker": func(*testing.T, *machineNode) {}, "a control plane": func(t *testing.T, m *machineNode) { m.plane(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachineNode(t)
			edit(t, m)
			written := ""
			m.host.Answer("kubeadm", func(ctx context.Context, cmd host.Cmd) error {
				written = m.host.Content(patches.Files[0].Path)
				return m.program(ctx, cmd)
			})
			if _, err := CheckMachine(t.Context(), m.Options, "node1"); err != nil || len(m.said) > 0 || m.host.Content("/usr/local/bin/kubeadm") != "" {
				t.Errorf("the check: %v, %q", err, m.said)
			}
			for range 2 {
				m.said = nil
				if _, err := Machine(t.Context(), m.Options, "node1", patches); err != nil {
					t.Fatal(err)
				}
				if written != "maxPods: 99\n" {
					t.Errorf("kubeadm found the patch %q", written)
				}
				at := func(line string) int {
					return slices.IndexFunc(m.said, func(s string) bool { return strings.HasPrefix(s, line) })
				}
				if a, b := at("kubeadm upgrade node --patches=/etc/kubernetes/patches"), at("systemctl start kubelet.service"); a < 0 || b < a {
					t.Errorf("want kubeadm, then the kubelet:\n%s", strings.Join(m.said, "\n"))
				}
				m.kubelet = m.Options.Cluster.Kubernetes.Version
			}
			for _, path := range []string{"/usr/local/bin/kubelet", "/usr/local/bin/kubeadm", "/usr/local/bin/containerd"} {
				if m.host.Content(path) == "" {
					t.Errorf("there is no %s", path)
				}
			}
			if len(m.Hosts["cp1"].Ran) != 0 {
				t.Errorf("another host was worked on: %q", m.Hosts["cp1"].Ran)
			}
		})
	}
}

// Without patches of Cluster API's, kubeadm gets those that are on the host: reservations and the host's own settings.
func TestMachineKeepsItsPatches(t *testing.T) {
	t.Parallel()
	m := newMachineNode(t)
	m.host.Put(t, kubeadm.PatchesDir+"/"+kubeadm.HostPatch, "maxPods: 50\n")
	if _, err := Machine(t.Context(), m.Options, "node1", Patches{}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(m.said, func(line string) bool {
		return strings.HasPrefix(line, "kubeadm upgrade node --patches="+kubeadm.PatchesDir)
	}) {
		t.Errorf("kubeadm is run without the host's patches:\n%s", strings.Join(m.said, "\n"))
	}
}

// A host that is not the machine's, or that the release must not be brought to, stays as it is.
func TestMachineIsRefused(t *testing.T) {
	t.Parallel()
	to := newMachineNode(t).Options.Cluster.Kubernetes.Version
	before := minorBefore(t, to)
	for name, c := range map[string]struct {
		edit func(*testing.T, *machineNode)
		want string
	}{
		"another machine": {func(_ *testing.T, m *machineNode) { m.Options.Owner = "site/prod/prod-md-0-y" }, "and not to site/prod/prod-md-0-y"},
		"no machine": {func(t *testing.T, m *machineNode) {
			m.host.Put(t, marks.Owner, "site/test/node1\n")
			m.Options.Owner = ""
		}, "belongs to machine site/test/node1"},
		"no node": {func(t *testing.T, m *machineNode) {
			if err := os.Remove(filepath.Join(m.host.Root, kubeletConf)); err != nil {
				t.Fatal(err)
			}
		}, "is no node"},
		"a newer kubelet":                   {func(_ *testing.T, m *machineNode) { m.kubelet = "v1.99.0" }, "cannot be downgraded"},
		"two minor releases":                {func(t *testing.T, m *machineNode) { m.kubelet = minorBefore(t, before) }, "cannot be skipped"},
		"older API servers":                 {func(_ *testing.T, m *machineNode) { m.server = before }, "a kubelet must not be newer"},
		"another version in kubeadm-config": {func(t *testing.T, m *machineNode) { m.plane(t); m.declared = before }, "kubeadm-config of the cluster has the version " + before},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachineNode(t)
			c.edit(t, m)
			_, err := Machine(t.Context(), m.Options, "node1", Patches{})
			if _, checked := CheckMachine(t.Context(), m.Options, "node1"); checked == nil || err == nil || checked.Error() != err.Error() {
				t.Errorf("the check says %v, and the work %v", checked, err)
			}
			if refused := (*RefusedError)(nil); err == nil || !strings.Contains(err.Error(), c.want) ||
				!errors.As(err, &refused) && !errors.As(err, new(*begin.OwnedError)) {
				t.Fatalf("want %q, got %v", c.want, err)
			}
			if len(m.said) > 0 || m.host.Content("/usr/local/bin/kubeadm") != "" {
				t.Errorf("the host was changed: %q", m.said)
			}
		})
	}
}

// A kubelet that does not take its settings ends again and again: the update is not done.
func TestKubeletStays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		processes []string
		stays     bool
	}{
		"it stays": {[]string{"7", "7"}, true}, "it waits to be started": {[]string{"7", "0"}, false},
		"it was started again": {[]string{"7", "8"}, false}, "it is not there": {[]string{"0", "0"}, false},
	} {
		m := newMachineNode(t)
		m.process = func() string {
			one := c.processes[0]
			c.processes = c.processes[1:]
			return one
		}
		if err := kubeletStays(t.Context(), m.Run(t, nil).Hosts[1]); (err == nil) != c.stays {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := newMachineNode(t)
	asked := false
	m.process = func() string { asked = true; return "7" }
	if _, err := Machine(t.Context(), m.Options, "node1", Patches{}); err != nil || !asked {
		t.Errorf("%v, asked %v", err, asked)
	}
}

// Of a file, the mode counts, too.
func TestMachineWritesModes(t *testing.T) {
	t.Parallel()
	m := newMachineNode(t)
	const path = "/etc/kubernetes/patches/etcd.yaml"
	m.host.Put(t, path, "x\n")
	files := []provision.File{{Path: path, Mode: 0o600, Data: []byte("x\n")}}
	if _, err := Machine(t.Context(), m.Options, "node1", Patches{Dir: "/etc/kubernetes/patches", Files: files}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(m.host.Root, path)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A step that fails stops the run before the kubelet is newer than the API server.
func TestMachineStops(t *testing.T) {
	t.Parallel()
	m := newMachineNode(t)
	m.host.Answer("kubeadm", func(context.Context, host.Cmd) error {
		return &host.ExitError{Host: "node1", Args: []string{"kubeadm"}, Code: 1, Stderr: "etcd is ill"}
	})
	if _, err := Machine(t.Context(), m.Options, "node1", Patches{}); err == nil || !strings.Contains(err.Error(), "etcd is ill") {
		t.Fatal(err)
	}
	if m.host.Content("/usr/local/bin/kubelet") != "" {
		t.Error("the kubelet was changed")
	}
}
