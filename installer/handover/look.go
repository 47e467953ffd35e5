package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/reset"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A found is a running cluster, and where it goes.
type found struct {
	to      Target
	cluster *manifest.Cluster
	carried []manifest.RuntimeClass // those of the cluster file in the bundle
	// endpoint is the address of the API server, as host:port.
	endpoint string
	// config is kubeadm's ClusterConfiguration, as the cluster has it.
	config map[string]any
	nodes  []node
	// others are nodes that no host of the inventory is.
	others []string
	// authorities are the PEM files of the first control plane, by their path below kube.PKIDir; "" if one is missing.
	authorities map[string]string
	// files are those that the pods of control planes read, and patches those of kubeadm.
	files, patches []file
	ignored        []string // kubeadm's checks that must not stop it
	socket         string   // of the container runtime
}

type file struct{ path, data string }

// A node is a host of the inventory and what the cluster says of it.
type node struct {
	host      manifest.Host
	addresses []string     // one in each family of the cluster
	live      *corev1.Node // nil if the cluster has no node of its name
	hostKeys  []string     // public keys of its SSH server
}

func (n node) isControlPlane() bool { return n.host.Is(manifest.RoleControlPlane) }

// authorities are kubeadm's files, by which Cluster API's Secret has them.
func authorities() map[string]string {
	return map[string]string{
		"ca": "ca", "etcd": "etcd/ca", "proxy": "front-proxy-ca", "sa": "sa",
	}
}

// look reads the cluster through its hosts.
func look(ctx context.Context, r *engine.Run, to Target) (*found, error) {
	s := r.Site
	carried, err := carriedClasses(ctx, r.Options)
	if err != nil {
		return nil, err
	}
	f := &found{
		to: to, cluster: s.Cluster, carried: carried, endpoint: s.Endpoint(), ignored: kubeadm.IgnoredChecks(s.Cluster),
		socket: cri.RuntimeOf(s.Cluster).Socket,
	}
	targets := r.Connected(manifest.RoleCluster)
	f.nodes = make([]node, len(targets))
	err = r.OnAll(targets, func(i int, t *task.Host) (err error) {
		f.nodes[i], err = readHost(ctx, t, to)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, f.readCluster(ctx, s.Lead())
}

// readHost refuses a host that is no node of the cluster, or another's machine, and returns its part.
func readHost(ctx context.Context, t *task.Host, to Target) (node, error) {
	n := node{host: t.Host}
	for _, a := range t.Addresses() {
		n.addresses = append(n.addresses, a.String())
	}
	if _, err := marked(ctx, t, to); err != nil {
		return n, err
	}
	if is, err := member.IsMember(ctx, t); err != nil || !is {
		return n, errors.Join(err, refusedUnless(is, t.Name, "it is no node of kkbundle's", "take it out of the inventory, or install it"))
	}
	if err := reset.RefuseAdopted(ctx, t); err != nil || to.HostKeys != "" {
		return n, err
	}
	out, err := t.Output(ctx, "find", "/etc/ssh", "-maxdepth", "1", "-name", "ssh_host_*_key.pub")
	if err != nil {
		return n, err
	}
	for _, name := range slices.Sorted(strings.Lines(string(out))) {
		key, err := t.Read(ctx, strings.TrimSpace(name))
		if err != nil {
			return n, err
		}
		if words := strings.Fields(string(key)); len(words) >= 2 {
			n.hostKeys = append(n.hostKeys, words[0]+" "+words[1])
		}
	}
	return n, nil
}

// readCluster asks the API server through a control plane, and reads that one's files.
func (f *found) readCluster(ctx context.Context, t *task.Host) error {
	live, err := t.Kube().Nodes(ctx)
	if err != nil {
		return err
	}
	for i := range f.nodes {
		f.nodes[i].live = kube.FindNode(live, f.nodes[i].host.Name)
	}
	for _, n := range live {
		if !slices.ContainsFunc(f.nodes, func(of node) bool { return of.host.Name == n.Name }) {
			f.others = append(f.others, n.Name)
		}
	}
	m, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "kubeadm-config")
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(m.Data["ClusterConfiguration"]), &f.config); err != nil {
		return fmt.Errorf("ConfigMap kubeadm-config: ClusterConfiguration: %w", err)
	}
	f.authorities = map[string]string{}
	for _, name := range authorities() {
		for _, end := range ends(name) {
			data, err := t.Read(ctx, path.Join(kube.PKIDir, name+end))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			f.authorities[name+end] = string(data)
		}
	}
	return f.readFiles(ctx, t)
}

