package installer

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
)

// endpointWait is how long the endpoint may take to answer once an API server does: a balancer has to see that it is
// there, and an address has to move.
const endpointWait = 2 * time.Minute

// endpointTasks make sure, before nodes join, that the API server's address leads to it.
func endpointTasks(c *manifest.Cluster) []Task {
	switch c.ControlPlaneEndpoint.Type {
	case manifest.EndpointKubeVIP:
		return []Task{kubeVIPTask(), answerTask()}
	case manifest.EndpointHAProxy:
		return []Task{proxyEndpointTask()} // workers have their proxies when they are nodes
	}
	if c.ControlPlaneEndpoint.Address != "" {
		return []Task{answerTask()}
	}
	return nil
}

// localEndpointTasks give every node its own way to the API servers, where that is what the cluster wants.
func localEndpointTasks(c *manifest.Cluster) []Task {
	if c.ControlPlaneEndpoint.Type != manifest.EndpointHAProxy {
		return nil
	}
	return []Task{haproxyTask(), nameTask(), answerTask()}
}

// endpoint is where nodes and clients reach the API server, as host:port. Without an address in the cluster file it is the
// one that the cluster was made with: the first control plane may be another one by now.
func (r *Site) endpoint() string {
	e := r.cluster.ControlPlaneEndpoint
	switch {
	case e.Address == "" && e.Type == manifest.EndpointHAProxy:
		return net.JoinHostPort("api."+r.cluster.Metadata.Name+".internal", strconv.Itoa(manifest.DefaultPort))
	case e.Address == "" && r.endpointMade() != "":
		return r.endpointMade()
	}
	return e.HostPort(r.firstControlPlane().IP.String())
}

// endpointPart is what kubeadm is told of the endpoint; it puts the endpoint's own name into certificates by itself.
func (r *Site) endpointPart() configPart {
	host, _, err := net.SplitHostPort(r.endpoint())
	if err != nil {
		return configPart{} // ParseCluster has checked the address
	}
	switch r.cluster.ControlPlaneEndpoint.Type {
	case manifest.EndpointHAProxy:
		return configPart{names: []string{r.loopback().String()}}
	case manifest.EndpointKubeVIP:
		vip, err := netip.ParseAddr(host)
		if err != nil || r.cluster.Kubernetes.ProxyMode != manifest.ProxyIPVS {
			return configPart{}
		}
		// The proxy would take the address off its interface, and answer ARP for it on every node.
		// https://kube-vip.io/docs/usage/kube-proxy/, https://github.com/kubesphere/kubekey/issues/1702
		return configPart{kubeProxy: document{"ipvs": document{
			"strictARP": true, "excludeCIDRs": []any{netip.PrefixFrom(vip, vip.BitLen()).String()},
		}}}
	}
	return configPart{}
}

// loopback is the address under which each node finds an API server on itself.
func (r *Site) loopback() netip.Addr {
	if r.firstControlPlane().IP.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// endpointLine is the line of /etc/hosts for the endpoint, where that is a name that means another address on each node:
// until the host is a node, the control plane that it joins through; then itself. "" is no line.
func (t *Target) endpointLine(ctx context.Context) (string, error) {
	if t.run.cluster.ControlPlaneEndpoint.Type != manifest.EndpointHAProxy || !t.Is(manifest.RoleCluster) {
		return "", nil
	}
	name, _, err := net.SplitHostPort(t.run.endpoint())
	if err != nil {
		return "", fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	member, err := t.isMember(ctx)
	if err != nil {
		return "", err
	}
	to := t.run.firstControlPlane().IP
	if member {
		to = t.run.loopback()
	}
	return to.String() + " " + name, nil
}

// nameTask makes the endpoint's name mean each node itself, as soon as something answers there.
func nameTask() Task {
	hosts := hostsTask()
	return Task{Name: "endpoint-name", Roles: []manifest.Role{manifest.RoleCluster}, Done: hosts.Done, Do: hosts.Do}
}

// answerTask is a check that the endpoint leads to an API server of this cluster, on every node by itself.
func answerTask() Task {
	return Task{
		Name:  "endpoint",
		Roles: []manifest.Role{manifest.RoleCluster},
		Do: func(ctx context.Context, t *Target) error {
			ca, err := t.run.firstControlPlane().read(ctx, clusterCA)
			if err != nil {
				return err
			}
			return eventually(ctx, endpointWait, func(ctx context.Context) error {
				return t.apiAnswers(ctx, t.run.endpoint(), ca)
			})
		},
	}
}

// apiAnswers asks an address, from the host, whether an API server that these authorities have certified is ready there.
func (t *Target) apiAnswers(ctx context.Context, address string, ca []byte) error {
	transport, err := t.transport(ca)
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

// proxyEndpointTask lets kube-proxy find the API server on its own node by address: a pod keeps the /etc/hosts that it
// was started with, and with it what the endpoint's name meant while its node joined.
func proxyEndpointTask() Task {
	return Task{
		Name:  "proxy-endpoint",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return false, err
			}
			_, changed, err := t.proxyKubeconfig(ctx)
			return !changed, err
		},
		Do: func(ctx context.Context, t *Target) error {
			text, _, err := t.proxyKubeconfig(ctx)
			if err != nil {
				return err
			}
			return t.kube().PatchConfigMap(ctx, systemNamespace, "kube-proxy", proxyKey, text)
		},
	}
}

// proxyKey is where kubeadm keeps kube-proxy's kubeconfig in its ConfigMap.
const proxyKey = "kubeconfig.conf"

// proxyKubeconfig returns kube-proxy's kubeconfig with its own node as the server, and whether that differs from what is
// there. A cluster without kube-proxy has nothing to change.
func (t *Target) proxyKubeconfig(ctx context.Context) (text string, changed bool, err error) {
	config, err := t.kube().ConfigMap(ctx, systemNamespace, "kube-proxy", "--ignore-not-found")
	if err != nil {
		return "", false, err
	}
	_, port, err := net.SplitHostPort(t.run.endpoint())
	if err != nil {
		return "", false, fmt.Errorf("controlPlaneEndpoint: %w", err)
	}
	own := net.JoinHostPort(t.run.loopback().String(), port)
	text = strings.ReplaceAll(config.Data[proxyKey], "https://"+t.run.endpoint(), "https://"+own)
	return text, text != config.Data[proxyKey], nil
}
