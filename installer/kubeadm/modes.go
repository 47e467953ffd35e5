package installer

import (
	"context"
	"crypto/sha256"
	_ "embed" // scripts
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/installer/host"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// closedPaths are what nobody but root has to read on a node (CIS 1.1 and 4.1), files and directories with all that is in
// them. What is not there is passed over.
func closedPaths() []string {
	return []string{
		"/etc/kubernetes", "/etc/cni/net.d", "/etc/containerd", "/var/lib/etcd",
		"/etc/systemd/system/kubelet.service", "/etc/systemd/system/kubelet.service.d", "/etc/systemd/system/containerd.service",
		"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/pki",
	}
}

// etcdMemberDir is where the etcd that kubeadm runs has its data.
const etcdMemberDir = defaultEtcdDir + "/member"

// secretPaths are what must be root's alone in every cluster. etcd's own directory is closed; what it is in may be a disk
// that the site has mounted, with the site's mode.
func secretPaths() []string {
	list := []string{"/etc/kubernetes/manifests", encryptionOnHost, etcdMemberDir, "/var/lib/kubelet/pki/kubelet.key"}
	for _, name := range []string{"admin", "super-admin", "kubelet", "controller-manager", "scheduler"} {
		list = append(list, "/etc/kubernetes/"+name+".conf")
	}
	for _, name := range []string{
		"ca", "apiserver", "apiserver-kubelet-client", "apiserver-etcd-client", "front-proxy-ca", "front-proxy-client", "sa",
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

// modesTask takes away everybody else's rights to a node's configuration and state.
func modesTask() Task {
	return Task{
		Name:  "file-modes",
		Roles: []manifest.Role{manifest.RoleCluster},
		Done: func(ctx context.Context, t *Target) (bool, error) {
			open, err := t.openFiles(ctx, closedPaths()...)
			return len(open) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			return t.command(ctx, host.Script("close-modes.sh", closeModesScript, closedPaths()...)...)
		},
	}
}

// openFiles lists files and directories that others than root can read, write or enter, at most 20 a path. etcd writes its
// snap/*.snap for everybody, now and again for years: there its directory counts, which has to be closed.
func (t *Target) openFiles(ctx context.Context, paths ...string) ([]string, error) {
	out, err := t.output(ctx, append(host.Script("list-open.sh", listOpenScript, etcdMemberDir), paths...)...)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(out)), nil
}

// encryptTask writes every Secret anew, so that those from before there was a key are encrypted, too. Nothing of them leaves
// the host.
func encryptTask() Task {
	stamp := func(ctx context.Context, t *Target) (textFile, error) {
		config, err := t.run.encryption(ctx)
		return textFile{stampDir + "/secrets-encrypted", 0o600, fmt.Appendf(nil, "%x\n", sha256.Sum256(config))}, err
	}
	return Task{
		Name:  "encrypt-secrets",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			f, err := stamp(ctx, t)
			if err != nil {
				return false, err
			}
			return t.has(ctx, f)
		},
		Do: func(ctx context.Context, t *Target) error {
			f, err := stamp(ctx, t)
			if err != nil {
				return err
			}
			// A Secret that somebody changes meanwhile is refused; its writer has encrypted it, the others are tried again.
			if err := eventually(ctx, nodesWait, func(ctx context.Context) error {
				return t.command(ctx, host.Script("encrypt-secrets.sh", encryptSecretsScript, stateDir, adminConf)...)
			}); err != nil {
				return err
			}
			return t.write(ctx, f)
		},
	}
}

// namespacesTask prepares the namespaces of addons: pods there get no access to the API that they did not ask for, and,
// where the pod network looks at such things, are reached from their own namespace only, until a NetworkPolicy says more.
func namespacesTask(c *manifest.Cluster) Task {
	objects := func() ([]byte, error) {
		return kube.YAML(namespaceDefaults(c)...)
	}
	stamp := func(data []byte) textFile {
		return textFile{stampDir + "/namespaces", 0o600, fmt.Appendf(nil, "%x\n", sha256.Sum256(data))}
	}
	return Task{
		Name:  "namespaces",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			data, err := objects()
			if err != nil {
				return false, err
			}
			return t.has(ctx, stamp(data))
		},
		Do: func(ctx context.Context, t *Target) error {
			data, err := objects()
			if err != nil {
				return err
			}
			if err := t.kube().Apply(ctx, data, kube.Apply{Manager: marksManager}); err != nil {
				return err
			}
			return t.write(ctx, stamp(data))
		},
	}
}

// namespaceDefaults are the namespace default and those of addons, but for Kubernetes' own.
func namespaceDefaults(c *manifest.Cluster) []runtime.Object {
	names := []string{"default"}
	for _, a := range c.Addons {
		if !strings.HasPrefix(a.Namespace, "kube-") {
			names = append(names, a.Namespace)
		}
	}
	var objects []runtime.Object
	for i, name := range names {
		if slices.Index(names, name) != i {
			continue
		}
		if name != "default" {
			objects = append(objects, namespaceObject(name))
		}
		objects = append(objects, &corev1.ServiceAccount{
			ObjectMeta:                   metav1.ObjectMeta{Name: "default", Namespace: name},
			AutomountServiceAccountToken: new(false),
		})
		if name != "default" && networkOf(c).polices {
			objects = append(objects, &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "kkbundle-same-namespace", Namespace: name},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
					Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}},
				},
			})
		}
	}
	return objects
}
