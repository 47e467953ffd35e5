package addon

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Ports of the cache.
const nodeDNSHealth, nodeDNSMetrics = 9254, 9253

// nodeDNSUpstream is a second service of CoreDNS: the cache takes over the address of the first.
const nodeDNSUpstream = "kube-dns-upstream"

func nodeDNSTask() task.Task {
	t := manifestsTask(NodeDNS, func(ctx context.Context, t *task.Host) (applied, error) {
		forwards, err := HaveNameservers(ctx, t.Site)
		if err != nil {
			return applied{}, err
		}
		data, err := NodeDNSManifest(t.Site.Cluster, forwards)
		return applied{name: NodeDNS, namespace: kube.SystemNamespace, data: data, wait: ChartWait}, err
	})
	t.Images = []string{NodeDNS}
	t.Leaves = task.Leaves{Links: []string{kube.NodeDNSLink}}
	return t
}

// HaveNameservers reports whether every connected node has a name server. Loopback addresses count: the cache runs in
// the host's network.
func HaveNameservers(ctx context.Context, s *task.Site) (bool, error) {
	for _, node := range s.Connected(manifest.RoleCluster) {
		if list, err := nameservers(ctx, node); err != nil || len(list) == 0 {
			return false, err
		}
	}
	return true, nil
}

// NodeDNSManifest returns the cache's manifest. forwards means that the cache asks the name servers of its node for
// external names; else it asks CoreDNS.
func NodeDNSManifest(c *manifest.Cluster, forwards bool) ([]byte, error) {
	image, err := catalog.ImageRef(c, NodeDNS)
	if err != nil {
		return nil, err
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, Namespace: kube.SystemNamespace,
			Labels: map[string]string{"k8s-app": name},
		}
	}
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: 53, Protocol: protocol, TargetPort: intstr.FromInt32(53)}
	}
	return kube.YAML(
		&corev1.ServiceAccount{ObjectMeta: meta(NodeDNS)},
		&corev1.Service{
			ObjectMeta: meta(nodeDNSUpstream),
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"k8s-app": "kube-dns"},
				Ports:    []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
			},
		},
		&corev1.ConfigMap{ObjectMeta: meta(NodeDNS), Data: map[string]string{"Corefile": nodeCorefile(c, forwards)}},
		&appsv1.DaemonSet{
			ObjectMeta: meta(NodeDNS),
			Spec: appsv1.DaemonSetSpec{
				Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": NodeDNS}},
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("10%"))}},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{
						Labels: map[string]string{"k8s-app": NodeDNS},
						// a change restarts the pods
						Annotations: map[string]string{marks.CorefileAnnotation: shortDigest([]byte(nodeCorefile(c,
							forwards)))},
					},
					Spec: nodeDNSPod(c, image),
				},
			},
		},
	)
}

func nodeDNSPod(c *manifest.Cluster, image string) corev1.PodSpec {
	live := kube.HTTPProbe(manifest.NodeDNSAddress, "/health", nodeDNSHealth)
	live.InitialDelaySeconds, live.TimeoutSeconds = 60, 5
	port := func(name string, number int32, protocol corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{ContainerPort: number, Name: name, Protocol: protocol}
	}
	return corev1.PodSpec{
		PriorityClassName:             "system-node-critical",
		ServiceAccountName:            NodeDNS,
		AutomountServiceAccountToken:  new(false),
		HostNetwork:                   true,
		DNSPolicy:                     corev1.DNSDefault,
		TerminationGracePeriodSeconds: new(int64(0)),
		NodeSelector:                  map[string]string{"kubernetes.io/os": "linux"},
		Tolerations: []corev1.Toleration{
			{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		},
		Containers: []corev1.Container{{
			Name: "node-cache", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Args: []string{
				"-localip", strings.Join(nodeDNSAddresses(c), ","), "-conf", "/etc/Corefile",
				"-upstreamsvc", nodeDNSUpstream, "-interfacename", kube.NodeDNSLink,
			},
			SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}},
			Resources:       kube.Requests("25m", "16Mi"),
			Ports: []corev1.ContainerPort{
				port("dns", 53, corev1.ProtocolUDP), port("dns-tcp", 53, corev1.ProtocolTCP),
				port("metrics", nodeDNSMetrics, corev1.ProtocolTCP),
			},
			LivenessProbe:  live,
			ReadinessProbe: kube.HTTPProbe(manifest.NodeDNSAddress, "/health", nodeDNSHealth),
			VolumeMounts: []corev1.VolumeMount{
				{Name: "xtables-lock", MountPath: "/run/xtables.lock"},
				{Name: "config", MountPath: "/etc/coredns"},
				{Name: "kube-dns-config", MountPath: "/etc/kube-dns"},
			},
		}},
		Volumes: []corev1.Volume{
			kube.HostVolume("xtables-lock", "/run/xtables.lock", corev1.HostPathFileOrCreate),
			kube.ConfigVolume("kube-dns-config",
				corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "kube-dns"},
					Optional:             new(true),
				}),
			// The cache writes its Corefile from this template, with its upstream's address.
			kube.ConfigVolume("config", corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: NodeDNS},
				Items:                []corev1.KeyToPath{{Key: "Corefile", Path: "Corefile.base"}},
			}),
		},
	}
}

// nodeDNSAddresses returns the cache's listen addresses.
func nodeDNSAddresses(c *manifest.Cluster) []string {
	if task.TakesServiceAddress(c) {
		return []string{manifest.NodeDNSAddress, task.NthAddress(c.Kubernetes.ServiceCIDR[0],
			kube.DNSServiceIndex).String()}
	}
	return []string{manifest.NodeDNSAddress}
}

func nodeCorefile(c *manifest.Cluster, forwards bool) string {
	listen := strings.Join(nodeDNSAddresses(c), " ")
	zone := func(name, cache, to, more string) string {
		var b bytes.Buffer
		fmt.Fprintf(&b, "%s:53 {\n    errors\n%s    reload\n    loop\n    bind %s\n%s    prometheus :%d\n%s}\n", name,
			cache, listen, to, nodeDNSMetrics, more)
		return b.String()
	}
	const (
		short   = "    cache 30\n"
		cluster = "    forward . __PILLAR__CLUSTER__DNS__ {\n        force_tcp\n    }\n"
		cached  = "    cache {\n        success 9984 30\n        denial 9984 5\n    }\n"
	)
	outside := "    forward . __PILLAR__UPSTREAM__SERVERS__\n"
	if !forwards {
		outside = cluster // CoreDNS forwards where it can, and else answers at once
	}
	health := "    health " + manifest.NodeDNSAddress + ":" + strconv.Itoa(nodeDNSHealth) + "\n"
	return zone(c.DNS.Domain, cached, cluster, health) + zone("in-addr.arpa", short, cluster, "") + zone("ip6.arpa",
		short, cluster, "") +
		zone(".", short, outside, "")
}
