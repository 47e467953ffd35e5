package kubeadm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// tokenLife limits the time for a node to join.
const tokenLife = time.Hour

// KubeletTask installs kubeadm, kubectl and the kubelet, which idles until kubeadm has configured it.
func KubeletTask(c *manifest.Cluster) task.Task {
	packages := task.NodePackages()
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		packages = append(packages, "ipset", "ipvsadm")
	}
	return task.Settle(task.Task{
		Name:        "kubelet",
		Independent: true,
		Roles:       []manifest.Role{manifest.RoleCluster},
		Packages:    packages,
		Leaves:      task.Leaves{Paths: []string{marks.CopiesDir, marks.AdoptionDir}},
		Files: []task.Place{
			{Component: "kubeadm", Member: "", Path: "/usr/local/bin/kubeadm", Mode: task.Executable},
			{Component: "kubectl", Member: "", Path: "/usr/local/bin/kubectl", Mode: task.Executable},
			{Component: "kubelet", Member: "", Path: "/usr/local/bin/kubelet", Mode: task.Executable},
		},
	}, func(context.Context, *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{
				{
					Path: task.UnitDir + KubeletUnit, Mode: 0o644,
					Data: fmt.Appendf(nil, hostfile.Mark+"\n"+kubeletUnit, cri.RuntimeOf(c).After()),
				},
				{
					Path: kubeletDropInPath, Mode: 0o644,
					Data: []byte(kubeletDropIn),
				},
			},
			Apply: func(ctx context.Context, t *task.Host) error {
				if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
					return err
				}
				if err := t.Systemctl(ctx, "enable", KubeletUnit); err != nil {
					return err
				}
				return t.Systemctl(ctx, "try-restart", KubeletUnit)
			},
		}, nil
	})
}

//go:embed units/kubelet.service
var kubeletUnit string

// The operator's environment files are those of kubeadm's Debian and Red Hat packages.
// https://github.com/kubernetes/release/blob/master/cmd/krel/templates/latest/kubeadm/10-kubeadm.conf
const kubeletDropIn = hostfile.Author + `, as kubeadm wants it.
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
EnvironmentFile=-/etc/sysconfig/kubelet
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`

// InitTask creates the first control plane.
func InitTask(c *manifest.Cluster) task.Task {
	images := []string{
		"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler",
		"pause",
	}
	if c.Etcd.Type != manifest.EtcdInternal {
		images = slices.DeleteFunc(images, func(name string) bool { return name == "etcd" })
	}
	return task.Task{
		Name:   "kubeadm-init",
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Where:  task.First,
		Images: images,
		Done:   member.IsMember,
		Do: func(ctx context.Context, t *task.Host) error {
			config, err := ConfigOf(ctx, t.Site)
			if err != nil {
				return err
			}
			n, err := NodeOf(ctx, t)
			if err != nil {
				return err
			}
			data, err := config.init(n)
			if err != nil {
				return err
			}
			if err := errors.Join(needSecurityFiles(ctx, t), validate(ctx, t, data)); err != nil {
				return err
			}
			return CreateNode(ctx, t, data, "init", "--skip-phases=show-join-command")
		},
	}
}

// JoinTask joins the other nodes.
func JoinTask(name string, where task.Where, role manifest.Role) task.Task {
	return task.Task{
		Name:   name,
		Roles:  []manifest.Role{role},
		Where:  where,
		Images: []string{"kube-proxy", "pause"},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if t.Name == t.Site.FirstControlPlane().Name {
				return true, nil // created by kubeadm init
			}
			return member.IsMember(ctx, t)
		},
		Do: join,
	}
}

// ConfigOf returns the kubeadm configuration of the site's cluster.
func ConfigOf(ctx context.Context, r *task.Site) (Config, error) {
	guarded, err := Guarded(ctx, r)
	if err != nil {
		return Config{}, err
	}
	return NewConfig(r.Cluster, r.Endpoint(), Parts(r, guarded)...)
}

// NodeOf returns the configuration of a host's node, with a new token.
func NodeOf(ctx context.Context, t *task.Host) (Node, error) {
	patches, err := patches(ctx, t)
	return Node{
		name: t.Name, IPs: t.Addresses(), token: newToken(), taints: t.Taints, Patched: len(patches) > 0,
		worker: t.Is(manifest.RoleWorker), controlPlane: t.Is(manifest.RoleControlPlane),
	}, err
}

// validate makes kubeadm check its configuration for unknown fields and values, which it would ignore or fail on later.
func validate(ctx context.Context, t *task.Host, config []byte) error {
	if err := Run(ctx, t, config, "config", "validate"); err != nil {
		return fmt.Errorf("kubeadm rejects its configuration; correct kubernetes.kubeadm, kubelet or kubeProxy in the cluster file: %w", err)
	}
	return nil
}

