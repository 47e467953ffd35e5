//go:build linux

package installer

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// haproxyUser is the user of the image docker.io/library/haproxy.
const haproxyUser = 99

// TestHAProxyReadsItsFilesOnAHardenedHost reads every file that haproxy's pod mounts as haproxy's user, after the
// pass that closes the files of a hardened node. A hard link in an open directory stands for the mount: like it, it
// has the file's own mode and none of the directories above.
func TestHAProxyReadsItsFilesOnAHardenedHost(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	s, _ := sitetest.NewHA(t,
		"controlPlaneEndpoint: {type: haproxy}\nkubernetes: {version: v1.34.3, security: hardened}")
	h := s.Hosts["node1"]
	h.Put(t, kube.ClusterCA, "-----BEGIN CERTIFICATE-----\n")
	ctx, cancel := context.WithCancel(t.Context())
	s.Hosts["cp1"].Answer("kubectl", func(context.Context, host.Cmd) error {
		cancel() // the files are written, and no kubelet starts the pod
		return nil
	})
	node := s.Run(t, nil).HostNamed("node1")
	if err := endpoint.HAProxyTask().Do(ctx, node); ctx.Err() == nil {
		t.Fatalf("ended before it wrote its files: %v", err)
	}
	if err := kubeadm.ModesTask().Do(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if open, err := kubeadm.OpenFiles(t.Context(), node, "/etc/kubernetes"); err != nil || len(open) > 0 {
		t.Fatalf("still open: %v, %v", open, err)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(h.Content("/etc/kubernetes/manifests/haproxy.yaml")), &pod); err != nil ||
		len(pod.Spec.Volumes) != 2 {
		t.Fatalf("the static pod: %v, %d volumes", err, len(pod.Spec.Volumes))
	}
	mounts, err := os.MkdirTemp("", "kkbundle-haproxy-") //nolint:usetesting // another user cannot enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(mounts) })
	if err := os.Chmod(mounts, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, v := range pod.Spec.Volumes {
		mounted := filepath.Join(mounts, v.Name)
		if err := os.Link(filepath.Join(h.Root, v.HostPath.Path), mounted); err != nil {
			t.Fatal(err)
		}
		read := exec.CommandContext(t.Context(), "cat", mounted)
		read.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: haproxyUser, Gid: haproxyUser}}
		if out, err := read.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("%s as user %d: %v: %s", v.HostPath.Path, haproxyUser, err, out)
		}
	}
}
