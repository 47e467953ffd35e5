package kubeadm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	configInCluster = "kubeadm-config"
	clusterPart     = "ClusterConfiguration"
	servingCert     = "apiserver.crt"
	leaseWait       = 2 * time.Minute
	servingWait     = 3 * time.Minute // an API server looks at its certificate's files every minute
	kubeletConf     = "/etc/kubernetes/kubelet.conf"
	superConf       = endpoint.SuperAdminConf
	managerConf     = "/etc/kubernetes/controller-manager.conf"
	schedulerConf   = "/etc/kubernetes/scheduler.conf"
)

// storedConfiguration returns kubeadm's configuration in the cluster.
func storedConfiguration(ctx context.Context, t *task.Host) (d kube.Document, err error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, configInCluster)
	if err != nil {
		return nil, fmt.Errorf("kubeadm's configuration in the cluster: %w", err)
	}
	if err := yaml.Unmarshal([]byte(config.Data[clusterPart]), &d); err != nil || d == nil {
		return nil, fmt.Errorf("kubeadm's configuration in the cluster (ConfigMap %s/%s) cannot be read: %w",
			kube.SystemNamespace, configInCluster, err)
	}
	return d, nil
}

// storeConfiguration replaces kubeadm's configuration in the cluster.
func storeConfiguration(ctx context.Context, t *task.Host, d kube.Document) error {
	data, err := yaml.Marshal(d)
	if err != nil {
		return err
	}
	return t.Kube().PatchConfigMap(ctx, kube.SystemNamespace, configInCluster, clusterPart, string(data))
}

// clusterConfiguration returns kubeadm's configuration in the cluster with another endpoint and with more names in
// API servers' certificates.
func clusterConfiguration(ctx context.Context, t *task.Host, hostPort string,
	names []string,
) (d kube.Document, changed bool, err error) {
	if d, err = storedConfiguration(ctx, t); err != nil {
		return nil, false, err
	}
	changed = d["controlPlaneEndpoint"] != hostPort
	d["controlPlaneEndpoint"] = hostPort
	server, _ := d[apiServer].(map[string]any)
	if server == nil {
		server = kube.Document{}
	}
	sans, _ := server["certSANs"].([]any)
	for _, name := range names {
		if !slices.Contains(sans, any(name)) {
			sans, changed = append(sans, name), true
		}
	}
	if len(sans) > 0 {
		server["certSANs"] = sans
		d[apiServer] = server
	}
	return d, changed, nil
}

// EndpointConfigTask writes the new endpoint into kubeadm's configuration in the cluster, for nodes that join and for
// upgrades.
func EndpointConfigTask(m endpoint.Move) task.Task {
	look := func(ctx context.Context, t *task.Host) (kube.Document, bool, error) {
		return clusterConfiguration(ctx, t, m.To.HostPort, endpoint.Part(t.Site).Names)
	}
	return task.Task{
		Name: "kubeadm-config", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			_, changed, err := look(ctx, t)
			return !changed, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			d, _, err := look(ctx, t)
			if err != nil {
				return err
			}
			return storeConfiguration(ctx, t, d)
		},
	}
}

//go:embed scripts/use-serving.sh
var useServingScript string

//go:embed scripts/resume-serving.sh
var resumeServingScript string

// EndpointPendingTask puts a new certificate into use whose key is in use already: a run was killed in between, and
// an API server that starts with both would fail. It asks no API server.
func EndpointPendingTask() task.Task {
	return task.Task{
		Name: "endpoint-pending", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.AnyExists(ctx, marks.NewServing)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			return t.Run(ctx, host.Script("resume-serving.sh", resumeServingScript, marks.NewServing, kube.PKIDir)...)
		},
	}
}

