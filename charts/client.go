package charts

import (
	"context"
	"fmt"
	"log/slog"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/storage"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster provides Helm's clients from a kubeconfig in memory. It replaces the flags of the helm command, which would
// read the environment and keep a discovery cache in the home directory.
type cluster struct {
	config    *rest.Config
	loader    clientcmd.ClientConfig
	discovery discovery.CachedDiscoveryInterface
}

// ToRESTConfig returns a copy: Helm's callers set fields in it.
func (c *cluster) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(c.config), nil }

// ToDiscoveryClient returns a client that caches the API groups in memory.
func (c *cluster) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return c.discovery, nil
}

// ToRESTMapper returns a mapper over the discovery client that knows short names.
func (c *cluster) ToRESTMapper() (meta.RESTMapper, error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(c.discovery)
	return restmapper.NewShortcutExpander(mapper, c.discovery, nil), nil
}

// ToRawKubeConfigLoader returns the loader with the namespace.
func (c *cluster) ToRawKubeConfigLoader() clientcmd.ClientConfig { return c.loader }

// Helm asks once per object; the library's default of 5 requests a second would make a large chart take minutes.
const (
	queriesPerSecond = 50
	queryBurst       = 100
)

// newCluster makes the clients for a kubeconfig's cluster.
func newCluster(ctx context.Context, o InstallOptions) (*cluster, error) {
	if o.Cluster != nil {
		return o.Cluster.in(o.Namespace), nil
	}
	file, err := clientcmd.Load(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	overrides := &clientcmd.ConfigOverrides{}
	overrides.Context.Namespace = o.Namespace
	loader := clientcmd.NewDefaultClientConfig(*file, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.QPS, config.Burst = queriesPerSecond, queryBurst
	config.Dial = o.Dial
	config.WarningHandler = warnings{ctx: ctx, logger: o.Logger}
	if config, err = shared(config); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &cluster{config: config, loader: loader, discovery: memory.NewMemCacheClient(client)}, nil
}

// configuration returns the common configuration of Helm's actions. Releases are kept in Secrets, as with the helm
// command.
func configuration(ctx context.Context, o InstallOptions) (*action.Configuration, error) {
	c, err := newCluster(ctx, o)
	if err != nil {
		return nil, err
	}
	cfg := new(action.Configuration)
	say := func(format string, args ...any) {
		o.Logger.DebugContext(ctx, "helm", "release", o.Release, "says", fmt.Sprintf(format, args...))
	}
	if err := cfg.Init(c, o.Namespace, "secret", say); err != nil {
		return nil, err
	}
	if o.Rewrite != nil {
		cfg.Releases = storage.Init(hookDriver{cfg.Releases.Driver, o.Rewrite})
	}
	return cfg, nil
}

// warnings sends the API server's warnings to the log instead of the process's standard error.
type warnings struct {
	ctx    context.Context //nolint:containedctx // the interface has no context; it is only used for log records
	logger *slog.Logger
}

// HandleWarningHeader logs one warning.
func (w warnings) HandleWarningHeader(code int, _, text string) {
	if code == 299 && text != "" { // 299 is the only code that Kubernetes uses
		w.logger.WarnContext(w.ctx, "warning of the API server", "text", text)
	}
}
