package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	adminConf    = "/etc/kubernetes/admin.conf"
	clusterCA    = "/etc/kubernetes/pki/ca.crt"
	kubeadmFile  = stateDir + "/kubeadm.yaml" // while kubeadm runs; it has a token in it
	kubectlCache = stateDir + "/kubectl"
	// tokenLife is how long a node may take to join.
	tokenLife = time.Hour
)

// kubeletTask installs kubeadm, kubectl and the kubelet, which idles until kubeadm has configured it.
func kubeletTask(c *manifest.Cluster) Task {
	packages := nodePackages()
	if c.Kubernetes.ProxyMode == manifest.ProxyIPVS {
		packages = append(packages, "ipset", "ipvsadm")
	}
	return settle(Task{
		Name:     "kubelet",
		Apart:    true,
		Roles:    []manifest.Role{manifest.RoleCluster},
		Packages: packages,
		Leaves:   Leaves{Paths: []string{keptDir}},
		Files: []Place{
			{"kubeadm", "", "/usr/local/bin/kubeadm", executable},
			{"kubectl", "", "/usr/local/bin/kubectl", executable},
			{"kubelet", "", "/usr/local/bin/kubelet", executable},
		},
	}, func(context.Context, *Target) (setting, error) {
		return setting{
			files: []textFile{
				{"/etc/systemd/system/kubelet.service", 0o644, fmt.Appendf(nil, kubeletUnit, runtimeOf(c).after())},
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

// nodePackages are what kubeadm's checks, the kubelet, kube-proxy and port forwarding use of the operating system.
func nodePackages() []string {
	return []string{"conntrack", "ebtables", "ethtool", "iproute", "iptables", "socat"}
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

// initTask makes the first control plane.
func initTask(c *manifest.Cluster) Task {
	images := []string{"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "pause"}
	if c.Etcd.Type != manifest.EtcdInternal {
		images = slices.DeleteFunc(images, func(name string) bool { return name == "etcd" })
	}
	return Task{
		Name:   "kubeadm-init",
		Roles:  []manifest.Role{manifest.RoleControlPlane},
		Where:  First,
		Images: images,
		Done:   func(ctx context.Context, t *Target) (bool, error) { return t.isMember(ctx) },
		Do: func(ctx context.Context, t *Target) error {
			config, err := t.run.kubeadm()
			if err != nil {
				return err
			}
			j, err := t.joining()
			if err != nil {
				return err
			}
			data, err := config.init(j)
			if err != nil {
				return err
			}
			if err := t.validate(ctx, data); err != nil {
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
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if t.Name == t.run.firstControlPlane().Name {
				return true, nil // it is made by kubeadm init, and joins nothing
			}
			return t.isMember(ctx)
		},
		Do: func(ctx context.Context, t *Target) error { return t.join(ctx) },
	}
}

func (r *Site) kubeadm() (kubeadmConfig, error) {
	return newKubeadmConfig(r.cluster, r.endpoint(), r.parts()...)
}

// joining says what kubeadm is told about a host. kubeadm init would make a token for a day if it were given none; this one
// ends before anybody could use it.
func (t *Target) joining() (joining, error) {
	patches, err := t.patches()
	return joining{
		name: t.Name, ips: t.addresses(), token: newToken(), taints: t.Taints, patched: len(patches) > 0,
		worker: t.Is(manifest.RoleWorker), controlPlane: t.Is(manifest.RoleControlPlane),
	}, err
}

// validate lets kubeadm look for fields and values that it does not know, which it would pass over or stop at half way.
func (t *Target) validate(ctx context.Context, config []byte) error {
	if err := t.withKubeadmFile(ctx, config, "config", "validate"); err != nil {
		return fmt.Errorf("kubeadm refuses what kubernetes.kubeadm, kubelet or kubeProxy of the cluster file say: %w", err)
	}
	return nil
}

// becomeMember runs kubeadm. If an earlier run was interrupted while kubeadm was at work, what that left is taken away
// first: kubeadm does not continue, it refuses.
func (t *Target) becomeMember(ctx context.Context, config []byte, args ...string) error {
	if _, err := t.undoKubeadm(ctx); err != nil {
		return err
	}
	if err := t.write(ctx, textFile{begunPath, 0o600, nil}); err != nil {
		return err
	}
	// kubeadm makes it on control planes, and leaves it as it is where static pods of ours lie there already.
	if err := t.command(ctx, "install", "-d", "-m", "0700", manifestsDir); err != nil {
		return err
	}
	if err := t.beforeKubeadm(ctx, args[0] == "init"); err != nil {
		return err
	}
	since, err := t.clock(ctx)
	if err != nil {
		return err
	}
	if err := t.withKubeadmFile(ctx, config, args...); err != nil {
		return t.explain(ctx, since, err)
	}
	return t.write(ctx, t.run.memberFile())
}

// undoKubeadm stops a kubeadm that lost its session but is still running, and resets what it made. It tells whether
// there was anything to undo.
func (t *Target) undoKubeadm(ctx context.Context) (undone bool, err error) {
	if begun, err := t.stopKubeadm(ctx, begunPath); err != nil || !begun {
		return false, err
	}
	if err := t.command(ctx, "kubeadm", "reset", "--force", "--cri-socket="+runtimeOf(t.run.cluster).socket); err != nil {
		return false, err
	}
	return true, t.command(ctx, "rm", "-f", begunPath)
}

// stopKubeadm ends a kubeadm that lost its session but is still running, where a mark says that one was begun and did not end
// well. It tells whether there is that mark.
func (t *Target) stopKubeadm(ctx context.Context, mark string) (begun bool, err error) {
	if begun, err := t.test(ctx, "test", "-e", mark); err != nil || !begun {
		return false, err
	}
	_, err = t.test(ctx, "pkill", "--exact", "kubeadm")
	return true, err
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
	j, err := t.joining()
	if err != nil {
		return err
	}
	t.run.mask.hide(j.token)
	if j.pin, err = first.clusterPin(ctx); err != nil {
		return err
	}
	if err := t.leave(ctx, first); err != nil {
		return err
	}
	if err := first.allow(ctx, j); err != nil {
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

// leave undoes an interrupted join. etcd hears of it while the member that has half joined still runs: with that, two members
// agree, and without it one of two is left, for good. The node that it may have made has to go as well: as long as it counts as ready,
// kubeadm takes it for another machine's and refuses.
func (t *Target) leave(ctx context.Context, first *Target) error {
	if err := t.forgetMember(ctx); err != nil {
		return err
	}
	undone, err := t.undoKubeadm(ctx)
	if err != nil || !undone {
		return err
	}
	err = first.kube().DeleteNode(ctx, t.Name)
	return err
}

// allow makes a joining node's token valid, by the cluster's own clock: this machine's may be wrong.
func (t *Target) allow(ctx context.Context, j joining) error {
	now, err := t.clock(ctx)
	if err != nil {
		return err
	}
	expires := now.Add(tokenLife).UTC().Format(time.RFC3339)
	secret, err := bootstrapToken(j.token, expires, "made by kkbundle for "+j.name)
	if err != nil {
		return err
	}
	return t.kube().Apply(ctx, secret, kube.Apply{})
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
	return t.kube().Run(ctx, args...)
}

// kube returns a client that runs kubectl on this host, as the cluster's administrator.
func (t *Target) kube() kube.Client { return kube.Client{Kubectl: t.runKubectl} }

func (t *Target) runKubectl(ctx context.Context, c kube.Command) ([]byte, error) {
	if c.Quiet {
		ctx = withoutOutput(ctx)
	}
	if c.Patience > 0 {
		ctx = patient(ctx, c.Patience)
	}
	command := t.run.distribution.kubectl
	if server := t.ownServer(); server != "" {
		command = append(command, "--server="+server)
	}
	out := &capped.Buffer{Most: maxFile}
	cmd := host.Cmd{
		Args:   slices.Concat(command, c.Args),
		Env:    []string{"KUBECACHEDIR=" + kubectlCache}, // not in root's home, where Reset has no business
		Stdout: out,
	}
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	err := t.on.Run(ctx, cmd)
	return out.Bytes(), err
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
			there, err := t.run.distribution.adminKubeconfig(ctx, t)
			if errors.Is(err, fs.ErrNotExist) {
				because(ctx, "there is no cluster yet")
				return false, nil
			}
			if err != nil {
				return false, err
			}
			here, err := t.run.dir.read(adminConfFile)
			if err != nil || !bytes.Equal(here, there) {
				because(ctx, "the work directory has no admin.conf, or an old one")
			}
			return err == nil && bytes.Equal(here, there), checkKubeconfig(there)
		},
		Do: func(ctx context.Context, t *Target) error {
			data, err := t.run.distribution.adminKubeconfig(ctx, t)
			if err := errors.Join(err, checkKubeconfig(data)); err != nil {
				return err
			}
			return t.run.dir.write(adminConfFile, data)
		},
	}
}

// checkKubeconfig refuses what kubeadm does not write into admin.conf. On this machine a kubeconfig can run programs (exec)
// and read files (tokenFile, client-key and others), and a host must not decide on that.
func checkKubeconfig(data []byte) error {
	var allowed struct {
		APIVersion     string         `json:"apiVersion"`
		Kind           string         `json:"kind"`
		CurrentContext string         `json:"current-context"`
		Preferences    map[string]any `json:"preferences"`
		Clusters       []struct {
			Name    string `json:"name"`
			Cluster struct {
				Server        string `json:"server"`
				TLSServerName string `json:"tls-server-name"`
				CA            string `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Contexts []struct {
			Name    string `json:"name"`
			Context struct {
				Cluster   string `json:"cluster"`
				User      string `json:"user"`
				Namespace string `json:"namespace"`
			} `json:"context"`
		} `json:"contexts"`
		Users []struct {
			Name string `json:"name"`
			User struct {
				Certificate string `json:"client-certificate-data"`
				Key         string `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.UnmarshalStrict(data, &allowed); err != nil {
		return fmt.Errorf("%s is not as kubeadm writes it, and is not taken to this machine: %w", adminConf, err)
	}
	return nil
}
