//go:build linux

package installer

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestJoinOthers joins a worker to a cluster with Kubespray's objects: authorities in another directory, settings of
// the kubelet that are not the nodes', another address of DNS, and kube-proxy behind a balancer on each node.
func TestJoinOthers(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3, maxPods: 200, kubelet: {readOnlyPort: 0}}")
	f := sitetest.NewFakeCluster(t, s)
	cp, node := s.Hosts["cp1"], s.Hosts["node1"]
	cp.Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
	cp.Put(t, marks.AdoptionOf("v1.34.3").Dir+"/complete", "")
	answers := map[string]string{
		"configmap kubeadm-config": `{"data": {"ClusterConfiguration": "certificatesDir: /etc/kubernetes/ssl\n"}}`,
		"configmap kubelet-config": `{"data": {"kubelet": "clusterDNS: [10.96.0.10]\nreadOnlyPort: 10255\nfailSwapOn: true\n"}}`,
		"configmap kube-proxy":     `{"data": {"kubeconfig.conf": "    server: https://127.0.0.1:6443\n"}}`,
		"services":                 `{"items": [{"spec": {"clusterIP": "10.96.0.3"}}]}`,
	}
	var patched string
	cp.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		line := strings.Join(cmd.Args, " ")
		if strings.Contains(line, " patch configmap kube-proxy ") {
			patched = line
		}
		for what, text := range answers {
			if strings.Contains(line, " get "+what) {
				_, err := io.WriteString(cmd.Stdout, text)
				return err
			}
		}
		return nil
	})
	given := ""
	node.Answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "join" {
			files, _ := filepath.Glob(filepath.Join(node.Root, kubeadm.PatchesDir, "kubeletconfiguration*"))
			for _, file := range files {
				data, _ := os.ReadFile(file)
				given += string(data)
			}
			given += node.Content(marks.KubeadmConfig)
		}
		return f.Fail
	})
	join := kubeadm.JoinTask("join-worker", task.Each, manifest.RoleWorker)
	if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{join}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"clusterDNS:\n- 10.96.0.3\n", "maxPods: 200\n", "readOnlyPort: 0\n", "directory: " + kubeadm.PatchesDir} {
		if !strings.Contains(given, want) {
			t.Errorf("kubeadm was not given %q:\n%s", want, given)
		}
	}
	if to, err := os.Readlink(filepath.Join(node.Root, "/etc/kubernetes/ssl")); err != nil || !strings.HasSuffix(to, "/etc/kubernetes/pki") {
		t.Errorf("the link to the authorities: %q, %v", to, err)
	}
	if !strings.Contains(patched, "10.0.0.3:6443") {
		t.Errorf("kube-proxy asks nobody: %q", patched)
	}
	if files, _ := filepath.Glob(filepath.Join(node.Root, kubeadm.PatchesDir, "*adopted*")); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
}

// TestArgumentsOfAdoptedNode gives the kubelet of an adopted node the address that the other tool has in its own files.
func TestArgumentsOfAdoptedNode(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Answer("uname", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "machine7\n")
		return err
	})
	const file, theirs = "/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--v=2\"\n"
	h.Put(t, file, theirs)
	once := func() string {
		t.Helper()
		if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "upgrade", Tasks: []task.Task{kubeadm.ArgumentsTask()}}}); err != nil {
			t.Fatal(err)
		}
		return strings.Join(s.States(), " ")
	}
	if once(); h.Content(file) != theirs {
		t.Errorf("of a node of kkbundle: %q", h.Content(file))
	}
	h.Put(t, marks.AdoptionOf("v1.34.3").Path("complete"), "")
	const want = "KUBELET_KUBEADM_ARGS=\"--v=2 --node-ip=10.0.0.3 --hostname-override=cp1\"\n"
	if once(); h.Content(file) != want {
		t.Errorf("got %q, want %q", h.Content(file), want)
	}
	if states := once(); strings.Contains(states, "changed") {
		t.Errorf("again: %s", states)
	}
}

// TestSecretsOfAdoptedNode closes what another tool left open, and nothing of a node that it did not make.
func TestSecretsOfAdoptedNode(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	const pod = "/etc/kubernetes/manifests/haproxy.yml"
	h.Put(t, pod, "kind: Pod\n")
	modes := func() string {
		t.Helper()
		list := ""
		for _, name := range []string{"/etc/kubernetes/manifests", pod} {
			if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "upgrade", Tasks: []task.Task{kubeadm.SecretsTask()}}}); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(h.Root, name))
			if err != nil {
				t.Fatal(err)
			}
			list += info.Mode().Perm().String() + " "
		}
		return list
	}
	if err := os.Chmod(filepath.Join(h.Root, "/etc/kubernetes/manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	before := modes()
	if !strings.HasPrefix(before, "-rwxr-xr-x ") {
		t.Errorf("of a node of kkbundle: %s", before)
	}
	h.Put(t, marks.AdoptionOf("v1.34.3").Path("complete"), "")
	if got := modes(); got != "-rwx------ -rw------- " {
		t.Errorf("got %s, before %s", got, before)
	}
	if states := strings.Join(s.States(), " "); strings.Count(states, "changed") != 1 {
		t.Errorf("changed more than once: %s", states)
	}
}
