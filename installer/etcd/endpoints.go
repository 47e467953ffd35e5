package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// APIServerManifest is the API server's static pod manifest.
const APIServerManifest = kube.ManifestsDir + "/kube-apiserver.yaml"

// etcdEndpointsTask updates the API servers' list of external etcd members, one by one: kubeadm writes it only once.
func etcdEndpointsTask() task.Task {
	return task.Task{
		Name:  "etcd-endpoints",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.OneByOne,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			have, want, err := apiServerEndpoints(ctx, t)
			return have == want, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := updateKubeadmConfig(ctx, t.Site); err != nil {
				return err
			}
			have, want, err := apiServerEndpoints(ctx, t)
			if err != nil || have == want {
				return err
			}
			if err := t.Write(ctx, task.File{Path: APIServerManifest, Mode: 0o600, Data: []byte(want)}); err != nil {
				return err
			}
			const restart = 3 * time.Minute
			return task.Eventually(ctx, restart, func(ctx context.Context) error { return checkAPIServer(ctx, t) })
		},
	}
}

// apiServerEndpoints returns the API server's manifest as found and with the current etcd members.
func apiServerEndpoints(ctx context.Context, t *task.Host) (have, want string, err error) {
	data, err := t.Read(ctx, APIServerManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("control plane %s has no %s; if a restore of etcd was interrupted, finish it first",
			t.Name, APIServerManifest)
	}
	if err != nil {
		return "", "", err
	}
	flag := regexp.MustCompile(`(?m)^(\s*- --etcd-servers=).*$`)
	return string(data), flag.ReplaceAllString(string(data), "${1}"+strings.Join(etcdEndpoints(t.Site), ",")), nil
}

// checkAPIServer checks that the host's API server runs with the current endpoints and is ready.
func checkAPIServer(ctx context.Context, t *task.Host) error {
	if err := t.Run(ctx, "pgrep", "--full", "--", "^kube-apiserver .*--etcd-servers="+
		regexp.QuoteMeta(strings.Join(etcdEndpoints(t.Site), ","))); err != nil {
		return err
	}
	return t.ServerReady(ctx)
}

// updateKubeadmConfig updates the endpoints in kubeadm-config, which later control planes join with.
func updateKubeadmConfig(ctx context.Context, r *task.Site) error {
	first := r.FirstControlPlane()
	const key = "ClusterConfiguration"
	config, err := first.Kube().ConfigMap(ctx, kube.SystemNamespace, "kubeadm-config")
	if err != nil {
		return err
	}
	var says kube.Document
	if err := yaml.Unmarshal([]byte(config.Data[key]), &says); err != nil {
		return fmt.Errorf("kubeadm-config: %w", err)
	}
	etcd, _ := says["etcd"].(map[string]any)
	external, _ := etcd["external"].(map[string]any)
	if external == nil {
		return errors.New("the cluster's kubeadm-config has no external etcd")
	}
	var endpoints []any
	for _, one := range etcdEndpoints(r) {
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
	_, err = first.Kube().Kubectl(ctx, kube.Command{Args: []string{"replace", "--filename=-"}, Stdin: object})
	return err
}
