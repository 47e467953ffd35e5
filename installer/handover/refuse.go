package handover

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A RefusedError means that Cluster API, or its provider, could not look after a cluster as it is.
type RefusedError struct{ Causes []string } // each with its place and the remedy

// Error lists all causes.
func (e *RefusedError) Error() string {
	return "the cluster cannot be handed over, and nothing was changed:\n" + strings.Join(e.Causes, "\n")
}

// Hint returns the remedy.
func (*RefusedError) Hint() string { return "mend each place and run the same command again" }

// Refuses marks an error that ends a run before any change.
func (*RefusedError) Refuses() {}

// refusedUnless returns a RefusedError with one cause unless all is well.
func refusedUnless(well bool, where, problem, remedy string) error {
	if well {
		return nil
	}
	return &RefusedError{[]string{cause(where, problem, remedy)}}
}

func cause(where, problem, remedy string) string {
	return plain.Line(where) + ": " + plain.Line(problem) + "; " + plain.Line(remedy)
}

// Fits refuses a cluster by its cluster file and the bundle alone, before a host is asked.
func Fits(ctx context.Context, o engine.Options, to Target) error {
	carried, err := carriedClasses(ctx, o)
	if err != nil {
		return err
	}
	f := &found{to: to, cluster: o.Cluster, carried: carried}
	return (&RefusedError{f.refuseFile()}).orNil()
}

// carriedClasses returns the runtimes of the cluster file in the bundle, none without a bundle or such a file, or if
// the cluster has none.
func carriedClasses(ctx context.Context, o engine.Options) ([]manifest.RuntimeClass, error) {
	b := o.Bundle
	if b == nil || len(o.Cluster.CRI.RuntimeClasses) == 0 {
		return nil, nil
	}
	if _, ok := b.Find(bundle.KindManifest, bundle.DocumentCluster, ""); !ok {
		return nil, nil
	}
	data, err := b.Document(ctx, bundle.KindManifest, bundle.DocumentCluster)
	if err != nil {
		return nil, err
	}
	c, err := manifest.ParseCluster(bundle.DocumentCluster, data)
	if err != nil {
		return nil, fmt.Errorf("the cluster file of the bundle: %w", err)
	}
	return c.CRI.RuntimeClasses, nil
}

func (e *RefusedError) orNil() error {
	if len(e.Causes) == 0 {
		return nil
	}
	return e
}

// A list is causes as they are found.
type list []string

// add adds a cause, if there is one.
func (l *list) add(is bool, where, problem, remedy string) {
	if is {
		*l = append(*l, cause(where, problem, remedy))
	}
}

const stays = "the cluster stays kkbundle's"

func (f *found) refuseFile() (l list) {
	c := f.cluster
	l.add(c.Kubernetes.Distribution == manifest.DistributionK3s, "kubernetes.distribution",
		"k3s has no control plane that KubeadmControlPlane knows", stays)
	l.add(c.Etcd.Type != manifest.EtcdInternal, "etcd.type",
		fmt.Sprintf("%s: KubeadmControlPlane looks after etcd in static pods alone", c.Etcd.Type), stays)
	l.add(c.ControlPlaneEndpoint.Type == manifest.EndpointHAProxy, "controlPlaneEndpoint.type",
		"haproxy: later workers would have no proxy of their own",
		"move the endpoint with kkbundle endpoint move to kube-vip or to your balancer first")
	l.add(f.registry() == "", "imageRegistry", "the address of the registry is unknown to later machines",
		"name it with --registry, by a name that its certificate has")
	v, err := semver.NewVersion(c.Kubernetes.Version)
	l.add(err != nil || v.LessThan(semver.New(1, 31, 0, "", "")), "kubernetes.version",
		c.Kubernetes.Version+" is older than Cluster API manages",
		"upgrade to v1.31 or later with kkbundle upgrade first")
	l.add(len(c.CRI.RuntimeClasses) > 0 && !reflect.DeepEqual(c.CRI.RuntimeClasses, f.carried), "cri.runtimeClasses",
		"nodes lose these runtimes as soon as the provider works on them: it has the bundle's cluster file alone",
		"build the bundle with a cluster file that has the same, and give it to this command")
	l.add(len(validation.IsDNS1123Label(c.Metadata.Name)) > 0, "metadata.name",
		c.Metadata.Name+" is no name of a Cluster", stays)
	return l
}

