package kubeadm

import (
	"context"
	_ "embed"
	"strings"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// privatePaths returns the paths, with all below, that only root may read on a hardened node (CIS 1.1 and 4.1).
func privatePaths() []string {
	return []string{
		"/etc/kubernetes", "/etc/cni/net.d", "/etc/containerd", "/var/lib/etcd",
		"/etc/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service.d",
		"/etc/systemd/system/containerd.service",
		"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/instance-config.yaml",
		"/var/lib/kubelet/pki",
	}
}

// EtcdMemberDir is the data directory of kubeadm's etcd member.
const EtcdMemberDir = etcd.DefaultDataDir + "/member"

// SecretPaths returns the paths that only root may read in every cluster. Of etcd it has only the member directory: the
// parent may be a mounted disk with the site's mode.
func SecretPaths() []string {
	list := []string{"/etc/kubernetes/manifests", EncryptionOnHost, EtcdMemberDir, "/var/lib/kubelet/pki/kubelet.key"}
	for _, name := range []string{"admin", "super-admin", "kubelet", "controller-manager", "scheduler"} {
		list = append(list, "/etc/kubernetes/"+name+".conf")
	}
	for _, name := range []string{
		"ca", "apiserver", "apiserver-kubelet-client", "apiserver-etcd-client", "front-proxy-ca", "front-proxy-client",
		"sa",
		"etcd/ca", "etcd/server", "etcd/peer", "etcd/healthcheck-client",
	} {
		list = append(list, "/etc/kubernetes/pki/"+name+".key")
	}
	return list
}

//go:embed scripts/close-modes.sh
var closeModesScript string

//go:embed scripts/list-open.sh
var listOpenScript string

//go:embed scripts/encrypt-secrets.sh
var encryptSecretsScript string

// ModesTask makes a node's configuration and state readable by root only.
func ModesTask() task.Task {
	return task.Task{
		Name:  "file-modes",
		Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			open, err := OpenFiles(ctx, t, privatePaths()...)
			return len(open) == 0, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return t.Run(ctx, host.Script("close-modes.sh", closeModesScript, privatePaths()...)...)
		},
	}
}

// OpenFiles lists files and directories that users other than root can read, write or enter, at most 20 per path.
// Inside etcd's member directory only the directory itself is checked: etcd writes snap/*.snap readable for all.
func OpenFiles(ctx context.Context, t *task.Host, paths ...string) ([]string, error) {
	out, err := t.Output(ctx, append(host.Script("list-open.sh", listOpenScript, EtcdMemberDir), paths...)...)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(out)), nil
}

// EncryptTask rewrites every Secret, on the host itself, to encrypt Secrets that are older than the encryption key.
func EncryptTask() task.Task {
	stamp := func(ctx context.Context, t *task.Host) (task.File, error) {
		config, err := Encryption(ctx, t.Site)
		return rewrittenStamp(config), err
	}
	step := onceFor("encrypt-secrets", stamp, rewriteSecrets)
	rewritten := step.Done
	step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
		if guarded, err := Guarded(ctx, t.Site); err != nil || !guarded {
			return true, err
		}
		return rewritten(ctx, t)
	}
	return step
}

// rewriteSecrets writes every Secret anew, which encrypts it with the first key.
func rewriteSecrets(ctx context.Context, t *task.Host) error {
	return task.Eventually(ctx, task.NodeReadyTimeout, func(ctx context.Context) error {
		// reset removes the cache
		args := append([]string{task.StateDir, "env", "KUBECACHEDIR=" + task.KubectlCache},
			t.Site.Distribution.Kubectl...)
		return t.Run(ctx, host.Script("encrypt-secrets.sh", encryptSecretsScript, args...)...)
	})
}
