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

// endpointWait is how long the endpoint may take to answer once an API server does: a balancer has to see that it is
// there, and an address has to move.
const endpointWait = 2 * time.Minute

// Tasks make sure, before nodes join, that the API server's address leads to it.
func Tasks(c *manifest.Cluster) []task.Task {
	switch c.ControlPlaneEndpoint.Type {
	case manifest.EndpointKubeVIP:
		return []task.Task{KubeVIPTask(), answerTask()}
	case manifest.EndpointHAProxy:
		return []task.Task{ProxyEndpointTask()} // workers have their proxies when they are nodes
	}
	if c.ControlPlaneEndpoint.Address != "" {
		return []task.Task{answerTask()}
	}
	return nil
}

// LocalEndpointTasks give every node its own way to the API servers, where that is what the cluster wants.
func LocalEndpointTasks(c *manifest.Cluster) []task.Task {
	if c.ControlPlaneEndpoint.Type != manifest.EndpointHAProxy {
		return nil
	}
	return []task.Task{HAProxyTask(), machine.EndpointNameTask(), answerTask()}
}

// Part is what kubeadm is told of the endpoint; it puts the endpoint's own name into certificates by itself.
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
		// The proxy would take the address off its interface, and answer ARP for it on every node.
		// https://kube-vip.io/docs/usage/kube-proxy/, https://github.com/kubesphere/kubekey/issues/1702
		return task.KubeadmPart{KubeProxy: kube.Document{"ipvs": kube.Document{
			"strictARP": true, "excludeCIDRs": []any{netip.PrefixFrom(vip, vip.BitLen()).String()},
		}}}
	}
	return task.KubeadmPart{}
}

// answerTask is a check that the endpoint leads to an API server of this cluster, on every node by itself.
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

// APIAnswers asks an address, from the host, whether an API server that these authorities have certified is ready there.
func APIAnswers(ctx context.Context, t *task.Host, address string, ca []byte) error {
	transport, err := t.Transport(ca)
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("the API server does not answer at %s, asked on %s: %w", address, t.Name, err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // the connection is not used again
	if res.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("the API server at %s is not ready, asked on %s: %s", address, t.Name, res.Status)
	}
	return nil // who may not ask has been answered, too
}

const maxAnswer = 1 << 20

// ProxyEndpointTask lets kube-proxy find the API server on its own node by address: a pod keeps the /etc/hosts that it
// was started with, and with it what the endpoint's name meant while its node joined.
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

// proxyKey is where kubeadm keeps kube-proxy's kubeconfig in its ConfigMap.
const proxyKey = "kubeconfig.conf"

// proxyKubeconfig returns kube-proxy's kubeconfig with its own node as the server, and whether that differs from what is
// there. A cluster without kube-proxy has nothing to change.
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