// CreateNode runs kubeadm init or join. It first undoes an interrupted kubeadm, which would refuse to continue.
func CreateNode(ctx context.Context, t *task.Host, config []byte, args ...string) error {
	if _, err := undo(ctx, t); err != nil {
		return err
	}
	if err := t.Write(ctx, marks.KubeadmBegun.File(nil)); err != nil {
		return err
	}
	// kubeadm creates it on control planes, and keeps the mode of an existing one.
	if err := t.Run(ctx, "install", "-d", "-m", "0700", kube.ManifestsDir); err != nil {
		return err
	}
	if err := endpoint.BeforeKubeadm(ctx, t, args[0] == "init"); err != nil {
		return err
	}
	since, err := t.Clock(ctx)
	if err != nil {
		return err
	}
	if err := Run(ctx, t, config, args...); err != nil {
		return diagnose.Explain(ctx, t, since, err)
	}
	return t.Write(ctx, member.File(t.Site))
}

// undo stops a kubeadm that outlived its session and resets the node. It reports whether there was anything to undo.
func undo(ctx context.Context, t *task.Host) (undone bool, err error) {
	if begun, err := Stop(ctx, t, marks.KubeadmBegun); err != nil || !begun {
		return false, err
	}
	if err := t.Run(ctx, "kubeadm", "reset", "--force", "--cri-socket="+
		cri.RuntimeOf(t.Site.Cluster).Socket); err != nil {
		return false, err
	}
	return true, marks.Remove(ctx, t, marks.KubeadmBegun)
}

// Stop ends a kubeadm that outlived its session. It reports whether mark, the stamp of an unfinished kubeadm, exists.
func Stop(ctx context.Context, t *task.Host, mark marks.Stamp) (begun bool, err error) {
	if begun, err := mark.Exists(ctx, t); err != nil || !begun {
		return false, err
	}
	_, err = t.Test(ctx, "pkill", "--exact", "kubeadm")
	return true, err
}

// Run runs kubeadm with a configuration file that is removed afterwards.
func Run(ctx context.Context, t *task.Host, config []byte, args ...string) (err error) {
	if err := t.Write(ctx, task.File{Path: marks.KubeadmConfig, Mode: 0o600, Data: config}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-f", marks.KubeadmConfig)) }()
	return t.Run(ctx, slices.Concat([]string{"kubeadm"}, args, []string{"--config=" + marks.KubeadmConfig})...)
}

// join makes the host a node, with a token that is deleted afterwards.
func join(ctx context.Context, t *task.Host) (err error) {
	first := t.Site.FirstControlPlane()
	config, err := ConfigOf(ctx, t.Site)
	if err != nil {
		return err
	}
	n, err := NodeOf(ctx, t)
	if err != nil {
		return err
	}
	t.Site.Mask.Hide(n.token)
	if n.pin, err = member.ClusterPin(ctx, first); err != nil {
		return err
	}
	if err := undoJoin(ctx, t, first); err != nil {
		return err
	}
	if err := createToken(ctx, first, n); err != nil {
		return fmt.Errorf("token for %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, deleteToken(ctx, first, n.token)) }()
	if n.controlPlane {
		if err := needSecurityFiles(ctx, t); err != nil {
			return err
		}
		if n.certificateKey, err = uploadCerts(ctx, first, config); err != nil {
			return err
		}
	}
	patch, err := beforeJoin(ctx, t, first, config)
	if err != nil {
		return err
	}
	if patch != "" {
		n.Patched = true
		defer func() { err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-f", "--", patch)) }()
	}
	data, err := config.join(n)
	if err != nil {
		return err
	}
	return CreateNode(ctx, t, data, "join")
}

// undoJoin undoes an interrupted join. The host's etcd member is removed while it still runs: of two members, the
// other has no quorum alone. The node is deleted, too: kubeadm refuses to join under the name of a ready node.
func undoJoin(ctx context.Context, t *task.Host, first *task.Host) error {
	if err := removeOldMember(ctx, t); err != nil {
		return err
	}
	undone, err := undo(ctx, t)
	if err != nil || !undone {
		return err
	}
	return first.Kube().DeleteNode(ctx, t.Name)
}

// createToken creates a joining node's token. Its expiry is by the control plane's clock: this machine's may be wrong.
func createToken(ctx context.Context, t *task.Host, n Node) error {
	now, err := t.Clock(ctx)
	if err != nil {
		return err
	}
	expires := now.Add(tokenLife).UTC().Format(time.RFC3339)
	secret, err := bootstrapToken(n.token, expires, "made by kkbundle for "+n.name)
	if err != nil {
		return err
	}
	return t.Kube().Apply(ctx, secret, kube.Apply{})
}

// deleteToken deletes a joined node's token, also after ctx has ended.
func deleteToken(ctx context.Context, t *task.Host, token string) error {
	id, _, _ := strings.Cut(token, ".")
	_, err := t.Kubectl(context.WithoutCancel(ctx), "delete", "secret", "--namespace="+kube.SystemNamespace,
		"--ignore-not-found", "bootstrap-token-"+id)
	return err
}

// uploadCerts stores the CA keys in the cluster for a joining control plane and returns the key that encrypts them.
func uploadCerts(ctx context.Context, t *task.Host, config Config) (key string, err error) {
	const aes256 = 32
	key = task.RandomHex(aes256)
	t.Site.Mask.Hide(key)
	data, err := config.uploadCerts(key, t.IP)
	if err != nil {
		return "", err
	}
	return key, Run(ctx, t, data, "init", "phase", "upload-certs", "--upload-certs")
}
