package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

const File = task.StateDir + "/kubeadm.yaml" // while kubeadm runs; it has a token in it

// tokenLife is how long a node may take to join.
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
		Leaves:      task.Leaves{Paths: []string{KeptDir}},
		Files: []task.Place{
			{Component: "kubeadm", Member: "", Path: "/usr/local/bin/kubeadm", Mode: task.Executable},
			{Component: "kubectl", Member: "", Path: "/usr/local/bin/kubectl", Mode: task.Executable},
			{Component: "kubelet", Member: "", Path: "/usr/local/bin/kubelet", Mode: task.Executable},
		},
	}, func(context.Context, *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{
				{Path: "/etc/systemd/system/kubelet.service", Mode: 0o644, Data: fmt.Appendf(nil, kubeletUnit, cri.RuntimeOf(c).After())},
				{Path: "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", Mode: 0o644, Data: []byte(kubeletDropIn)},
			},
			Apply: func(ctx context.Context, t *task.Host) error {
				if err := t.Systemctl(ctx, "daemon-reload"); err != nil {
					return err
				}
				if err := t.Systemctl(ctx, "enable", "kubelet.service"); err != nil {
					return err
				}
				return t.Systemctl(ctx, "try-restart", "kubelet.service")
			},
		}, nil
	})
}

const kubeletUnit = hostfile.Mark + `
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target %s

[Service]
ExecStart=/usr/local/bin/kubelet
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`

// The environment of operators is where kubeadm's Debian and Red Hat packages have it.
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

// InitTask makes the first control plane.
func InitTask(c *manifest.Cluster) task.Task {
	images := []string{"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "pause"}
	if c.Etcd.Type != manifest.EtcdInternal {
		images = slices.DeleteFunc(images, func(name string) bool { return name == "etcd" })
	}
	return task.Task{
		Name:   "kubeadm-init",
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Where:  task.First,
		Images: images,
		Done:   func(ctx context.Context, t *task.Host) (bool, error) { return member.IsMember(ctx, t) },
		Do: func(ctx context.Context, t *task.Host) error {
			config, err := Kubeadm(t.Site)
			if err != nil {
				return err
			}
			j, err := JoiningOf(t)
			if err != nil {
				return err
			}
			data, err := config.init(j)
			if err != nil {
				return err
			}
			if err := validate(ctx, t, data); err != nil {
				return err
			}
			return BecomeMember(ctx, t, data, "init", "--skip-phases=show-join-command")
		},
	}
}

// JoinTask makes the other nodes; control planes one by one, because each becomes a member of etcd.
func JoinTask(name string, where task.Where, role manifest.Role) task.Task {
	return task.Task{
		Name:   name,
		Roles:  []manifest.Role{role},
		Where:  where,
		Images: []string{"kube-proxy", "pause"},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if t.Name == t.Site.FirstControlPlane().Name {
				return true, nil // it is made by kubeadm init, and joins nothing
			}
			return member.IsMember(ctx, t)
		},
		Do: func(ctx context.Context, t *task.Host) error { return join(ctx, t) },
	}
}

func Kubeadm(r *task.Site) (Config, error) {
	return NewKubeadmConfig(r.Cluster, r.Endpoint(), Parts(r)...)
}

// Joining says what kubeadm is told about a host. kubeadm init would make a token for a day if it were given none; this one
// ends before anybody could use it.
func JoiningOf(t *task.Host) (Joining, error) {
	patches, err := patches(t)
	return Joining{
		name: t.Name, IPs: t.Addresses(), token: newToken(), taints: t.Taints, Patched: len(patches) > 0,
		worker: t.Is(manifest.RoleWorker), controlPlane: t.Is(manifest.RoleControlPlane),
	}, err
}

// validate lets kubeadm look for fields and values that it does not know, which it would pass over or stop at half way.
func validate(ctx context.Context, t *task.Host, config []byte) error {
	if err := WithKubeadmFile(ctx, t, config, "config", "validate"); err != nil {
		return fmt.Errorf("kubeadm refuses what kubernetes.kubeadm, kubelet or kubeProxy of the cluster file say: %w", err)
	}
	return nil
}

// BecomeMember runs kubeadm. If an earlier run was interrupted while kubeadm was at work, what that left is taken away
// first: kubeadm does not continue, it refuses.
func BecomeMember(ctx context.Context, t *task.Host, config []byte, args ...string) error {
	if _, err := undoKubeadm(ctx, t); err != nil {
		return err
	}
	if err := t.Write(ctx, task.File{Path: member.BegunPath, Mode: 0o600, Data: nil}); err != nil {
		return err
	}
	// kubeadm makes it on control planes, and leaves it as it is where static pods of ours lie there already.
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
	if err := WithKubeadmFile(ctx, t, config, args...); err != nil {
		return diagnose.Explain(ctx, t, since, err)
	}
	return t.Write(ctx, member.File(t.Site))
}

