package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	adminConf    = "/etc/kubernetes/admin.conf"
	clusterCA    = "/etc/kubernetes/pki/ca.crt"
	kubeadmFile  = stateDir + "/kubeadm.yaml" // while kubeadm runs; it has a token in it
	kubectlCache = stateDir + "/kubectl"
	// begunPath says that kubeadm was started on a host, memberPath that it succeeded.
	begunPath  = stampDir + "/kubeadm-begun"
	memberPath = stampDir + "/member"
	// tokenLife is how long a node may take to join.
	tokenLife = time.Hour
)

// kubeletTask installs kubeadm, kubectl and the kubelet, which idles until kubeadm has configured it.
func kubeletTask() Task {
	const executable = 0o755
	return settle(Task{
		Name:  "kubelet",
		Roles: []manifest.Role{manifest.RoleCluster},
		Files: []Place{
			{"kubeadm", "", "/usr/local/bin/kubeadm", executable},
			{"kubectl", "", "/usr/local/bin/kubectl", executable},
			{"kubelet", "", "/usr/local/bin/kubelet", executable},
		},
	}, func(context.Context, *Target) (setting, error) {
		return setting{
			files: []textFile{
				{"/etc/systemd/system/kubelet.service", 0o644, []byte(kubeletUnit)},
				{"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", 0o644, []byte(kubeletDropIn)},
			},
			apply: func(ctx context.Context, t *Target) error {
				if err := t.systemctl(ctx, "daemon-reload"); err != nil {
					return err
				}
				if err := t.systemctl(ctx, "enable", "kubelet.service"); err != nil {
					return err
				}
				return t.systemctl(ctx, "try-restart", "kubelet.service")
			},
		}, nil
	})
}

const kubeletUnit = `# Written by kkbundle.
[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target containerd.service

[Service]
ExecStart=/usr/local/bin/kubelet
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`

// https://github.com/kubernetes/release/blob/master/cmd/krel/templates/latest/kubeadm/10-kubeadm.conf
const kubeletDropIn = `# Written by kkbundle, as kubeadm wants it.
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`

// initTask makes the first control plane.
func initTask() Task {
	return Task{
		Name:  "kubeadm-init",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Images: []string{
			"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "pause",
		},
		Done: func(ctx context.Context, t *Target) (bool, error) { return t.isMember(ctx) },
		Do: func(ctx context.Context, t *Target) error {
			config, err := t.run.kubeadm()
			if err != nil {
				return err
			}
			// kubeadm makes a token for a day if it is given none; this one ends before anybody could use it.
			data, err := config.init(t.Name, t.IP, t.Is(manifest.RoleWorker), newToken())
			if err != nil {
				return err
			}
			return t.becomeMember(ctx, data, "init", "--skip-phases=show-join-command")
		},
	}
}

// joinTask makes the other nodes; control planes one by one, because each becomes a member of etcd.
func joinTask(name string, where Where, role manifest.Role) Task {
	return Task{
		Name:   name,
		Roles:  []manifest.Role{role},
		Where:  where,
		Images: []string{"kube-proxy", "pause"},
		Done:   func(ctx context.Context, t *Target) (bool, error) { return t.isMember(ctx) },
		Do:     func(ctx context.Context, t *Target) error { return t.join(ctx) },
	}
}

func (r *run) kubeadm() (kubeadmConfig, error) {
	return newKubeadmConfig(r.cluster, endpoint(r.cluster, r.firstControlPlane().IP))
}

// A MemberError says that a host is a node of another cluster than the one that is to be installed.
type MemberError struct {
	Host string
	// Is and Want are the clusters' names and versions.
	Is, Want string
}

// Error names the host and both clusters.
func (e *MemberError) Error() string {
	return fmt.Sprintf("%s is a node of cluster %s, and this would make it one of cluster %s", e.Host, e.Is, e.Want)
}

