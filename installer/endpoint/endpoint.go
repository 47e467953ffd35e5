package endpoint

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// endpointWait limits the time from a ready API server to an answering endpoint: a load balancer has to detect the
// server, or a virtual address has to move.
const endpointWait = 2 * time.Minute

// Tasks returns the tasks that make the control plane endpoint work before nodes join.
func Tasks(c *manifest.Cluster) []task.Task {
	switch c.ControlPlaneEndpoint.Type {
	case manifest.EndpointKubeVIP:
		return []task.Task{KubeVIPTask(), answerTask()}
	case manifest.EndpointHAProxy:
		return []task.Task{ProxyEndpointTask()} // workers get their proxies when they are nodes
	}
	if c.ControlPlaneEndpoint.Address != "" {
		return []task.Task{answerTask()}
	}
	return nil
}

// LocalEndpointTasks returns the tasks for a proxy on every worker, if the cluster uses HAProxy.
func LocalEndpointTasks(c *manifest.Cluster) []task.Task {
	if c.ControlPlaneEndpoint.Type != manifest.EndpointHAProxy {
		return nil
	}
	return []task.Task{HAProxyTask(), machine.EndpointNameTask(), answerTask()}
}

// Part returns the endpoint's part of kubeadm's configuration. kubeadm itself adds the endpoint's name to certificates.
func Part(r *task.Site) task.KubeadmPart {
	host, _, err := net.SplitHostPort(r.Endpoint())
	if err != nil {
		return task.KubeadmPart{} // ParseCluster has checked the address
	}
	switch r.Cluster.ControlPlaneEndpoint.Type {
	case manifest.EndpointHAProxy:
		return task.KubeadmPart{Names: []string{r.Loopback().String()}}
	case manifest.EndpointKubeVIP:
		vip, err := netip.ParseAddr(host)
		if err != nil || r.Cluster.Kubernetes.ProxyMode != manifest.ProxyIPVS {
			return task.KubeadmPart{}
		}
		// kube-proxy would remove the address from its interface, and answer ARP for it on every node.
		// https://kube-vip.io/docs/usage/kube-proxy/, https://github.com/kubesphere/kubekey/issues/1702
		return task.KubeadmPart{KubeProxy: kube.Document{"ipvs": kube.Document{
			"strictARP": true, "excludeCIDRs": []any{netip.PrefixFrom(vip, vip.BitLen()).String()},
		}}}
	}
	return task.KubeadmPart{}
}

// answerTask checks on every node that the endpoint leads to an API server of this cluster.
func answerTask() task.Task {
	return task.Task{
		Name:  "endpoint",
		Roles: []manifest.Role{manifest.RoleCluster},
		Do: func(ctx context.Context, t *task.Host) error {
			ca, err := t.Site.FirstControlPlane().Read(ctx, kube.ClusterCA)
			if err != nil {
				return err
			}
			return task.Eventually(ctx, endpointWait, func(ctx context.Context) error {
				return APIAnswers(ctx, t, t.Site.Endpoint(), ca)
			})
		},
	}
}

// APIAnswers checks from the host that an API server with a certificate from ca is ready at an address.
func APIAnswers(ctx context.Context, t *task.Host, address string, ca []byte) error {
	return apiAnswers(ctx, t, address, "", ca)
}

// apiAnswers is APIAnswers with the name that the certificate must have; "" is the address's.
func apiAnswers(ctx context.Context, t *task.Host, address, name string, ca []byte) error {
	transport, err := t.Transport(ca)
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	transport.TLSClientConfig.ServerName = name
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("no answer from the API server at %s, asked from %s: %w", address, t.Name, err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // the connection is not used again
	if res.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("the API server at %s is not ready, asked from %s: %s", address, t.Name, res.Status)
	}
	return nil // 401 and 403 are answers, too
}

const maxAnswer = 1 << 20

// ProxyEndpointTask points kube-proxy to the API server or proxy on its own node, by address. By name it would keep the
// address from the time of the join: a pod keeps the /etc/hosts that it started with.
func ProxyEndpointTask() task.Task {
	return task.Task{
		Name:  "proxy-endpoint",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			_, changed, err := proxyKubeconfig(ctx, t)
			return !changed, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			text, _, err := proxyKubeconfig(ctx, t)
			if err != nil {
				return err
			}
			return t.Kube().PatchConfigMap(ctx, kube.SystemNamespace, "kube-proxy", proxyKey, text)
		},
	}
}

// proxyKey is the key of the kubeconfig in kube-proxy's ConfigMap.
const proxyKey = "kubeconfig.conf"

// LeadProxyHere makes kube-proxy ask the cluster's endpoint where another tool made it ask a balancer on its own node:
// a node of kkbundle has none. Pods that run keep what they read at their start.
func LeadProxyHere(ctx context.Context, first *task.Host) error {
	config, err := first.Kube().ConfigMap(ctx, kube.SystemNamespace, "kube-proxy", "--ignore-not-found")
	if err != nil {
		return err
	}
	text := fromLoopback(config.Data[proxyKey], first.Site.Endpoint())
	if text == config.Data[proxyKey] {
		return nil
	}
	return first.Kube().PatchConfigMap(ctx, kube.SystemNamespace, "kube-proxy", proxyKey, text)
}

// fromLoopback returns a kubeconfig with an endpoint in the place of servers on its own host.
func fromLoopback(text, endpoint string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		before, url, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "server: https://")
		host, _, err := net.SplitHostPort(strings.TrimSpace(url))
		ip, _ := netip.ParseAddr(host)
		if ok && err == nil && (host == "localhost" || ip.IsLoopback()) {
			line = before + "server: https://" + endpoint + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// proxyKubeconfig returns kube-proxy's kubeconfig, if any, with its own node as the server, and whether that changed.
func proxyKubeconfig(ctx context.Context, t *task.Host) (text string, changed bool, err error) {
	config, err := t.Kube().ConfigMap(ctx, kube.SystemNamespace, "kube-proxy", "--ignore-not-found")
	if err != nil {
		return "", false, err
	}
	_, port, err := net.SplitHostPort(t.Site.Endpoint())
	if err != nil {
		return "", false, fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	own := net.JoinHostPort(t.Site.Loopback().String(), port)
	text = strings.ReplaceAll(config.Data[proxyKey], "https://"+t.Site.Endpoint(), "https://"+own)
	return text, text != config.Data[proxyKey], nil
}
