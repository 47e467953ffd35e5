//go:build linux

package sitetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// QuotaManifest is the manifest of a member of etcd.
const QuotaManifest = "/etc/kubernetes/manifests/etcd.yaml"

// QuotaSite is a control plane with kubeadm's etcd. It pretends the kubelet, which restarts etcd with the manifest's
// arguments, and kubeadm's configuration in the cluster. TestHA of the lab has real ones.
func QuotaSite(t *testing.T, quota, arguments string) (s *Site, r *engine.Run, e *SizedEtcd, config *string) {
	t.Helper()
	s, _, _ = EtcdSite(t, "internal")
	s.Options.Cluster = tasktest.Cluster(t, "")
	if quota != "" {
		s.Options.Cluster = tasktest.Cluster(t, "etcd: {quota: "+quota+"}")
	}
	h := s.Hosts["cp1"]
	h.Put(t, QuotaManifest, "spec:\n  containers:\n  - command:\n    - etcd\n    - --name=cp1\n"+arguments+
		"    image: etcd:3.6.6\n")
	e = &SizedEtcd{Members: []etcd.Database{{
		Endpoint: "https://10.0.0.3:2379", Member: 3, Leader: 3, Size: 3 << 30,
		Used: 1 << 30,
	}}}
	h.Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return e.Control(cmd) })
	h.Answer("pgrep", func(_ context.Context, cmd host.Cmd) error {
		_, wanted, _ := strings.Cut(cmd.Args[len(cmd.Args)-1], ".*")
		wanted, _, _ = strings.Cut(wanted, "(")
		if !strings.Contains(h.Content(QuotaManifest), "- "+wanted+"\n") {
			return Exits(cmd, 1, "")
		}
		return nil
	})
	text := "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd: {local: {dataDir: /var/lib/etcd, extraArgs: [{name: log-level, value: warn}]}}\n"
	config = &text
	h.Answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		switch line := strings.Join(cmd.Args, " "); {
		case strings.Contains(line, "get configmap kubeadm-config"):
			return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"data": map[string]string{"ClusterConfiguration": *config}})
		case strings.Contains(line, "patch configmap kubeadm-config"):
			_, patch, _ := strings.Cut(line, "--patch=")
			var p struct{ Data map[string]string }
			err := json.Unmarshal([]byte(patch), &p)
			*config = p.Data["ClusterConfiguration"]
			return err
		case strings.Contains(line, "--raw=/readyz"):
			_, err := io.WriteString(cmd.Stdout, "ok")
			return err
		}
		return fmt.Errorf("%v is not known to this test", cmd.Args)
	})
	return s, s.Run(t, nil), e, config
}
