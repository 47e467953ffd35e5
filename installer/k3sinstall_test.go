//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fakeK3s stands for k3s on a site's hosts, which cannot be built here: its unit, once started, makes what k3s
// makes, and `k3s kubectl` knows the nodes. What k3s reads is in golden files.
type fakeK3s struct {
	mu    sync.Mutex
	nodes map[string]bool
}

const k3sAdmin = `apiVersion: v1
clusters:
- cluster: {certificate-authority-data: Q0E=, server: 'https://127.0.0.1:6443'}
  name: default
contexts:
- context: {cluster: default, user: default}
  name: default
current-context: default
kind: Config
preferences: {}
users:
- name: default
  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ}
`

func newFakeK3s(t *testing.T, s *sitetest.Site) *fakeK3s {
	t.Helper()
	ca := sitetest.CA()
	f := &fakeK3s{nodes: map[string]bool{}}
	for name, h := range s.Hosts {
		h.Answer("ip", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Stdout != nil {
				fmt.Fprintf(cmd.Stdout, "2: eth1    inet %s/24 brd 10.0.0.255 scope global eth1\n",
					cmd.Args[len(cmd.Args)-1])
			}
			return nil
		})
		h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
			unit := cmd.Args[len(cmd.Args)-1]
			if cmd.Args[1] != "restart" || !strings.HasPrefix(unit, "k3s") {
				return nil
			}
			h.Put(t, k3s.CA, string(ca))
			if unit == "k3s.service" {
				h.Put(t, k3s.ServerToken, "K10"+strings.Repeat("ab", 32)+"::server:"+h.Content(k3s.TokenFile))
				h.Put(t, k3s.Kubeconfig, k3sAdmin)
			}
			h.Put(t, cri.K3sData+"/storage/pvc-1/data", "a user's")
			f.mu.Lock()
			defer f.mu.Unlock()
			f.nodes[name] = true
			return nil
		})
		h.Answer("k3s", func(_ context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if i := slices.Index(cmd.Args, "node"); cmd.Args[1] == "kubectl" && i > 0 && !f.nodes[cmd.Args[i+1]] {
				return &host.ExitError{Host: h.Name, Args: cmd.Args, Code: 1, Stderr: "not found"}
			}
			return nil
		})
	}
	return f
}

