package adopt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// Look reads a cluster through the hosts of an inventory, all of which must answer. It changes nothing: the helper is
// removed again. What makes the hosts unfit is a *RefusedError, before the API server is asked.
func Look(ctx context.Context, o engine.Options) (*Evidence, error) {
	o.DryRun = true
	r, err := begin.New(o, engine.LookingAt(task.AnyCluster))
	if err != nil {
		return nil, err
	}
	r.Journal = &engine.Journal{Mask: r.Mask, Now: r.Now, Writer: task.Discard{}}
	defer r.Dir.Close()
	defer r.Disconnect()
	if err := r.FindTargets(); err != nil {
		return nil, err
	}
	var e Evidence
	ctx = task.InTask(ctx, "adopt")
	err = r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		t.Err = r.ConnectTo(ctx, t)
		return t.Err
	})
	if err == nil {
		err = look(ctx, r, &e)
	}
	return &e, begin.ForgetHelpers(ctx, r, err)
}

func look(ctx context.Context, r *engine.Run, e *Evidence) error {
	targets := r.Needed()
	e.Hosts = make([]Host, len(targets))
	err := r.OnAll(targets, func(i int, t *task.Host) (err error) {
		e.Hosts[i], err = readHost(ctx, t)
		return err
	})
	if err != nil {
		return err
	}
	if err := e.refuseHosts(); err != nil {
		return err
	}
	planes := r.Connected(manifest.RoleControlPlane)
	if len(planes) == 0 {
		return errors.New("the inventory names no control plane; name one in the group kube_control_plane")
	}
	e.Cluster, err = readCluster(ctx, planes[0])
	return err
}

// maxText bounds a file that is read from a host. The largest, a static pod's manifest, has some 10 KiB.
const maxText = 256 << 10

// maxHost bounds the files of a host together.
const maxHost = 4 << 20

// maxManifests bounds the manifests of a host. kubeadm makes four.
const maxManifests = 100

// maxRegistries bounds the registries whose files are read on a host. The report says when there are more.
const maxRegistries = 50

func probe() node.Probe {
	return node.Probe{
		Units: append(node.Services(), "etcd.service", "haproxy.service", "nginx.service", "keepalived.service",
			"k8s-certs-renew.timer", "backup-etcd.timer"),
		Paths: append(readFiles(), etcdSSL, keyScripts, keyDir, certsDir, pluginConfigs,
			kube.ManifestsDir, kube.AdminConf, kube.PKIDir+"/ca.key", "/etc/kubernetes/ssl/ca.key", member.Path,
			marks.AdoptionDir,
			"/var/lib/rancher/k3s", "/var/lib/rancher/rke2", "/var/lib/k0s", "/var/snap/microk8s"),
		Certificates: append(node.CertificatePlaces(), "/etc/kubernetes/ssl", etcdSSL),
		Sysctls: []string{
			"net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables", "net.ipv6.conf.all.forwarding",
		},
	}
}

// readHost asks a host for its facts and for the files that are there.
func readHost(ctx context.Context, t *task.Host) (Host, error) {
	h := Host{Name: t.Name, Files: map[string]string{}}
	var err error
	if h.Facts, err = t.Facts(ctx, probe()); err != nil {
		return h, err
	}
	return h, h.read(func(name string, most int) ([]byte, error) {
		return host.ReadFile(task.DescribedAs(task.WithoutOutput(ctx), "read "+name), t.Conn, name, most)
	})
}

// read reads the files that the facts name. The facts come from the host, and may be hostile: what is read and kept is
// bounded.
func (h *Host) read(file func(name string, most int) ([]byte, error)) error {
	manifests := h.manifests()
	if len(manifests) > maxManifests {
		return &RefusedError{[]Cause{{h.Name + ":" + kube.ManifestsDir, fmt.Sprintf("it has %d manifests, more than %d",
			len(manifests), maxManifests), "move out what are no static pods"}}}
	}
	names := manifests
	for _, name := range readFiles() {
		if h.Facts.Path(name).Type == "file" {
			names = append(names, name)
		}
	}
	registries := h.Facts.Path(certsDir).Entries
	for _, registry := range registries[:min(len(registries), maxRegistries)] {
		names = append(names, path.Join(certsDir, registry, "hosts.toml"))
	}
	left := maxHost
	for _, name := range names {
		data, err := file(name, min(left, maxText))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil && left < maxText:
			return fmt.Errorf("%s: its files have more than %d bytes in all: %w", h.Name, maxHost, err)
		case err != nil:
			return fmt.Errorf("%s: %w", h.Name, err)
		default:
			left -= len(data)
			h.Files[name] = string(data)
		}
	}
	return nil
}