// Hint says what to do about it.
func (e *MemberError) Hint() string {
	return "give the cluster file that this cluster was made with; kkbundle cannot rename or upgrade clusters yet, and reset takes the old one away"
}

// isMember tells whether the host is a node of this cluster. That it is one of another is an error: kubeadm would be
// made to take it apart.
func (t *Target) isMember(ctx context.Context) (bool, error) {
	data, err := t.read(ctx, memberPath)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	is, want := strings.TrimSpace(string(data)), t.run.clusterID()
	if is != want {
		return false, &MemberError{Host: t.Name, Is: is, Want: want}
	}
	return true, nil
}

// clusterID is what makes a cluster another one.
func (r *run) clusterID() string { return r.cluster.Metadata.Name + " " + r.cluster.Kubernetes.Version }

// becomeMember runs kubeadm. If an earlier run was interrupted while kubeadm was at work, what that left is taken away
// first: kubeadm does not continue, it refuses.
func (t *Target) becomeMember(ctx context.Context, config []byte, args ...string) error {
	begun, err := t.test(ctx, "test", "-e", begunPath)
	if err != nil {
		return err
	}
	if begun {
		if err := t.undoKubeadm(ctx); err != nil {
			return err
		}
	}
	if err := t.write(ctx, textFile{begunPath, 0o600, nil}); err != nil {
		return err
	}
	if err := t.withKubeadmFile(ctx, config, args...); err != nil {
		return err
	}
	return t.write(ctx, textFile{memberPath, 0o600, []byte(t.run.clusterID() + "\n")})
}

// undoKubeadm stops a kubeadm that lost its session but is still running, and resets what it made.
func (t *Target) undoKubeadm(ctx context.Context) error {
	if _, err := t.test(ctx, "pkill", "--exact", "kubeadm"); err != nil {
		return err
	}
	return t.command(ctx, "kubeadm", "reset", "--force", "--cri-socket="+criSocket)
}

// withKubeadmFile runs kubeadm with a configuration that only exists as long as it runs.
func (t *Target) withKubeadmFile(ctx context.Context, config []byte, args ...string) (err error) {
	if err := t.write(ctx, textFile{kubeadmFile, 0o600, config}); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, t.command(context.WithoutCancel(ctx), "rm", "-f", kubeadmFile))
	}()
	return t.command(ctx, slices.Concat([]string{"kubeadm"}, args, []string{"--config=" + kubeadmFile})...)
}

// join makes the host a node, with a token of its own that is gone afterwards.
func (t *Target) join(ctx context.Context) (err error) {
	first := t.run.firstControlPlane()
	config, err := t.run.kubeadm()
	if err != nil {
		return err
	}
	caPEM, err := first.output(ctx, "cat", clusterCA)
	if err != nil {
		return fmt.Errorf("certificate authority of the cluster: %w", err)
	}
	ca, err := parseCertificate(caPEM)
	if err != nil {
		return fmt.Errorf("%s on %s: %w", clusterCA, first.Name, err)
	}
	j := joining{
		name: t.Name, ip: t.IP, token: newToken(), pin: pin(ca),
		worker: t.Is(manifest.RoleWorker), controlPlane: t.Is(manifest.RoleControlPlane),
	}
	t.run.mask.hide(j.token)
	secret, err := bootstrapToken(j.token, t.run.Now().Add(tokenLife).UTC().Format(time.RFC3339), "made by kkbundle for "+t.Name)
	if err != nil {
		return err
	}
	if err := first.kubectlApply(ctx, secret); err != nil {
		return fmt.Errorf("token for %s: %w", t.Name, err)
	}
	defer func() {
		id, _, _ := strings.Cut(j.token, ".")
		_, forget := first.kubectl(context.WithoutCancel(ctx), "delete", "secret", "--namespace=kube-system", "--ignore-not-found", "bootstrap-token-"+id)
		err = errors.Join(err, forget)
	}()
	if j.controlPlane {
		if j.certificateKey, err = first.uploadCerts(ctx, config); err != nil {
			return err
		}
	}
	data, err := config.join(j)
	if err != nil {
		return err
	}
	return t.becomeMember(ctx, data, "join")
}