// newK3sSite has three servers, of which one is a worker too, and an agent.
func newK3sSite(t *testing.T, more string) (*sitetest.Site, *bundle.Reader) {
	t.Helper()
	s := sitetest.NewSite(t, "cp1", "cp2", "cp3", "node1")
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts: {cp1: {address: 10.0.0.3}, cp2: {address: 10.0.0.4}, cp3: {address: 10.0.0.5}, node1: {address: 10.0.0.6}}
groups: {kube_control_plane: [cp1, cp2, cp3], kube_worker: [cp2, node1], image_registry: [cp1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	if !strings.Contains(more, "kubernetes:") {
		more = "kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\n" + more
	}
	s.Options.Cluster = tasktest.Cluster(t, more)
	newFakeK3s(t, s)
	s.Dialing("")
	return s, sitetest.ClusterBundle(t, s.Options.Cluster)
}

func TestK3sIsInstalled(t *testing.T) {
	t.Parallel()
	s, b := newK3sSite(t, "")
	// verify-nodes and the labels need a real API; they are common to all clusters.
	phases := []task.Phase{{
		Name: "install",
		Tasks: slices.DeleteFunc(plan.Distribution(s.Options.Cluster).Nodes(s.Options.Cluster),
			func(task task.Task) bool { return task.Name == "node-labels" }),
	}}
	if err := s.Run(t, b).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	s.States()
	tasktest.Golden(t, "k3s-first.txt", s.Hosts["cp1"].Written(t, k3s.ConfigFile, "/etc/systemd/system/k3s.service"))
	tasktest.Golden(t, "k3s-second.txt", s.Hosts["cp2"].Written(t, k3s.ConfigFile))
	tasktest.Golden(t, "k3s-agent.txt", s.Hosts["node1"].Written(t, k3s.ConfigFile,
		"/etc/systemd/system/k3s-agent.service"))

	secret := strings.TrimSpace(s.Hosts["cp1"].Content(k3s.TokenFile))
	pin := "K10" + strings.Repeat("ab", 32)
	if got := s.Hosts["cp2"].Content(k3s.TokenFile); got != pin+"::server:"+secret+"\n" {
		t.Errorf("the second server joins with %s", got)
	}
	node := s.Hosts["node1"].Content(k3s.TokenFile)
	if !strings.HasPrefix(node, pin+"::node:") || strings.Contains(node, secret) {
		t.Errorf("the agent joins with %s", node)
	}
	for name, h := range s.Hosts {
		for _, path := range []string{k3s.TokenFile, k3s.ConfigFile, k3s.Dir + "/registries.yaml"} {
			if info, err := os.Stat(filepath.Join(h.Root, path)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %s: %v, %v", name, path, info, err)
			}
		}
		if h.Content(cri.K3sData+"/agent/images/k3s-airgap-images.tar.zst") == "" || h.Content(k3s.Binary) == "" {
			t.Errorf("%s lacks k3s or its images", name)
		}
		if ran := strings.Join(h.Said(""), "\n"); strings.Contains(ran, secret) {
			t.Errorf("%s: the token is in a command's arguments:\n%s", name, ran)
		}
	}
	admin, err := os.ReadFile(filepath.Join(s.Options.WorkDir, task.AdminConfFile))
	if err != nil || !strings.Contains(string(admin), "server: https://10.0.0.3:6443") ||
		kube.CheckKubeconfig(admin) != nil {
		t.Errorf("admin.conf: %v\n%s", err, admin)
	}
	if err := s.Run(t, b).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.States(), ", "); strings.Contains(got, "changed") {
		t.Errorf("a rerun: %s", got)
	}
	resetLeavesNothing(t, s, []string{
		k3s.Dir, cri.K3sData + "/server", cri.K3sData + "/agent", k3s.Binary, "/etc/systemd/system/k3s.service",
		"/etc/systemd/system/k3s-agent.service",
		"/usr/local/bin/kubectl", "/usr/local/bin/ctr",
	})
	if s.Hosts["node1"].Content(cri.K3sData+"/storage/pvc-1/data") == "" {
		t.Error("reset took the pods' volumes without --with-data")
	}
	s.Options.WithData = true
	resetLeavesNothing(t, s, nil)
	if s.Hosts["node1"].Content(cri.K3sData+"/storage/pvc-1/data") != "" {
		t.Error("reset --with-data left the pods' volumes")
	}
}

// Nothing joins before the first server has said who it is, and a token that is none is not passed on.
func TestK3sNeedsTheFirstServer(t *testing.T) {
	t.Parallel()
	s, b := newK3sSite(t, "")
	r := s.Run(t, b)
	if _, err := k3s.Tokens(t.Context(), r.Hosts[3], false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before the first server is up: %v", err)
	}
	s.Hosts["cp1"].Put(t, k3s.ServerToken, "password\n")
	if _, err := k3s.Tokens(t.Context(), r.Hosts[3], false); err == nil ||
		!strings.Contains(err.Error(), "does not begin with K10") {
		t.Errorf("a token without a hash: %v", err)
	}
	s.Options.DryRun = true
	if err := s.Run(t, b).Phases(t.Context(),
		[]task.Phase{{
			Name:  "install",
			Tasks: plan.Distribution(s.Options.Cluster).Nodes(s.Options.Cluster)[:1],
		}}); err != nil {
		t.Errorf("a dry run on fresh hosts: %v", err)
	}
}

func TestK3sVariants(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ more, want, not string }{
		"an etcd of the user's": {
			"etcd: {type: provided, endpoints: ['https://10.9.0.1:2379', 'https://10.9.0.2:2379'], ca: ca, cert: cert, key: key}",
			"datastore-endpoint: https://10.9.0.1:2379,https://10.9.0.2:2379\n", "cluster-init",
		},
		"another network": {"cni: {type: none}", "flannel-backend: none\n", "flannel-iface"},
		"what k3s brings": {
			"metrics: true\nstorage: {local: true}",
			"disable:\n- traefik\n- servicelb\ndisable-default", "metrics-server",
		},
		"a balancer's endpoint": {
			"controlPlaneEndpoint: {type: external, address: 'api.example:8443'}",
			"tls-san:\n- api.example\n", "10.0.0.4",
		},
		"no registry": {"imageRegistry: {type: none}", "cluster-init: true", "registries"},
		"parts of the pods' network": {
			"cni: {ipv4MaskSize: 25}",
			"kube-controller-manager-arg:\n- node-cidr-mask-size-ipv4=25\n", "ipv6",
		},
		"a DNS cache":         {"dns: {nodeLocal: true}", "- max-pods=110\nnode-ip", manifest.NodeDNSAddress},
		"a DNS cache of pods": {"dns: {nodeLocal: true}\nkubernetes: {distribution: k3s, version: v1.34.3+k3s1, proxyMode: ipvs}", "- cluster-dns=" + manifest.NodeDNSAddress + "\n", "iptables"},
		"a network below multus": {
			"cni: {type: multus, with: flannel}", "flannel-backend: none\n",
			"flannel-iface",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := newK3sSite(t, c.more)
			s.Options.Values = func(path string) ([]byte, error) { return []byte(path), nil }
			d, err := k3s.Setting(t.Context(), s.Run(t, b).Hosts[0], k3s.Unit(true))
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			for _, f := range d.Files {
				fmt.Fprintf(&all, "%s\n%s", f.Path, f.Data)
			}
			if text := all.String(); !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
				t.Errorf("want %q and not %q in\n%s", c.want, c.not, text)
			}
		})
	}
}