// readCluster asks the API server through a control plane.
func readCluster(ctx context.Context, t *task.Host) (Objects, error) {
	var (
		o    Objects
		wait sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, ask := range []func() error{
		func() (err error) { o.Nodes, err = t.Kube().Nodes(ctx); return err },
		func() (err error) {
			o.Kubeadm, err = configMap(ctx, t, "kubeadm-config", "ClusterConfiguration")
			return err
		},
		func() (err error) { o.Kubelet, err = configMap(ctx, t, "kubelet-config", "kubelet"); return err },
		func() (err error) { o.Proxy, err = configMap(ctx, t, "kube-proxy", "config.conf"); return err },
		func() (err error) { o.Workloads, err = workloads(ctx, t); return err },
		func() (err error) { o.Releases, err = releases(ctx, t); return err },
		func() (err error) { o.Jobs, err = jobs(ctx, t); return err },
	} {
		wait.Go(func() {
			if err := ask(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return o, plain.Advise(fmt.Errorf("%s: the API server does not answer kubectl: %w", t.Name, errors.Join(errs...)),
			"check kubectl --kubeconfig "+kube.AdminConf+" get nodes on "+t.Name+
				"; adopt asks with root's PATH, which must lead to kubectl")
	}
	return o, nil
}

// configMap returns a value of a ConfigMap in kube-system, "" if there is none.
func configMap(ctx context.Context, t *task.Host, name, key string) (string, error) {
	m, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, name, "--ignore-not-found")
	return m.Data[key], err
}

// workloads lists the DaemonSets and Deployments of all namespaces.
func workloads(ctx context.Context, t *task.Host) ([]Workload, error) {
	var (
		sets        appsv1.DaemonSetList
		deployments appsv1.DeploymentList
	)
	err := t.Kube().Get(ctx, &sets, "daemonsets.apps", "--all-namespaces")
	if err == nil {
		err = t.Kube().Get(ctx, &deployments, "deployments.apps", "--all-namespaces")
	}
	var list []Workload
	add := func(kind string, o kube.Object, spec corev1.PodSpec) {
		w := Workload{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Chart: o.GetLabels()["helm.sh/chart"]}
		for _, c := range spec.Containers {
			w.Images = append(w.Images, c.Image)
		}
		list = append(list, w)
	}
	for i := range sets.Items {
		add(kindDaemonSet, &sets.Items[i], sets.Items[i].Spec.Template.Spec)
	}
	for i := range deployments.Items {
		add(kindDeployment, &deployments.Items[i], deployments.Items[i].Spec.Template.Spec)
	}
	return list, err
}

// Kinds of a Workload.
const (
	kindDaemonSet  = "DaemonSet"
	kindDeployment = "Deployment"
)

// releases lists Helm's deployed releases. Their Secrets have values that may be secret: only labels leave the host.
func releases(ctx context.Context, t *task.Host) ([]Release, error) {
	out, err := t.Kubectl(task.WithoutOutput(ctx), "get", "secrets", "--all-namespaces",
		"--selector=owner=helm,status=deployed",
		"--output=custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.labels.name", "--no-headers")
	var list []Release
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if one := (Release{Namespace: fields[0], Name: fields[1]}); !slices.Contains(list, one) {
			list = append(list, one)
		}
	}
	return list, err
}

// jobs lists the jobs in kube-system.
func jobs(ctx context.Context, t *task.Host) ([]string, error) {
	var list batchv1.JobList
	err := t.Kube().Get(ctx, &list, "jobs.batch", "--namespace="+kube.SystemNamespace)
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, err
}
