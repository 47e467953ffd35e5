package charts

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A Cluster is a connection to an API server that several calls share: one transport, and one copy of the list of API
// groups. It is safe for concurrent use.
type Cluster struct {
	config    *rest.Config
	discovery discovery.CachedDiscoveryInterface
}

// Connect returns a Cluster for credentials of any kind. It sends no request yet. Warnings of the API server go to the
// logger.
func Connect(ctx context.Context, config *rest.Config, logger *slog.Logger) (*Cluster, error) {
	own := rest.CopyConfig(config)
	own.QPS, own.Burst = queriesPerSecond, queryBurst
	own.WarningHandler = warnings{ctx: ctx, logger: logger}
	own, err := shared(own)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &Cluster{config: own, discovery: memory.NewMemCacheClient(client)}, nil
}

// Config returns the configuration of clients that share the connection.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Discovery returns the API groups, which are read once and again after Invalidate.
func (c *Cluster) Discovery() discovery.CachedDiscoveryInterface { return c.discovery }

// in returns the clients of Helm for a namespace.
func (c *Cluster) in(namespace string) *cluster {
	const name = "cluster"
	file := clientcmdapi.NewConfig() // Helm only asks it for the namespace
	file.Clusters[name] = &clientcmdapi.Cluster{Server: c.config.Host}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, Namespace: namespace}
	file.CurrentContext = name
	loader := clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{})
	return &cluster{config: c.config, loader: loader, discovery: c.discovery}
}
