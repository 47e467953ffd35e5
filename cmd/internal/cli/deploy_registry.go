package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/cmd/internal/helper"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/deploy/incluster"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/web/dial"
)

const (
	defaultStorageSize      = "20Gi"
	lowestPort, highestPort = 1024, 65535 // of --registry-port: the proxies are not root
)

// ownRegistryFlags ask for kkbundle's registry in the cluster.
type ownRegistryFlags struct {
	own                       bool
	storageClass, storageSize string
	port                      int
}

func (o *ownRegistryFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&o.own, "own-registry", false,
		"put kkbundle's registry into the cluster through its API server, and push to it; instead of --registry")
	f.StringVar(&o.storageClass, "storage-class", "",
		"`class` of the volume for --own-registry (default a directory of one node)")
	f.StringVar(&o.storageSize, "storage-size", defaultStorageSize, "`size` of that volume")
	f.IntVar(&o.port, "registry-port", 0,
		"`port` of --own-registry on every node's loopback address (default 15050, or that of the registry in the cluster)")
}

// options returns the registry of the flags.
func (o *ownRegistryFlags) options(g *globals) (incluster.Options, error) {
	size, err := resource.ParseQuantity(o.storageSize)
	if err != nil {
		return incluster.Options{}, err
	}
	return incluster.Options{
		StorageClass: o.storageClass, Size: size, Port: o.port, Logger: g.Logger(),
		Programs: func(arch string) (incluster.Programs, error) {
			p, err := helper.PodPrograms(arch)
			return incluster.Programs{Start: p.Start, Proxy: p.Proxy, Registry: p.Registry}, err
		},
	}, nil
}

// ownRegistry is kkbundle's registry in the cluster.
type ownRegistry struct {
	g       *globals
	options incluster.Options
	push    registry.PushOptions
	tunnel  *incluster.Tunnel
}

// Open implements deploy.Registry.
func (r *ownRegistry) Open(ctx context.Context, cluster *rest.Config, dryRun bool) (deploy.Endpoint, error) {
	r.options.Config = cluster
	obtain := incluster.Ensure
	if dryRun {
		obtain = incluster.Find
	}
	have, err := obtain(ctx, r.options)
	if errors.Is(err, incluster.ErrNone) {
		return deploy.Endpoint{},
			plain.Advise(err, "a dry run compares with the registry: run without --dry-run once, or name another registry with --registry")
	}
	if err != nil {
		return deploy.Endpoint{}, err
	}
	if !dryRun {
		r.g.Note("registry: nodes pull from %s; the content is in %s (%s changed)", have.Address,
			plain.Line(have.Storage), plain.Count(have.Changed, "object"))
	}
	for _, node := range have.Without {
		r.g.Note("warning: node %s cannot pull: it has no image that the proxy could run in", plain.Line(node))
	}
	if r.tunnel, err = have.Open(ctx); err != nil {
		return deploy.Endpoint{}, fmt.Errorf("connection to the registry in the cluster: %w", err)
	}
	r.push.Registry, r.push.PlainHTTP = r.tunnel.Address, r.tunnel.TLS == nil
	if r.tunnel.TLS != nil {
		transport, err := dial.NewTransport(dial.Files{})
		if err != nil {
			return deploy.Endpoint{}, err
		}
		transport.TLSClientConfig, r.push.Transport = r.tunnel.TLS, transport
	}
	r.push.Auth = onlyLogin{authn.AuthConfig{Username: have.Push.User, Password: have.Push.Password}}
	secret, err := pullConfig(have.Address, have.Pull)
	return deploy.Endpoint{Pull: have.Address, PullSecret: secret, Options: r.push}, err
}

// Close implements deploy.Registry.
func (r *ownRegistry) Close() error {
	if r.tunnel != nil {
		r.tunnel.Close()
	}
	return nil
}