// EndpointCertificateTask gives API servers certificates with the names of the new endpoint and of the old ones, one
// by one. They read their certificates again without a restart.
func EndpointCertificateTask(m endpoint.Move) task.Task {
	return task.Task{
		Name: "endpoint-certificate", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.OneByOne,
		AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			now, _ := m.Hosts(t.Site)
			if ok, err := hasServing(ctx, t, now); err != nil || !ok {
				return false, err
			}
			if err := endpoint.Presents(ctx, t, now); err != nil {
				task.Because(ctx, "the API server has not read its new certificate")
				return false, nil //nolint:nilerr // Do waits for it
			}
			return true, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			now, before := m.Hosts(t.Site)
			ok, err := hasServing(ctx, t, now)
			if err == nil && !ok {
				err = newServingCertificate(ctx, t, m.To.HostPort, slices.Concat(now, before))
			}
			if err != nil {
				return err
			}
			return task.Eventually(ctx, servingWait,
				func(ctx context.Context) error { return endpoint.Presents(ctx, t, now) })
		},
	}
}

// hasServing reports whether the API server's certificate file is valid for all names.
func hasServing(ctx context.Context, t *task.Host, names []string) (bool, error) {
	const path = kube.PKIDir + "/" + servingCert
	data, err := t.Read(ctx, path)
	if err != nil {
		return false, err
	}
	cert, err := pki.ParseCertificate(data)
	if err != nil {
		return false, fmt.Errorf("%s on %s: %w", path, t.Name, err)
	}
	for _, name := range names {
		if cert.VerifyHostname(name) != nil {
			task.Because(ctx, "%s is not valid for %s", path, name)
			return false, nil
		}
	}
	return true, nil
}

// certificatesConfig returns a configuration with which kubeadm makes certificates of a control plane in another
// directory.
func certificatesConfig(ctx context.Context, t *task.Host, dir, hostPort string, names []string) ([]byte, error) {
	cluster, _, err := clusterConfiguration(ctx, t, hostPort, names)
	if err != nil {
		return nil, err
	}
	cluster["certificatesDir"] = dir
	return kube.Documents(kube.Document{
		"apiVersion": cluster["apiVersion"], "kind": "InitConfiguration",
		"localAPIEndpoint": LocalEndpoint(t.IP), "nodeRegistration": kube.Document{"name": t.Name},
	}, cluster)
}

// newServingCertificate makes kubeadm issue a certificate in a directory of its own, and puts it into use with its key.
func newServingCertificate(ctx context.Context, t *task.Host, hostPort string, names []string) error {
	data, err := certificatesConfig(ctx, t, marks.NewServing, hostPort, names)
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"rm", "-rf", marks.NewServing},
		{"install", "-d", "-m", "0700", marks.NewServing},
		{"cp", "-p", kube.ClusterCA, kube.PKIDir + "/ca.key", marks.NewServing + "/"},
	} {
		if err := t.Run(ctx, args...); err != nil {
			return err
		}
	}
	if err := Run(ctx, t, data, "init", "phase", "certs", "apiserver"); err != nil {
		return errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-rf", marks.NewServing))
	}
	return t.Run(ctx, host.Script("use-serving.sh", useServingScript, marks.NewServing, kube.PKIDir)...)
}

// NodeMoveTask makes the programs of a node use the new endpoint, one node after the other: its kubeconfigs, then its
// kubelet. The node's record comes last, so that a killed run restarts the programs again.
func NodeMoveTask(m endpoint.Move) task.Task {
	return task.Task{
		Name: "node-endpoint", Roles: []manifest.Role{manifest.RoleCluster}, Where: task.OneByOne, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			files, err := movedFiles(ctx, t, m)
			for _, f := range files {
				if f.have != f.want {
					task.Because(ctx, "%s names the old endpoint", f.path)
					return false, nil
				}
			}
			if err != nil {
				return false, err
			}
			have, want, err := movedRecord(ctx, t, m)
			return have == want, err
		},
		Do: func(ctx context.Context, t *task.Host) error { return moveNode(ctx, t, m) },
	}
}