// undoKubeadm stops a kubeadm that lost its session but is still running, and resets what it made. It tells whether
// there was anything to undo.
func undoKubeadm(ctx context.Context, t *task.Host) (undone bool, err error) {
	if begun, err := StopKubeadm(ctx, t, member.BegunPath); err != nil || !begun {
		return false, err
	}
	if err := t.Run(ctx, "kubeadm", "reset", "--force", "--cri-socket="+cri.RuntimeOf(t.Site.Cluster).Socket); err != nil {
		return false, err
	}
	return true, t.Run(ctx, "rm", "-f", member.BegunPath)
}

// StopKubeadm ends a kubeadm that lost its session but is still running, where a mark says that one was begun and did not end
// well. It tells whether there is that mark.
func StopKubeadm(ctx context.Context, t *task.Host, mark string) (begun bool, err error) {
	if begun, err := t.Test(ctx, "test", "-e", mark); err != nil || !begun {
		return false, err
	}
	_, err = t.Test(ctx, "pkill", "--exact", "kubeadm")
	return true, err
}

// WithKubeadmFile runs kubeadm with a configuration that only exists as long as it runs.
func WithKubeadmFile(ctx context.Context, t *task.Host, config []byte, args ...string) (err error) {
	if err := t.Write(ctx, task.File{Path: File, Mode: 0o600, Data: config}); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-f", File))
	}()
	return t.Run(ctx, slices.Concat([]string{"kubeadm"}, args, []string{"--config=" + File})...)
}

// join makes the host a node, with a token of its own that is gone afterwards.
func join(ctx context.Context, t *task.Host) (err error) {
	first := t.Site.FirstControlPlane()
	config, err := Kubeadm(t.Site)
	if err != nil {
		return err
	}
	j, err := JoiningOf(t)
	if err != nil {
		return err
	}
	t.Site.Mask.Hide(j.token)
	if j.pin, err = member.ClusterPin(ctx, first); err != nil {
		return err
	}
	if err := leave(ctx, t, first); err != nil {
		return err
	}
	if err := allow(ctx, first, j); err != nil {
		return fmt.Errorf("token for %s: %w", t.Name, err)
	}
	defer func() {
		id, _, _ := strings.Cut(j.token, ".")
		_, forget := first.Kubectl(context.WithoutCancel(ctx), "delete", "secret", "--namespace=kube-system", "--ignore-not-found", "bootstrap-token-"+id)
		err = errors.Join(err, forget)
	}()
	if j.controlPlane {
		if j.certificateKey, err = uploadCerts(ctx, first, config); err != nil {
			return err
		}
	}
	data, err := config.join(j)
	if err != nil {
		return err
	}
	return BecomeMember(ctx, t, data, "join")
}

// leave undoes an interrupted join. etcd hears of it while the member that has half joined still runs: with that, two members
// agree, and without it one of two is left, for good. The node that it may have made has to go as well: as long as it counts as ready,
// kubeadm takes it for another machine's and refuses.
func leave(ctx context.Context, t *task.Host, first *task.Host) error {
	if err := forgetMember(ctx, t); err != nil {
		return err
	}
	undone, err := undoKubeadm(ctx, t)
	if err != nil || !undone {
		return err
	}
	err = first.Kube().DeleteNode(ctx, t.Name)
	return err
}

// allow makes a joining node's token valid, by the cluster's own clock: this machine's may be wrong.
func allow(ctx context.Context, t *task.Host, j Joining) error {
	now, err := t.Clock(ctx)
	if err != nil {
		return err
	}
	expires := now.Add(tokenLife).UTC().Format(time.RFC3339)
	secret, err := bootstrapToken(j.token, expires, "made by kkbundle for "+j.name)
	if err != nil {
		return err
	}
	return t.Kube().Apply(ctx, secret, kube.Apply{})
}

// uploadCerts puts the authorities' keys into the cluster for a joining control plane, encrypted with the key that it
// returns.
func uploadCerts(ctx context.Context, t *task.Host, config Config) (key string, err error) {
	const aes256 = 32
	key = task.RandomHex(aes256)
	t.Site.Mask.Hide(key)
	data, err := config.uploadCerts(key, t.IP)
	if err != nil {
		return "", err
	}
	return key, WithKubeadmFile(ctx, t, data, "init", "phase", "upload-certs", "--upload-certs")
}