// uploadCerts puts the authorities' keys into the cluster for a joining control plane, encrypted with the key that it
// returns.
func (t *Target) uploadCerts(ctx context.Context, config kubeadmConfig) (key string, err error) {
	const aes256 = 32
	key = randomHex(aes256)
	t.run.mask.hide(key)
	data, err := config.uploadCerts(key, t.IP)
	if err != nil {
		return "", err
	}
	return key, t.withKubeadmFile(ctx, data, "init", "phase", "upload-certs", "--upload-certs")
}

// kubectl runs kubectl as the cluster's administrator and returns what it prints.
func (t *Target) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return t.kubectlWith(ctx, nil, args...)
}

// kubectlApply applies objects that may be secret.
func (t *Target) kubectlApply(ctx context.Context, objects []byte) error {
	_, err := t.kubectlWith(ctx, bytes.NewReader(objects), "apply", "--filename=-")
	return err
}

func (t *Target) kubectlWith(ctx context.Context, input io.Reader, args ...string) ([]byte, error) {
	out := &limited{most: maxFile}
	err := t.on.Run(ctx, host.Cmd{
		Args:   slices.Concat([]string{"kubectl", "--kubeconfig=" + adminConf}, args),
		Env:    []string{"KUBECACHEDIR=" + kubectlCache}, // not in root's home, where Reset has no business
		Stdin:  input,
		Stdout: out,
	})
	return out.Bytes(), errors.Join(err, out.err)
}

// kubectlJSON decodes what kubectl prints. It can be long, and goes into the journal only if it fails.
func (t *Target) kubectlJSON(ctx context.Context, into any, args ...string) error {
	data, err := t.kubectl(withoutOutput(ctx), append(args, "--output=json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("output of kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// apiTask waits for the API server, which may still be starting after a reboot.
func apiTask() Task {
	return Task{
		Name:  "api-server",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Do: func(ctx context.Context, t *Target) error {
			const start = 2 * time.Minute
			return eventually(ctx, start, func(ctx context.Context) error {
				_, err := t.kubectl(ctx, "get", "--raw=/readyz")
				return err
			})
		},
	}
}

// adminConfTask keeps the administrator's kubeconfig in the work directory.
func adminConfTask() Task {
	return Task{
		Name:  "admin-conf",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			there, err := t.read(ctx, adminConf)
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			here, err := t.run.dir.read(adminConfFile)
			return err == nil && bytes.Equal(here, there), nil
		},
		Do: func(ctx context.Context, t *Target) error {
			data, err := t.read(ctx, adminConf)
			if err != nil {
				return err
			}
			return t.run.dir.write(adminConfFile, data)
		},
	}
}

const workerLabel = "node-role.kubernetes.io/worker"

// labelTask marks the workers, so that kubectl shows them as such.
func labelTask() Task {
	lacking := func(ctx context.Context, t *Target) ([]string, error) {
		nodes, err := t.nodes(ctx)
		if err != nil {
			return nil, err
		}
		var names []string
		for _, n := range nodes {
			_, labelled := n.Metadata.Labels[workerLabel]
			isWorker := slices.ContainsFunc(t.run.withRole(manifest.RoleWorker), func(w *Target) bool { return w.Name == n.Metadata.Name })
			if isWorker && !labelled {
				names = append(names, n.Metadata.Name)
			}
		}
		return names, nil
	}
	return Task{
		Name:  "node-labels",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return false, err
			}
			names, err := lacking(ctx, t)
			return len(names) == 0, err
		},
		Do: func(ctx context.Context, t *Target) error {
			names, err := lacking(ctx, t)
			if err != nil {
				return err
			}
			_, err = t.kubectl(ctx, slices.Concat([]string{"label", "node"}, names, []string{workerLabel + "="})...)
			return err
		},
	}
}
