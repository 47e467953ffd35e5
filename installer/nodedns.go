package installer

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// The DNS cache of every node, as in
// https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns/ and its nodelocaldns.yaml.
const (
	// nodeDNSAddress is where it answers, KubeKey's and Kubespray's choice of a link-local address.
	nodeDNSAddress = "169.254.25.10"
	nodeDNSLink    = "nodelocaldns"
	nodeDNSHealth  = 9254
	nodeDNSMetrics = 9253
	// nodeDNSUpstream is a second service of CoreDNS, whose own address the cache takes over.
	nodeDNSUpstream = "kube-dns-upstream"
)

// takesServiceAddress tells whether the cache answers at the address of the cluster's DNS as well, so that the pods need not be
// told of it, and ask CoreDNS itself while the cache is away. That takes kube-proxy's iptables mode: the others have the address
// on an interface of their own, or see its packets first.
func takesServiceAddress(c *manifest.Cluster) bool {
	return c.Kubernetes.ProxyMode == manifest.ProxyIPTables
}

// nodeDNSPart tells kubelets where pods find DNS.
func nodeDNSPart(c *manifest.Cluster) configPart {
	if !c.DNS.NodeLocal || takesServiceAddress(c) {
		return configPart{}
	}
	return configPart{kubelet: document{"clusterDNS": []any{nodeDNSAddress}}}
}

func nodeDNSTask() Task {
	t := manifestsTask(nodeDNS, func(ctx context.Context, t *Target) (applied, error) {
		forwards, err := t.run.haveNameservers(ctx)
		if err != nil {
			return applied{}, err
		}
		data, err := nodeDNSManifest(t.run.cluster, forwards)
		return applied{name: nodeDNS, namespace: systemNamespace, data: data, wait: chartWait}, err
	})
	t.Images = []string{nodeDNS}
	t.Leaves = Leaves{Links: []string{nodeDNSLink}}
	return t
}

// haveNameservers tells whether every node that this run is connected to has somewhere to ask for names outside: the cache is in
// the host's network, and may ask the host itself.
func (r *Site) haveNameservers(ctx context.Context) (bool, error) {
	for _, node := range r.connected(manifest.RoleCluster) {
		if list, err := node.nameservers(ctx); err != nil || len(list) == 0 {
			return false, err
		}
	}
	return true, nil
}

// nodeDNSManifest is the cache. Where nodes have no name server, names outside are unknown at once, as CoreDNS has it.
func nodeDNSManifest(c *manifest.Cluster, forwards bool) ([]byte, error) {
	image, err := catalog.ImageRef(c, nodeDNS)
	if err != nil {
		return nil, err
	}
	meta := func(name string) document {
		return document{"name": name, "namespace": systemNamespace, "labels": document{"k8s-app": name}}
	}
	port := func(name, protocol string) document {
		return document{"name": name, "port": 53, "protocol": protocol, "targetPort": 53}
	}
	return documents(
		document{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(nodeDNS)},
		document{
			"apiVersion": "v1", "kind": "Service", "metadata": meta(nodeDNSUpstream),
			"spec": document{"selector": document{"k8s-app": "kube-dns"}, "ports": []any{port("dns", "UDP"), port("dns-tcp", "TCP")}},
		},
		document{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(nodeDNS), "data": document{"Corefile": nodeCorefile(c, forwards)}},
		document{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta(nodeDNS),
			"spec": document{
				"selector":       document{"matchLabels": document{"k8s-app": nodeDNS}},
				"updateStrategy": document{"rollingUpdate": document{"maxUnavailable": "10%"}},
				"template": document{
					"metadata": document{
						"labels":      document{"k8s-app": nodeDNS},
						"annotations": document{"kkbundle.io/corefile": shortSum([]byte(nodeCorefile(c, forwards)))}, // new pods read the new one
					},
					"spec": nodeDNSPod(c, image),
				},
			},
		},
	)
}