// refuse returns a RefusedError with all causes.
func (f *found) refuse() error {
	l := f.refuseFile()
	planes, tainted := 0, 0
	for _, n := range f.nodes {
		if n.isControlPlane() {
			planes++
		}
		if n.isControlPlane() && n.live != nil && isTainted(n.live) {
			tainted++
		}
		l = append(l, f.refuseNode(n)...)
	}
	for _, name := range f.unknown() {
		l.add(true, "ConfigMap kubeadm-config", "ClusterConfiguration has "+name+", which Cluster API has no word for",
			"leave it out of kubernetes.kubeadm, and run kkbundle upgrade")
	}
	for _, p := range periods() {
		_, err := p.days(f.config)
		l.add(err != nil, "ConfigMap kubeadm-config", fmt.Sprint(err),
			"set kubernetes.kubeadm."+p.name+" to such a period, and run kkbundle upgrade")
	}
	for _, name := range f.others {
		l.add(true, "node "+name, "it is in the cluster and not in the inventory", "add its host, or delete the node")
	}
	l.add(planes%2 == 0, "kube_control_plane",
		fmt.Sprintf("%d control planes: KubeadmControlPlane has an odd number", planes),
		"add or delete one with kkbundle nodes")
	l.add(tainted != 0 && tainted != planes, "kube_control_plane",
		"some control planes have the taint "+kube.ControlPlaneLabel+" and some have not",
		"KubeadmControlPlane has one setting for all: make them the same in the inventory and run kkbundle install")
	names := authorities()
	for _, key := range slices.Sorted(maps.Keys(names)) {
		for _, end := range ends(names[key]) {
			l.add(f.authorities[names[key]+end] == "", kube.PKIDir+"/"+names[key]+end,
				"it is missing on the first control plane, and Cluster API issues certificates with it",
				"put it there, on all control planes")
		}
	}
	return (&RefusedError{l}).orNil()
}

// refuseNode returns why a host cannot become a machine.
func (f *found) refuseNode(n node) (l list) {
	at := n.host.Name
	l.add(n.host.Local, at, "local: true: the provider reaches hosts by SSH", "give the host its address in the inventory")
	l.add(len(n.host.Hops) > 0, at, "it is behind a bastion, which handover does not describe", "reach it without one")
	l.add(n.host.Is(manifest.RoleRegistry), at, "it has the site's registry, which would go with its Machine",
		"move the registry to a host that is no node, or to one of yours (imageRegistry.type: existing)")
	l.add(f.to.HostKeys == "" && len(n.hostKeys) == 0, at, "no public key of its SSH server is in /etc/ssh",
		"name a Secret with known_hosts by --host-keys")
	l.add(len(validation.IsDNS1123Label(at)) > 0, at, "it is no name of a Machine", stays)
	if n.live == nil {
		l.add(true, at, "the cluster has no node of this name", "see kkbundle status")
		return l
	}
	has, version := n.live.Spec.ProviderID, n.live.Status.NodeInfo.KubeletVersion
	l.add(has != "" && has != f.providerID(n), at,
		"its node has the providerID "+has+" of somebody else, which never changes", stays)
	l.add(version != f.cluster.Kubernetes.Version, at,
		"its kubelet has "+version+", and the cluster file "+f.cluster.Kubernetes.Version,
		"finish the upgrade, or give the cluster file of what runs")
	l.add(!kube.IsNodeReady(n.live), at, "its node is not ready", "see kkbundle status")
	return l
}

// providerPrefix begins the providerID of each machine of kkbundle's provider.
const providerPrefix = "kk:///"

func (f *found) providerID(n node) string { return providerPrefix + f.to.Namespace + "/" + n.host.Name }

// registry returns the address of the registry for later machines, "" if none is known.
func (f *found) registry() string {
	if f.to.Registry == "" && f.cluster.ImageRegistry.Type == manifest.RegistryExisting {
		return f.cluster.ImageRegistry.Address
	}
	return f.to.Registry
}

func isTainted(n *corev1.Node) bool {
	return kube.HasTaint(n, kube.ControlPlaneLabel, "", corev1.TaintEffectNoSchedule)
}