// ends returns the ends of the names of an authority's certificate, or of the public key of service accounts, and of
// its key.
func ends(name string) []string {
	if name == "sa" {
		return []string{".pub", ".key"}
	}
	return []string{".crt", ".key"}
}

const (
	maxFiles = 100
	maxBytes = 512 << 10 // they become a Secret, which has 1 MiB at most
)

// readFiles reads what the pods of a control plane need on its host beside kubeadm's own files, and patches.
func (f *found) readFiles(ctx context.Context, t *task.Host) (err error) {
	dirs := mounted(f.config)
	if f.cluster.ControlPlaneEndpoint.Type == manifest.EndpointKubeVIP {
		dirs = append(dirs, endpoint.KubeVIPManifest)
	}
	if f.files, err = filesBelow(ctx, t, dirs...); err != nil {
		return err
	}
	f.patches, err = filesBelow(ctx, t, kubeadm.PatchesDir)
	f.patches = slices.DeleteFunc(f.patches, func(one file) bool { return kubeadm.IsOfOneHost(path.Base(one.path)) })
	return err
}

// filesBelow returns the files below directories that exist, by their paths.
func filesBelow(ctx context.Context, t *task.Host, dirs ...string) ([]file, error) {
	var files []file
	left := maxBytes
	for _, dir := range dirs {
		if there, err := t.Test(ctx, "test", "-e", dir); err != nil || !there {
			if err != nil {
				return nil, err
			}
			continue
		}
		out, err := t.Output(ctx, "find", dir, "-type", "f")
		if err != nil {
			return nil, err
		}
		for _, line := range slices.Sorted(strings.Lines(string(out))) {
			name := strings.TrimSuffix(line, "\n")
			data, err := t.Read(ctx, name)
			if err != nil {
				return nil, err
			}
			if left -= len(data); left < 0 || len(files) == maxFiles {
				return nil, &RefusedError{[]string{fmt.Sprintf("%s:%s: control planes read more than %d files or %d bytes there; leave those out of kubernetes.kubeadm that are large", t.Name, dir, maxFiles, maxBytes)}}
			}
			files = append(files, file{name, string(data)})
		}
	}
	return files, nil
}

// mounted returns the directories and files of hosts that are mounted into the pods of control planes, without those
// that kubeadm makes and those outside of /etc, such as logs.
func mounted(config map[string]any) []string {
	var list []string
	for _, component := range []string{"apiServer", "controllerManager", "scheduler"} {
		volumes, _ := object(config, component)["extraVolumes"].([]any)
		for _, v := range volumes {
			volume, _ := v.(map[string]any)
			dir, _ := volume["hostPath"].(string)
			dir = path.Clean(dir)
			own := strings.HasPrefix(dir, "/etc/kubernetes/") || strings.HasPrefix(dir, task.ConfigDir+"/")
			if own && !strings.HasPrefix(dir+"/", kube.PKIDir+"/") && !slices.Contains(list, dir) {
				list = append(list, dir)
			}
		}
	}
	return list
}

// object returns an object within another one, nil if it has none of this name.
func object(of map[string]any, name string) map[string]any {
	o, _ := of[name].(map[string]any)
	return o
}

// hostPort returns the parts of the endpoint.
func (f *found) hostPort() (string, int) {
	host, port, err := net.SplitHostPort(f.endpoint)
	if err != nil {
		return f.endpoint, manifest.DefaultPort
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return host, manifest.DefaultPort
	}
	return host, number
}