func nodeDNSPod(c *manifest.Cluster, image string) document {
	return document{
		"priorityClassName":             "system-node-critical",
		"serviceAccountName":            nodeDNS,
		"automountServiceAccountToken":  false,
		"hostNetwork":                   true,
		"dnsPolicy":                     "Default", // the node's name servers
		"terminationGracePeriodSeconds": 0,
		"nodeSelector":                  document{"kubernetes.io/os": "linux"},
		"tolerations": []any{
			document{"operator": "Exists", "effect": "NoExecute"}, document{"operator": "Exists", "effect": "NoSchedule"},
		},
		"containers": []any{document{
			"name": "node-cache", "image": image, "imagePullPolicy": "IfNotPresent",
			"args":            []any{"-localip", strings.Join(nodeDNSAddresses(c), ","), "-conf", "/etc/Corefile", "-upstreamsvc", nodeDNSUpstream, "-interfacename", nodeDNSLink},
			"securityContext": document{"capabilities": document{"add": []any{"NET_ADMIN"}}},
			"resources":       document{"requests": document{"cpu": "25m", "memory": "16Mi"}},
			"ports": []any{
				document{"containerPort": 53, "name": "dns", "protocol": "UDP"},
				document{"containerPort": 53, "name": "dns-tcp", "protocol": "TCP"},
				document{"containerPort": nodeDNSMetrics, "name": "metrics", "protocol": "TCP"},
			},
			"livenessProbe": document{
				"httpGet":             document{"host": nodeDNSAddress, "path": "/health", "port": nodeDNSHealth},
				"initialDelaySeconds": 60, "timeoutSeconds": 5,
			},
			"readinessProbe": document{"httpGet": document{"host": nodeDNSAddress, "path": "/health", "port": nodeDNSHealth}},
			"volumeMounts": []any{
				document{"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
				document{"name": "config", "mountPath": "/etc/coredns"},
				document{"name": "kube-dns-config", "mountPath": "/etc/kube-dns"},
			},
		}},
		"volumes": []any{
			document{"name": "xtables-lock", "hostPath": document{"path": "/run/xtables.lock", "type": "FileOrCreate"}},
			document{"name": "kube-dns-config", "configMap": document{"name": "kube-dns", "optional": true}},
			// It writes the Corefile that it reads from this one, with its upstream's address in it.
			document{"name": "config", "configMap": document{"name": nodeDNS, "items": []any{document{"key": "Corefile", "path": "Corefile.base"}}}},
		},
	}
}

// nodeDNSAddresses are where the cache listens.
func nodeDNSAddresses(c *manifest.Cluster) []string {
	if takesServiceAddress(c) {
		return []string{nodeDNSAddress, nth(c.Kubernetes.ServiceCIDR[0], dnsServiceIndex).String()}
	}
	return []string{nodeDNSAddress}
}

func nodeCorefile(c *manifest.Cluster, forwards bool) string {
	listen := strings.Join(nodeDNSAddresses(c), " ")
	zone := func(name, cache, to, more string) string {
		var b bytes.Buffer
		fmt.Fprintf(&b, "%s:53 {\n    errors\n%s    reload\n    loop\n    bind %s\n%s    prometheus :%d\n%s}\n", name, cache, listen, to, nodeDNSMetrics, more)
		return b.String()
	}
	const (
		short   = "    cache 30\n"
		cluster = "    forward . __PILLAR__CLUSTER__DNS__ {\n        force_tcp\n    }\n"
		cached  = "    cache {\n        success 9984 30\n        denial 9984 5\n    }\n"
	)
	outside := "    forward . __PILLAR__UPSTREAM__SERVERS__\n"
	if !forwards {
		outside = ""
	}
	health := "    health " + nodeDNSAddress + ":" + strconv.Itoa(nodeDNSHealth) + "\n"
	return zone(clusterDomain, cached, cluster, health) + zone("in-addr.arpa", short, cluster, "") + zone("ip6.arpa", short, cluster, "") +
		zone(".", short, outside, "")
}