// checkRegistry checks the flags of the registry.
func (o *deployOptions) checkRegistry() error {
	switch size, err := resource.ParseQuantity(o.storageSize); {
	case (o.registry == "") != o.own:
		return usage.Errorf("name the registry with --registry HOST[/PREFIX], or put one into the cluster with --own-registry; one of the two")
	case !o.own && (o.storageClass != "" || o.storageSize != defaultStorageSize || o.port != 0):
		return usage.Errorf("--storage-class, --storage-size and --registry-port need --own-registry")
	case o.own && o.pullSecret != "":
		return usage.Errorf("--own-registry makes its own logins and takes no --pull-secret")
	case o.storageClass == "" && o.storageSize != defaultStorageSize:
		return usage.Errorf("--storage-size needs --storage-class; without a class the content is in a directory of one node")
	case err != nil || size.Sign() <= 0:
		return usage.Errorf("--storage-size %s: want a size such as 20Gi", o.storageSize)
	case o.port != 0 && (o.port < lowestPort || o.port > highestPort):
		return usage.Errorf("--registry-port %d: want %d to %d", o.port, lowestPort, highestPort)
	}
	return nil
}

// target returns the registry of the flags.
func (o *deployOptions) target(ctx context.Context, g *globals,
	progress func(registry.Event),
) (deploy.Registry, error) {
	if !o.own {
		given, err := o.given(ctx, g)
		given.Options.Progress = progress
		return given, err
	}
	options, err := o.ownRegistryFlags.options(g)
	if err != nil {
		return nil, err
	}
	push := registry.PushOptions{Jobs: int(o.jobs), Logger: g.Logger(), Progress: progress}
	for _, text := range o.renames {
		rule, err := registry.ParseRename(text)
		if err != nil {
			return nil, usage.Errorf("--rename: %w", err)
		}
		push.Rename = append(push.Rename, rule)
	}
	return &ownRegistry{g: g, options: options, push: push}, nil
}

// onlyLogin is a keychain with one login.
type onlyLogin struct{ config authn.AuthConfig }

// Resolve implements authn.Keychain.
func (l onlyLogin) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(l.config), nil
}

func pullConfig(host string, l incluster.Login) ([]byte, error) {
	one := map[string]string{
		"username": l.User, "password": l.Password,
		"auth": base64.StdEncoding.EncodeToString([]byte(l.User + ":" + l.Password)),
	}
	return json.Marshal(map[string]any{"auths": map[string]any{host: one}})
}

func newDeployRegistryCmd(g *globals) *cobra.Command {
	var o kubeFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove-registry",
		Short: "Remove the registry that deploy --own-registry put into a cluster",
		Long: `Removes the namespace kkbundle-registry with the registry, its proxies, logins and volume claim. It is refused while
a deployed bundle's images are in the registry. Content in a directory of a node stays there; the command names it.`,
		Example: "  kkbundle deploy remove-registry --kubeconfig prod.conf",
		Args:    takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return removeOwnRegistry(cmd.Context(), g, o, yes)
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func removeOwnRegistry(ctx context.Context, g *globals, o kubeFlags, yes bool) error {
	config, err := o.config()
	if err != nil {
		return err
	}
	options := incluster.Options{Config: config, Logger: g.Logger()}
	have, err := incluster.Find(ctx, options)
	if err != nil && !errors.Is(err, incluster.ErrNone) {
		return err
	}
	if err == nil {
		deployed, err := deploy.List(ctx, config, g.Logger())
		if err != nil {
			return err
		}
		for _, d := range deployed {
			if strings.HasPrefix(d.Registry, have.Address) {
				return plain.Advise(fmt.Errorf("images of bundle %s are in the registry", d.Name),
					"run kkbundle deploy remove "+d.Name+" first")
			}
		}
	}
	if !yes {
		if err := g.Confirm(fmt.Sprintf("Remove kkbundle's registry from %s?", config.Host)); err != nil {
			return err
		}
	}
	start := time.Now()
	left, err := incluster.Remove(ctx, options)
	if err != nil {
		return err
	}
	if left != "" {
		g.Note("kept: %s", plain.Line(left))
	}
	g.Note("the registry is removed (%s)", time.Since(start).Round(100*time.Millisecond))
	return nil
}
