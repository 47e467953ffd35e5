package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

const apiServerManifest = manifestsDir + "/kube-apiserver.yaml"

// etcdEndpointsTask lets API servers follow the members of an etcd beside the cluster, one API server after the other: kubeadm
// writes the list once and never again.
func etcdEndpointsTask() Task {
	return Task{
		Name:  "etcd-endpoints",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: OneByOne,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if member, err := t.isMember(ctx); err != nil || !member {
				return false, err
			}
			have, want, err := t.apiServerEndpoints(ctx)
			return have == want, err
		},
		Do: func(ctx context.Context, t *Target) error {
			if err := t.run.tellKubeadmEndpoints(ctx); err != nil {
				return err
			}
			have, want, err := t.apiServerEndpoints(ctx)
			if err != nil || have == want {
				return err
			}
			if err := t.write(ctx, textFile{apiServerManifest, 0o600, []byte(want)}); err != nil {
				return err
			}
			const restart = 3 * time.Minute
			return eventually(ctx, restart, t.apiServerRunsWith)
		},
	}
}

// apiServerEndpoints returns the API server's manifest as it is, and with the members of etcd as they are.
func (t *Target) apiServerEndpoints(ctx context.Context) (have, want string, err error) {
	data, err := t.read(ctx, apiServerManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("%s is a control plane, but %s is gone: if a restore of etcd was interrupted, finish it first", t.Name, apiServerManifest)
	}
	if err != nil {
		return "", "", err
	}
	flag := regexp.MustCompile(`(?m)^(\s*- --etcd-servers=).*$`)
	return string(data), flag.ReplaceAllString(string(data), "${1}"+strings.Join(t.run.etcdEndpoints(), ",")), nil
}

// apiServerRunsWith looks for an API server of the host that has the endpoints and is ready.
func (t *Target) apiServerRunsWith(ctx context.Context) error {
	if err := t.command(ctx, "pgrep", "--full", "--", "^kube-apiserver .*--etcd-servers="+regexp.QuoteMeta(strings.Join(t.run.etcdEndpoints(), ","))); err != nil {
		return err
	}
	return t.apiServerReady(ctx)
}

// apiServerReady asks the API server of this host, and not whichever the cluster's address leads to.
func (t *Target) apiServerReady(ctx context.Context) error {
	server := "https://" + net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	_, err := t.kubectl(ctx, "--server="+server, "get", "--raw=/readyz")
	return err
}

// tellKubeadmEndpoints keeps what the cluster knows of its etcd, which control planes are made from that join later.
func (r *Site) tellKubeadmEndpoints(ctx context.Context) error {
	first := r.firstControlPlane()
	const key = "ClusterConfiguration"
	config, err := first.kube().ConfigMap(ctx, systemNamespace, "kubeadm-config")
	if err != nil {
		return err
	}
	var says document
	if err := yaml.Unmarshal([]byte(config.Data[key]), &says); err != nil {
		return fmt.Errorf("kubeadm-config: %w", err)
	}
	etcd, _ := says["etcd"].(map[string]any)
	external, _ := etcd["external"].(map[string]any)
	if external == nil {
		return errors.New("the cluster's kubeadm-config has no external etcd")
	}
	var endpoints []any
	for _, one := range r.etcdEndpoints() {
		endpoints = append(endpoints, one)
	}
	if had, _ := external["endpoints"].([]any); slices.Equal(had, endpoints) {
		return nil
	}
	external["endpoints"] = endpoints
	text, err := yaml.Marshal(says)
	if err != nil {
		return fmt.Errorf("kubeadm-config: %w", err)
	}
	config.Data[key] = string(text)
	object, err := kube.YAML(&config)
	if err != nil {
		return fmt.Errorf("kubeadm-config: %w", err)
	}
	_, err = first.kube().Kubectl(ctx, kube.Command{Args: []string{"replace", "--filename=-"}, Stdin: object})
	return err
}