func moveNode(ctx context.Context, t *task.Host, m endpoint.Move) error {
	files, err := movedFiles(ctx, t, m)
	if err != nil {
		return err
	}
	var restart []string
	for _, f := range files {
		if f.have != f.want {
			if err := t.Edit(ctx, f.path, []byte(f.want)); err != nil {
				return err
			}
		}
		if f.process != "" && f.uses(m.To.HostPort) {
			restart = append(restart, f.process)
		}
	}
	if len(restart) > 0 {
		if err := restartStatic(ctx, t, restart...); err != nil {
			return err
		}
	}
	if err := restartKubelet(ctx, t); err != nil {
		return err
	}
	_, record, err := movedRecord(ctx, t, m)
	if err != nil {
		return err
	}
	return t.Write(ctx, task.File{Path: member.Path, Mode: 0o600, Data: []byte(record)})
}

// restartKubelet restarts a node's kubelet and waits until it has reached the API server.
func restartKubelet(ctx context.Context, t *task.Host) error {
	if err := t.Systemctl(ctx, "restart", KubeletUnit); err != nil {
		return t.WithUnitLog(ctx, KubeletUnit, err)
	}
	restarted, err := t.Clock(ctx)
	if err != nil {
		return err
	}
	restarted = restarted.Add(time.Second) // the clock has whole seconds
	if err := task.Eventually(ctx, leaseWait,
		func(ctx context.Context) error { return renewedSince(ctx, t, restarted) }); err != nil {
		return t.WithUnitLog(ctx, KubeletUnit, err)
	}
	return nil
}

// A movedFile is a kubeconfig of a node. process is the one that reads it at its start, besides the kubelet.
type movedFile struct{ path, process, have, want string }

func (f movedFile) uses(hostPort string) bool {
	only := endpoint.Move{From: []endpoint.Address{{HostPort: hostPort}}}
	return only.Rewritten(f.want, "") != f.want
}

// movedFiles returns a node's kubeconfigs. Where kubeadm writes the control plane's own address, that stays.
func movedFiles(ctx context.Context, t *task.Host, m endpoint.Move) ([]movedFile, error) {
	files := []movedFile{{path: kubeletConf}}
	keep := ""
	if t.Is(manifest.RoleControlPlane) {
		keep = net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
		files = append(files, movedFile{path: kube.AdminConf}, movedFile{path: superConf},
			movedFile{path: managerConf, process: "kube-controller-manager"},
			movedFile{path: schedulerConf, process: "kube-scheduler"})
	}
	var found []movedFile
	for _, f := range files {
		data, err := t.Read(ctx, f.path)
		if errors.Is(err, fs.ErrNotExist) && f.path == superConf {
			continue
		}
		if err != nil {
			return nil, err
		}
		own := keep
		if f.path == kube.AdminConf || f.path == superConf {
			own = "" // copies of it are used elsewhere
		}
		f.have = string(data)
		f.want = m.Rewritten(f.have, own)
		found = append(found, f)
	}
	return found, nil
}

// movedRecord returns the node's record, and that with the new endpoint.
func movedRecord(ctx context.Context, t *task.Host, m endpoint.Move) (have, want string, err error) {
	data, err := t.Read(ctx, member.Path)
	return string(data), member.WithEndpoint(string(data), string(m.To.Type), m.To.HostPort), err
}

// renewedSince checks that the kubelet has renewed its node's lease since a time of the host's clock: it reaches the
// API.
func renewedSince(ctx context.Context, t *task.Host, since time.Time) error {
	var lease coordinationv1.Lease
	if err := t.Site.FirstControlPlane().Kube().Get(ctx, &lease, "lease", t.Name,
		"--namespace=kube-node-lease"); err != nil {
		return err
	}
	if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(since) {
		return fmt.Errorf("the kubelet of %s has not reached the API server since its restart", t.Name)
	}
	return nil
}
